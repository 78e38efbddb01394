"""scrapyd's dialect of the API."""
