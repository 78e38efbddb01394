"""The gateway: the HTTP API through which people and programs start, stop and watch runs
(docs/gateway.md).

This package imports nothing, because `crawlctl gateway token new` needs only the token module and
not the web framework.
"""
