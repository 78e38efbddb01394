"""What is followed: events, logs, timelines."""
