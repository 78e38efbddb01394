"""The fault tests: the whole service between real components, faults at random, an oracle without
its code.

docs/faults.md is its ledger. `python3 -m tools faults --seed 1` plays one seed.
"""
