"""Pages of everything else: a module a subject."""
