"""A Kubernetes API server for tests: Jobs, pods and events in memory, real HTTP, and every fault on
request.

For our requests, it behaves like a real one (``tests/kubernetes`` runs the same scenarios on both),
and also does what no real one does on request: send nothing, cut a page, forget a continue token,
lose a response.
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
