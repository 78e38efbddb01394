"""Live counters: records the counters of running crawlers every few seconds, without a poll.

The observer reads the counters. The database keeps the higher value of each counter. No status,
event or poll time changes. After a failure here, the recorded counters are out of date only until
the next poll, which reads the counters too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.blocked import BlockReport
from crawler_lifecycle.domain.errors import RunNotFound
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports.cluster import Observer
from crawler_lifecycle.ports.polls import LiveCounters
from crawler_lifecycle.store.runs.live_counters import LiveCounterStore

#: Seconds between two turns. Including the duration of a turn, a counter is recorded within 5 s.
TURN_S = 2.0
#: The maximum number of tasks of a run that are written in one transaction.
PAGE = 500
#: Seconds without a report until a task is forgotten. If there are a great many tasks, each is read
#: only every few minutes.
FORGET_S = 3600.0

_Key = tuple[RunRef, int, int]
_Report = tuple[Counters, tuple[BlockReport, ...] | None]


@dataclass(eq=False)
class Counting:
    """Records counters repeatedly in the event loop of a worker.

    Blocking calls run in threads.

    If several observers watch one local cluster, only the first one reads counters. When it ends,
    the next one takes over.
    """

    observer: Observer
    store: LiveCounterStore
    turn_s: float = TURN_S
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._written: dict[_Key, tuple[_Report, float]] = {}
        self._raised = 0
        self._loop = Loop(
            "recording live counters", self.turn_s, meanwhile="each poll also records the counters"
        )

    def state(self) -> Mapping[str, object]:
        """Return the current state for a probe."""
        return {
            "tasks": len(self._written),
            "raised": self._raised,
            "problem": self._loop.failures.problem,
        }

    async def run(self) -> None:
        """Record counters until cancelled. Never raises."""
        await self._loop.run(lambda: asyncio.to_thread(self.turn))

    def turn(self) -> None:
        """Read the counters, and write those that changed since the last write.

        Raises the error of the read, or the last error of a write. A failed write does not prevent
        the writes for other runs.
        """
        health = self.observer.health()
        if not health.up or health.place:
            return
        read = self.observer.counted()
        now = self.clock()
        news = defaultdict[RunRef, list[LiveCounters]](list)
        for counters in read:
            known = self._written.get(_key(counters))
            if known is not None and known[0] == (counters.counters, counters.blocked):
                self._written[_key(counters)] = ((counters.counters, counters.blocked), now)
            else:
                news[counters.run].append(counters)
        error: Exception | None = None
        for run, counted in news.items():
            try:
                self._write(run, counted, now)
            except Exception as refused:  # the error is raised below
                error = refused
        self._written = {
            key: kept for key, kept in self._written.items() if now - kept[1] < FORGET_S
        }
        if error is not None:
            raise error

    def _write(self, run: RunRef, counted: Sequence[LiveCounters], now: float) -> None:
        for start in range(0, len(counted), PAGE):
            page = counted[start : start + PAGE]
            # The database may have been restored or replaced, so that the run is missing. Audits
            # report this.
            with contextlib.suppress(RunNotFound):
                self._raised += self.store.record_counts(run, page)
            self._written |= {
                _key(counters): ((counters.counters, counters.blocked), now) for counters in page
            }


def _key(one: LiveCounters) -> _Key:
    return one.run, one.attempt, one.index
