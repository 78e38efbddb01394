"""Schedules and their firings."""
