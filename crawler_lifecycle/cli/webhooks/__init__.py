"""Verbs about webhooks."""
