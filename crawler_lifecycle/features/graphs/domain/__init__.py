"""Graphs: steps with dependencies.

``spec`` has their definition, ``engine`` their rules. The code is pure.
"""
