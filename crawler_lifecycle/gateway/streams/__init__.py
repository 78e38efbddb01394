"""Streams: events, logs, timelines."""
