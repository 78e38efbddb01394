"""Processes on this machine: their identity, groups and limits, and the queue for slots."""
