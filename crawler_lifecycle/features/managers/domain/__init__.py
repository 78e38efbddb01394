"""The rules of crawl managers: jobs, their order, slots and numbers, and the terms of Scrapy
Cloud.
"""
