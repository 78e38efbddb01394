"""Live counters: records every few seconds what running crawlers have counted, without a look.

The observer reads, the database keeps what is higher than before. It has no other effect: no status and no event
changes, and no look is earlier or later. A failure here only makes counters older: the next look reads them as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.errors import RunNotFound
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports.cluster import Observer
from crawler_lifecycle.ports.looks import Counted
from crawler_lifecycle.store.runs.live_counters import LiveCounterStore

#: Seconds between two turns: with the time that they take, a counter is on record within 5 s.
TURN_S = 2.0
#: Tasks of one run that are written in one transaction.
PAGE = 500
#: Seconds after which a task without a report is forgotten: with very many tasks, each is read every few minutes.
FORGET_S = 3600.0

_Key = tuple[RunRef, int, int]


class Counting:
    """Turn after turn, in the event loop of a worker; what blocks happens in threads.

    Of several observers of one local cluster the first one counts; others do once they have moved up.
    """

    def __init__(
        self,
        observer: Observer,
        store: LiveCounterStore,
        *,
        turn_s: float = TURN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observer = observer
        self._store = store
        self._clock = clock
        self._written: dict[_Key, tuple[Counters, float]] = {}
        self._raised = 0
        self._loop = Loop("counting between looks", turn_s, meanwhile="the looks that are due count as well")

    def state(self) -> Mapping[str, object]:
        """The present state, for a probe."""
        return {"tasks": len(self._written), "raised": self._raised, "problem": self._loop.failures.problem}

    async def run(self) -> None:
        """Count until it is cancelled. Raises nothing."""
        await self._loop.run(lambda: asyncio.to_thread(self.turn))

    def turn(self) -> None:
        """Read counters, and write those that changed since the last write.

        Raises what reading raised, or the last error of writing: the counters of the other runs are written by then.
        """
        health = self._observer.health()
        if not health.up or health.place:
            return
        read = self._observer.counted()
        now, news = self._clock(), defaultdict[RunRef, list[Counted]](list)
        for one in read:
            known = self._written.get(_key(one))
            if known is not None and known[0] == one.counters:
                self._written[_key(one)] = (one.counters, now)
            else:
                news[one.run].append(one)
        error: Exception | None = None
        for run, counted in news.items():
            try:
                self._write(run, counted, now)
            except Exception as refused:  # raised below
                error = refused
        self._written = {key: kept for key, kept in self._written.items() if now - kept[1] < FORGET_S}
        if error is not None:
            raise error

    def _write(self, run: RunRef, counted: Sequence[Counted], now: float) -> None:
        for start in range(0, len(counted), PAGE):
            page = counted[start : start + PAGE]
            with contextlib.suppress(RunNotFound):  # of a database that was restored or is another: audits report it
                self._raised += self._store.record_counts(run, page)
            self._written |= {_key(one): (one.counters, now) for one in page}


def _key(one: Counted) -> _Key:
    return one.run, one.attempt, one.index
