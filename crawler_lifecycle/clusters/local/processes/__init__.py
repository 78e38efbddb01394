"""Processes of this machine: their identity, their groups and limits, and the queue for slots."""
