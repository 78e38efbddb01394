"""Webhooks: what they are told, how that is signed, and where it may go."""
