"""Deterministic code: the state machines that Temporal replays. They import the domain and activity stubs, no more."""
