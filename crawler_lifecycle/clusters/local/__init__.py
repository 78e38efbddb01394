"""The local cluster: crawlers as processes of this machine, each under a small supervisor.

This file imports nothing, because the supervisor imports the package and has to start within milliseconds.
"""
