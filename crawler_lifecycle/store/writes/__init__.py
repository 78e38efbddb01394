"""Changes of rows, each in one transaction."""
