"""The API of scrapyd, as an alternative to our own API."""
