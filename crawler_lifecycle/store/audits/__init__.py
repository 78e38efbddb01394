"""Reads and findings of audits."""
