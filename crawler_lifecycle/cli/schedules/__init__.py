"""Verbs about schedules."""
