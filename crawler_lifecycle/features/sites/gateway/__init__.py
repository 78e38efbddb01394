"""The API and the web pages of sites."""
