"""Adapters for outside systems, each in its own package or module.

They implement ports, and no adapter uses another adapter.
"""
