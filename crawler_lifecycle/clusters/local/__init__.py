"""The local cluster: crawlers are processes of this machine, and each has a small supervisor.

This file imports nothing, because the supervisor imports the package and must start within
milliseconds.
"""
