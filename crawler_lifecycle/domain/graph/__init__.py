"""Graphs: steps with dependencies. Their form is in ``spec``, their life in ``engine``. Pure."""
