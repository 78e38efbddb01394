"""The store of packages."""
