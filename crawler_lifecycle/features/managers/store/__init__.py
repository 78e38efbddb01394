"""Managers and their jobs, and the plans that workers report."""
