"""``crawlctl``: the command line.

Modules are imported only when a verb needs them, which makes every verb fast.
"""
