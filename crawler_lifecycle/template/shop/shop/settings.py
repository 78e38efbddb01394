"""The settings of the Scrapy project. Nothing in them is about crawler-lifecycle."""

SPIDER_MODULES = ["shop.spiders"]
