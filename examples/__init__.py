"""Examples for trying the service: a website to crawl, crawlers for this website, and their
catalogue.
"""
