"""Folders of local tasks: what lies in them, read under bounds, and how long it stays."""
