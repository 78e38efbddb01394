"""A server for assistants that speak MCP."""
