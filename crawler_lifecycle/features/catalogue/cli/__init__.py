"""The verbs of the catalogue."""
