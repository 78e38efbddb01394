"""Webhooks: their definition, the signatures of deliveries, and the allowed addresses."""
