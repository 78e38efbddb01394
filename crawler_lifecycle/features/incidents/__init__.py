"""Incidents: what needs a person, derived from the recorded state."""
