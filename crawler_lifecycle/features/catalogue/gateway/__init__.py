"""The gateway's part of the catalogue."""
