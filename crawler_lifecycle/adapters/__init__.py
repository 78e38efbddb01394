"""Adapters: one package or module for each outside system.

They implement ports, and none uses another adapter.
"""
