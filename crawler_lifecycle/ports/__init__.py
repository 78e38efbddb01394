"""Protocols for the external systems that the lifecycle needs, and the values that these systems
receive and return.

Activities depend on the protocols and not on the adapters. Adapters and the fakes in
``tests/support/fakes`` implement the protocols and pass the same contract tests
(``tests/contracts``).

Conventions: all methods block and may be called from several threads at once. All times are aware
datetimes in UTC. An outage, a refusal or a timeout proves nothing about the requested object. It is
raised as the matching ``*Unavailable`` error from ``domain.errors`` and never turned into a value.
"""
