"""Things to try the service with: a website to crawl, crawlers for it, and the catalogue that
declares them.
"""
