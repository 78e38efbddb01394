"""A real Kubernetes for the tests on one machine: built from Go modules, run on loopback, gone
without a trace.
"""
