"""scrapyd's dialect: its words for what the gateway does."""
