"""A Kubernetes API server for tests: Jobs, pods and events in memory, real HTTP, and every fault on
command.

It does what a real one does for the requests that we make (``tests/kubernetes`` runs the same
scenarios against both), and what a real one will not do when asked: fall silent, cut a page, forget
a continue token, lose an answer.
"""

from tests.support.kube_api.driver import Driver
from tests.support.kube_api.faults import (
    Answer,
    Cut,
    Drip,
    Fault,
    Garbage,
    LostAnswer,
    Mutate,
    Reset,
    Silence,
    Stale,
    StreamEnds,
    StreamError,
    Truncated,
    throttled,
)
from tests.support.kube_api.server import FakeApiServer, Seen

__all__ = [
    "Answer",
    "Cut",
    "Drip",
    "Driver",
    "FakeApiServer",
    "Fault",
    "Garbage",
    "LostAnswer",
    "Mutate",
    "Reset",
    "Seen",
    "Silence",
    "Stale",
    "StreamEnds",
    "StreamError",
    "Truncated",
    "throttled",
]
