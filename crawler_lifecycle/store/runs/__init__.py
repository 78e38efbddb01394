"""Runs and their tasks: tables, conversion of rows, queries and writes."""
