"""Processes that execute code of users."""
