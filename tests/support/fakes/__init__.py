"""Fakes of the ports, which pass the same contract tests as the adapters.

This file imports none of them.
"""
