"""The gateway: the HTTP API through which people and programs start, stop and watch runs (docs/gateway.md).

Nothing is loaded here: `crawlctl gateway token new` needs the module of tokens and no web framework.
"""
