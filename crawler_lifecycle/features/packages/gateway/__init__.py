"""The API of packages."""
