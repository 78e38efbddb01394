"""Workflows of managers and of graphs: each keeps one row going that has runs of its own."""
