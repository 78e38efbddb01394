"""``crawlctl doctor``: checks everything that a run needs, and shows a fix for each finding."""
