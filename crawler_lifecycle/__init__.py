"""crawler-lifecycle: runs crawls from request to archive as Temporal workflows, and keeps their
recorded status correct.

This file deliberately imports nothing: the runner inside a pod and the workflow sandbox both import
the package, and neither of the two may load modules that it does not use.
"""
