"""An observer of the cluster in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.cluster import Changed
from crawler_lifecycle.ports.polls import LiveCounters, ObserverHealth

from .cluster import FakeCluster


@dataclass
class FakeObserver:
    """Implements ``Observer`` over a ``FakeCluster`` in real time.

    ``problem`` stops it until it is ``None`` again. ``place`` is what its health reports.
    """

    cluster: FakeCluster
    every_s: float = 0.01
    problem: str | None = None
    place: int = 0

    def __post_init__(self) -> None:
        self._watching = 0
        self._known: dict[tuple[int, int, int], Phase] = {}

    def watch(self, changed: Changed, over: threading.Event) -> None:
        known: dict[tuple[int, int, int], Phase] = {}
        self._watching += 1
        try:
            while not over.is_set():
                if self.problem is None:
                    phases = self.cluster.phases()
                    for key in [
                        key for key, phase in phases.items() if known.get(key) is not phase
                    ]:
                        changed(key[0], datetime.now(UTC), frozenset({key[1:]}))
                    self._known = known = phases
                over.wait(self.every_s)
        finally:
            self._watching -= 1

    def counted(self) -> Sequence[LiveCounters]:
        return self.cluster.counted()

    def health(self) -> ObserverHealth:
        if not self._watching:
            return ObserverHealth(False, "it does not watch")
        alive = sum(phase in (Phase.WAITING, Phase.EXECUTING) for phase in self._known.values())
        return ObserverHealth(self.problem is None, self.problem, alive, self.place)
