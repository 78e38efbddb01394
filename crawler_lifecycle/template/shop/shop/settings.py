"""The settings of the Scrapy project. They need nothing for crawler-lifecycle."""

SPIDER_MODULES = ["shop.spiders"]
