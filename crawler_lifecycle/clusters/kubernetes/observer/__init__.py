"""The observer: two watches for any number of runs."""
