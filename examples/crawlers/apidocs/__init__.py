"""An ordinary Scrapy project that crawls the demonstration site.

It depends on its environment in only one way: if CRAWL_FILES_DIR names a folder, it writes its
supporting files there. Without this variable, it is a Scrapy project like any other.
"""
