"""An ordinary Scrapy project that crawls the demonstration site.

It has only one relation to its environment: if CRAWL_FILES_DIR names a folder, it leaves its
supporting files there. Without that variable, it is a Scrapy project like any other.
"""
