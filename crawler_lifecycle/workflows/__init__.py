"""The workflows: deterministic code that Temporal replays.

They import only the domain and the stubs of activities.
"""
