"""An ordinary Scrapy project that crawls the demonstration site.

It knows one thing about the place it runs in: when the environment names a folder in
CRAWL_FILES_DIR, it leaves its supporting files there. Without that variable it is a Scrapy project
like any other.
"""
