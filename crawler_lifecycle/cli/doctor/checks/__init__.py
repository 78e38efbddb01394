"""The checks: a module a subject."""
