"""Protocols for everything outside that the lifecycle needs, with the values that cross them.

Activities depend on these and on nothing behind them. Adapters implement them, and so do the fakes in
``tests/support/fakes``; both pass the same contract tests (``tests/contracts``).

Conventions: all methods block and may be called from several threads at once. All times are aware datetimes in UTC.
An error that says nothing about the object asked for (an outage, a refusal, a timeout) is raised as the matching
``*Unavailable`` error of ``domain.errors`` and is never turned into a value.
"""
