"""The fault tests: the whole service between real components, random faults, and an oracle that
uses no code of the service.

docs/faults.md has the results. `python3 -m tools faults --seed 1` executes one seed.
"""
