"""Webhooks and alerts: events are sent to addresses."""
