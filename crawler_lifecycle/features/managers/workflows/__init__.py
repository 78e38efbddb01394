"""Workflows of managers."""
