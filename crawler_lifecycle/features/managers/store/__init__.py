"""Managers and their jobs, and the user code that workers report."""
