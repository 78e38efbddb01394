"""Schedules: their due times, and the decision about each due time."""
