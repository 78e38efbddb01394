"""Schedules: their due times, and the decision about each of them."""
