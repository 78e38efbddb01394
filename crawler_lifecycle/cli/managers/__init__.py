"""Verbs about crawl managers."""
