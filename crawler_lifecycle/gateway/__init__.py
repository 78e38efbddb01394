"""The gateway: the HTTP API through which people and programs start, stop and watch runs
(docs/gateway.md).

Nothing is imported here: `crawlctl gateway token new` needs only the module of tokens, not the web
framework.
"""
