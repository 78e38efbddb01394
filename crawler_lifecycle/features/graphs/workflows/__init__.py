"""Workflows of graphs."""
