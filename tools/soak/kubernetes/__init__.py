"""A soak: a seeded plan of runs and of trouble on a real API server, and a judge whom the product
told nothing.
"""
