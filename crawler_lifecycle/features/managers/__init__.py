"""Crawl managers: a class decides which runs begin."""
