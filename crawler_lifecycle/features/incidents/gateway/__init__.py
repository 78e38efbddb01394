"""Incidents in the gateway: the rounds that find them, and their routes."""
