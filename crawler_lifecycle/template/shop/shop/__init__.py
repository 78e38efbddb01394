"""A Scrapy project."""
