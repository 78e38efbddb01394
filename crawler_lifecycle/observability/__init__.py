"""Logs and metrics of our processes, without secrets."""
