"""Graphs and their steps."""
