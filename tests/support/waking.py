"""Wake-ups in a testbed: correct ones, and every kind of wrong ones."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from crawler_lifecycle.activities.poll_step import Recorder
from crawler_lifecycle.background import Beside
from crawler_lifecycle.ports.cluster import Changed, Observer
from crawler_lifecycle.ports.polls import ObserverHealth
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.worker.recording import Recording
from tests.support.fakes.observer import FakeObserver
from tests.support.testbed import WorkflowHarness

Tasks = frozenset[tuple[int, int]] | None

MODES = ("off", "on", "duplicated", "late", "wrong run", "storm")
LATE_S = 0.7
#: Further runs that are reported: no testbed has that many.
NOBODYS = (77, 10**6, 10**12)


@dataclass
class Unruly:
    """An observer that passes on another one's reports as its mode says."""

    seeing: FakeObserver
    mode: str
    timers: list[threading.Timer] = field(default_factory=list)

    def watch(self, changed: Changed, over: threading.Event) -> None:
        if self.mode == "storm":
            threading.Thread(target=self._storm, args=(changed, over), daemon=True).start()
        self.seeing.watch(lambda run_id, at, tasks: self._tell(changed, run_id, at, tasks), over)
        for timer in self.timers:
            timer.cancel()
            timer.join()

    def health(self) -> ObserverHealth:
        return self.seeing.health()

    def _tell(self, changed: Changed, run_id: int, at: datetime, tasks: Tasks) -> None:
        if self.mode == "late":
            timer = threading.Timer(LATE_S, changed, (run_id, at, tasks))
            timer.start()
            self.timers.append(timer)
        elif self.mode == "wrong run":
            for other in {*NOBODYS, *(key[0] for key in self.seeing.cluster.phases())} - {run_id}:
                changed(other, at, tasks)
        else:
            for _ in range(3 if self.mode == "duplicated" else 1):
                changed(run_id, at, tasks)

    def _storm(self, changed: Changed, over: threading.Event) -> None:
        chosen = random.Random(1)
        while not over.wait(0.005):
            known = [key[0] for key in self.seeing.cluster.phases()]
            changed(chosen.choice([*known, *NOBODYS]), datetime.now(UTC), None)


@asynccontextmanager
async def waking(testbed: WorkflowHarness, mode: str) -> AsyncIterator[list[Recording]]:
    """The working wakers of this mode: none if ``off``, two independent ones if duplicated."""
    assert mode in MODES
    count = {"off": 0, "duplicated": 2}.get(mode, 1)
    observers: list[Observer] = [Unruly(FakeObserver(testbed.cluster), mode) for _ in range(count)]
    recorder = Recorder(
        testbed.store.polls, testbed.store.retries, testbed.cluster, testbed.parts.policies
    )
    notify = Workflows(testbed.client).poll_recorded
    wakers = [
        Recording(observer, testbed.store.wake_ups, recorder, notify) for observer in observers
    ]
    async with Beside() as beside:
        for waker in wakers:
            beside.start(waker.run())
        yield wakers
