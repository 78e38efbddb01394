"""Pages of runs: the list, one run, its log and files, and what is done about runs."""
