"""``crawlctl doctor``: checks everything that a run needs, and names a cure for each finding."""
