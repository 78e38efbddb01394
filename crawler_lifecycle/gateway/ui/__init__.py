"""The web UI: HTML for people, over the same readers and commands as the API."""
