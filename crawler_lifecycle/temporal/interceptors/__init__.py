"""Interceptors of activities and workflows: heartbeats, retry-after, log fields, metrics, traces."""
