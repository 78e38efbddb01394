"""Verbs about the installation."""
