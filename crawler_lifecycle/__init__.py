"""crawler-lifecycle: takes a crawl from request to archive on Temporal and always knows the truth about it.

This file stays empty of imports on purpose: the runner inside a pod and the workflow sandbox both import the package,
and neither may pay for, or depend on, anything that they do not use.
"""
