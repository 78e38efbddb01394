"""Webhooks: which events they get, how these are signed, and which addresses are allowed."""
