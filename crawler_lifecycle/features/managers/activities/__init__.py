"""Activities of crawl managers: the cycles of users' classes, and the work before and after
them.
"""
