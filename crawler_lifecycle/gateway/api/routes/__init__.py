"""Routes: a module a subject."""
