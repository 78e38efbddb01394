"""The connection to Temporal: client, plugin, converters, interceptors."""
