"""crawler-lifecycle: runs crawls from request to archive as Temporal workflows, and keeps their status true.

This file stays empty of imports on purpose: the runner inside a pod and the workflow sandbox both import the package,
and neither may pay for, or depend on, anything that they do not use.
"""
