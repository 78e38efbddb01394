"""Schedules: at which times something begins, and what becomes of each of these times."""
