"""The crawler ``site``: ``scope`` handles its arguments and addresses, ``spider`` the crawl, and
``files`` the output.
"""
