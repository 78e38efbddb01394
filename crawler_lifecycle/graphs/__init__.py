"""Graphs: what users import. It needs nothing beside the standard library and ``domain``."""
