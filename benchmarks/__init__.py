"""Benchmarks, each with a baseline that is measured in the same run.

``python -m benchmarks [history|throughput]``.

These machines are noisy, so compare medians and ratios, and never single seconds.
"""
