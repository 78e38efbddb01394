"""Retention: the removal of old rows, of files and of a run's data, and the counters of run
numbers.
"""
