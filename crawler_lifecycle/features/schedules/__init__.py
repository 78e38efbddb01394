"""Schedules: runs, managers and graphs at due times."""
