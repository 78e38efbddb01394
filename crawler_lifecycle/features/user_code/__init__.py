"""Processes that execute user code."""
