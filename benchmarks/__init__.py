"""Figures, each beside a baseline measured in the same run.

``python -m benchmarks [history|throughput]``.

These machines are noisy: medians and ratios are what to compare, never single seconds.
"""
