"""Deployed code of crawlers: packages with their versions."""
