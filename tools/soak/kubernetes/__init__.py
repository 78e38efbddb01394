"""A soak on Kubernetes: a seeded plan of runs and faults on a real API server, and a judge that
uses no information from the service.
"""
