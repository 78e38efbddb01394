"""A Scrapy project of its own: the crawler ``site``, which follows every link of one site.

It stands in the package so that it is there wherever the package is installed, but nothing of ours imports it and it
imports nothing of ours: the runner starts it like anybody's project, by the folder of its ``scrapy.cfg``.
"""
