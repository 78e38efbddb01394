"""Deterministic code: the state machines that Temporal replays. They import domain and activity stubs only."""
