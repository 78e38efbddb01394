"""The web UI: HTML pages for people, which use the same readers and commands as the API."""
