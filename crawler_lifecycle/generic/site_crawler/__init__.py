"""The crawler ``site``: ``scope`` has its arguments and addresses, ``spider`` the crawl, ``files``
the output.
"""
