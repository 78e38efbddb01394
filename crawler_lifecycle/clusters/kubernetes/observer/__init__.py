"""The observer: two watches, whatever the number of runs."""
