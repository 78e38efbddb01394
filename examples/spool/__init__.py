"""A third kind of cluster, outside of the package: tasks are folders, and one small process keeps
each of them.
"""
