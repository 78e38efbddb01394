"""``crawlctl``: the command line. Modules are imported when a verb needs them, so that every verb answers quickly."""
