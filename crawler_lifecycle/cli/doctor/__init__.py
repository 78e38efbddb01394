"""``crawlctl doctor``: checks everything that a run needs, and names a fix for each finding."""
