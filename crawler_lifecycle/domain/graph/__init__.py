"""Graphs: steps with dependencies. What they are (``spec``), and what becomes of them (``engine``). Pure."""
