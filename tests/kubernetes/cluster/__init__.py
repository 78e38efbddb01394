"""A real Kubernetes for tests on one machine: built from Go modules, run on loopback, removed
without a trace.
"""
