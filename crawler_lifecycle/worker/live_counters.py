"""Puts what running crawlers have counted on record, every few seconds and without the price of a look.

The observer reads, the database keeps what is higher than before. Nothing else comes of it: no status, no event, and no
look is early or late for it. Whatever fails here costs age and never the truth: the look that is due counts as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from crawler_lifecycle.domain.errors import LifecycleError, RunNotFound
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports import Counted, Observer, RunStore

log = logging.getLogger(__name__)

#: Seconds between two turns: with the time that they take, a counter is on record within 5 s.
TURN_S = 2.0
#: Tasks of one run that are written in one transaction.
PAGE = 500
#: Seconds after which a task that nobody spoke of is forgotten: of very many, each has its turn in a few minutes.
FORGET_S = 3600.0

_Key = tuple[RunRef, int, int]


class Counting:
    """Turn after turn, in the event loop of a worker; what blocks happens in threads.

    Of several observers of one local cluster the first one counts; others do once they have moved up.
    """

    def __init__(
        self,
        observer: Observer,
        store: RunStore,
        *,
        turn_s: float = TURN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observer = observer
        self._store = store
        self._turn_s = turn_s
        self._clock = clock
        self._written: dict[_Key, tuple[Counters, float]] = {}
        self._trouble: str | None = None
        self._raised = 0

    def state(self) -> Mapping[str, object]:
        """How it stands, for a probe."""
        return {"tasks": len(self._written), "raised": self._raised, "problem": self._trouble}

    async def run(self, over: asyncio.Event) -> None:
        """Count until ``over`` is set. Raises nothing."""
        while not over.is_set():
            await asyncio.to_thread(self.turn)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self._turn_s)

    def turn(self) -> None:
        """Read, and write what is another reading than the one that was written last."""
        health = self._observer.health()
        if not health.up or health.place:
            return
        try:
            read = self._observer.counted()
        except Exception as error:  # it may never end the worker that it runs in
            self._ail("counters cannot be read", error)
            return
        now, news = self._clock(), defaultdict[RunRef, list[Counted]](list)
        for one in read:
            known = self._written.get(_key(one))
            if known is not None and known[0] == one.counters:
                self._written[_key(one)] = (one.counters, now)
            else:
                news[one.run].append(one)
        wrote = [self._write(run, counted, now) for run, counted in news.items()]
        if all(wrote) and self._trouble is not None:
            log.info("counters are read and written again")
            self._trouble = None
        self._written = {key: kept for key, kept in self._written.items() if now - kept[1] < FORGET_S}

    def _write(self, run: RunRef, counted: Sequence[Counted], now: float) -> bool:
        for start in range(0, len(counted), PAGE):
            page = counted[start : start + PAGE]
            try:
                self._raised += self._store.record_counts(run, page)
            except RunNotFound:
                pass  # of a database that was restored or is another one: audits tell of it
            except Exception as error:  # as above
                self._ail(f"counters of run {run.run_id} cannot be written", error)
                return False
            self._written |= {_key(one): (one.counters, now) for one in page}
        return True

    def _ail(self, what: str, error: Exception) -> None:
        """Say it once, not at every turn."""
        kind = type(error).__name__
        if kind == self._trouble:
            return
        self._trouble = kind
        trace = None if isinstance(error, LifecycleError | OSError) else error
        log.warning("%s (%s); the looks that are due count as well", what, error, exc_info=trace)


def _key(one: Counted) -> _Key:
    return one.run, one.attempt, one.index
