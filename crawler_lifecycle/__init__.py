"""crawler-lifecycle: runs crawls from request to archive as Temporal workflows, and keeps their
status true.

This file deliberately imports nothing: the runner inside a pod and the workflow sandbox both import
the package, and neither may load modules that it does not use.
"""
