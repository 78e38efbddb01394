"""A third kind of cluster, outside the package: tasks are folders, and a small process supervises
each task.
"""
