"""Streams of events, logs and timelines."""
