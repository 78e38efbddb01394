"""Retention: old rows, files of ended runs, free run numbers."""
