"""Crawl managers: classes that decide which runs begin."""
