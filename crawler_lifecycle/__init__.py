"""crawler-lifecycle: runs crawls from request to archive as Temporal workflows, and keeps their
status true.

This file imports nothing on purpose. The runner inside a pod and the workflow sandbox both import
the package. Neither may load modules that it does not use.
"""
