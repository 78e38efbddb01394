"""``crawlctl``: the command line.

Modules are imported only when a verb needs them, which keeps every verb fast.
"""
