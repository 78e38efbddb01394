"""``crawlctl``: the command line.

A module is imported only when a verb needs it, which keeps every verb fast.
"""
