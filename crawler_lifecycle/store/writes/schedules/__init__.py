"""Schedules, and the line that each due time has."""
