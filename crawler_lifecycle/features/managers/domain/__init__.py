"""The rules of crawl managers for jobs, their order, slots and numbers, and the terms of Scrapy
Cloud.
"""
