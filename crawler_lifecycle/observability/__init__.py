"""Logs, metrics and traces of our processes, with every secret left out."""
