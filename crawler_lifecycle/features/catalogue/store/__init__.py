"""The store of the catalogue."""
