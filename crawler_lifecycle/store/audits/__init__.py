"""Queries, findings and reports of audits."""
