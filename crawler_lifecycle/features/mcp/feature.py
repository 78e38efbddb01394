"""The registration of this feature."""

from crawler_lifecycle.features.feature import Feature

MCP = Feature(
    "mcp",
    verbs={"mcp": ("cli:mcp", "Offer runs to an assistant as tools (Model Context Protocol).")},
)
