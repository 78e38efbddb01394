"""Graphs: steps with dependencies. ``spec`` defines them, and ``engine`` has their rules. The code
is pure.
"""
