"""The local cluster, whose crawlers are processes on this machine, each with a small supervisor.

This file imports nothing, because the supervisor imports the package and must start within
milliseconds.
"""
