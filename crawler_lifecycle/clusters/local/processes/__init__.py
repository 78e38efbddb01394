"""Processes of this machine: who they are, their groups and limits, and the queue for slots."""
