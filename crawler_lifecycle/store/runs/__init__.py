"""Runs and their tasks: tables, rows, reads and writes."""
