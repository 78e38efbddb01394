"""Processes of this machine: their identity, groups and limits, and the queue for slots."""
