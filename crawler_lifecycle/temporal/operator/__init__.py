"""Facts about a Temporal server for operators: version, search attributes, and workers that poll
task queues.
"""
