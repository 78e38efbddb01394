"""Queries that change nothing."""
