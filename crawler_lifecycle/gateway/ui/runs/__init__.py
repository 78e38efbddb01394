"""Web pages of runs: the list, one run, its log and files, and actions on runs."""
