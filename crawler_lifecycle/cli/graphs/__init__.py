"""Verbs about graphs."""
