"""Graphs: steps that depend on each other."""
