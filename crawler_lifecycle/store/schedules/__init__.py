"""Schedules and their due times."""
