"""Wakes the run whose tasks changed: from an observer's notice to the signal ``look_now`` of the run's workflow.

The observer watches in a thread of its own; everything else happens in the event loop. The owner of a run is read from
the database, together with what its last look saw, and never from Temporal's visibility, which may be behind.

Whatever fails here costs time and never the truth: a run that is not woken is looked at when that is due.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.wake_ups import Wake, Wakes
from crawler_lifecycle.ports import Observer, ObserverHealth, RunStore

log = logging.getLogger(__name__)

#: Seconds that an observer leaves to each one that was there before it. A look is on record by then, as a rule.
STAGGER_S = 0.5
#: Signals that are under way at once.
SIGNALS_AT_ONCE = 20
#: Seconds between two readings of the observer's health.
HEALTH_S = 1.0

#: What is counted, as the label ``what``: changes that were noticed; those of them that were joined with an earlier one
#: or that a look had seen already; signals that were taken; tries that failed.
NOTICED, COALESCED, SENT, FAILED = "noticed", "coalesced", "sent", "failed"


class Meters(Protocol):
    """Where wake-ups are counted."""

    def count(self, what: str, by: int) -> None: ...

    def observer(self, health: ObserverHealth) -> None: ...


class Waker:
    """One observer and the wake-ups that come of it.

    ``wake`` sends ``look_now`` to a workflow id and answers whether that workflow is open.
    """

    def __init__(
        self,
        observer: Observer,
        store: RunStore,
        wake: Callable[[str], Awaitable[bool]],
        meters: Meters | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observer = observer
        self._store = store
        self._wake = wake
        self._meters = meters
        self._clock = clock
        self._wakes = Wakes()
        self._at_once = asyncio.Semaphore(SIGNALS_AT_ONCE)
        self._bell = asyncio.Event()
        self._lock = threading.Lock()
        self._noticed: dict[int, datetime] = {}
        self._notices = 0
        self._trouble: str | None = None
        self.counts: Counter[str] = Counter()

    def health(self) -> ObserverHealth:
        """The observer's."""
        return self._observer.health()

    def state(self) -> Mapping[str, object]:
        """How it stands, for a probe."""
        health = self.health()
        return {"observer": "up" if health.up else f"down: {health.problem}", "tasks": health.watched, **self.counts}

    async def run(self, over: asyncio.Event) -> None:
        """Observe and wake until ``over`` is set. Raises nothing."""
        ended, loop = threading.Event(), asyncio.get_running_loop()

        def changed(run_id: int, at: datetime) -> None:
            if self._take(run_id, at) and not ended.is_set():
                loop.call_soon_threadsafe(self._bell.set)

        thread = threading.Thread(target=self._observer.watch, args=(changed, ended), name="observer", daemon=True)
        thread.start()
        leaving = asyncio.create_task(over.wait())
        try:
            while not over.is_set():
                await self._wait(leaving)
                await self._turn()
        finally:
            leaving.cancel()
            ended.set()
            await asyncio.to_thread(thread.join, 5.0)
            self._tell_health()

    def _take(self, run_id: int, at: datetime) -> bool:
        """From the observer's thread; whether the loop must be told."""
        with self._lock:
            first = not self._noticed
            known = self._noticed.get(run_id)
            self._noticed[run_id] = at if known is None else max(known, at)
            self._notices += 1
        return first

    async def _wait(self, leaving: asyncio.Task[Any]) -> None:
        """Until something was noticed or is due, and at most for ``HEALTH_S``."""
        seconds = min(max(self._wakes.next_at() - self._clock(), 0.0), HEALTH_S)
        bell: asyncio.Task[Any] = asyncio.create_task(self._bell.wait())
        await asyncio.wait([bell, leaving], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        bell.cancel()

    async def _turn(self) -> None:
        self._bell.clear()
        with self._lock:
            noticed, self._noticed = self._noticed, {}
            notices, self._notices = self._notices, 0
        now, delay = self._clock(), self.health().place * STAGGER_S
        fresh = sum(self._wakes.changed(run_id, at, now, delay) for run_id, at in noticed.items())
        self._count(NOTICED, notices)
        self._count(COALESCED, notices - fresh)
        self._tell_health()
        while due := self._wakes.due(self._clock()):
            await self._serve(due)

    async def _serve(self, due: list[int]) -> None:
        """Decide about these runs by what the database says now, and send what is to be sent."""
        try:
            standings = await asyncio.to_thread(self._store.wake_targets, due)
            wakes = self._wakes.decide(due, standings, self._clock())
        except Exception as error:  # an accelerator may never end the worker that it runs in
            self._ail("the runs to wake cannot be read", error)
            for run_id in due:
                self._failed(run_id)
            return
        await asyncio.gather(*(self._send(wake) for wake in wakes))

    async def _send(self, wake: Wake) -> None:
        try:
            async with self._at_once:
                heard = await self._wake(wake.workflow_id)
        except Exception as error:  # as above
            self._ail(f"run {wake.run_id} cannot be woken", error)
            self._failed(wake.run_id)
            return
        if self._trouble is not None:
            log.info("runs can be woken again")
            self._trouble = None
        self._wakes.sent(wake, self._clock(), heard=heard)
        if heard:
            self._count(SENT, 1)

    def _failed(self, run_id: int) -> None:
        self._wakes.failed(run_id, self._clock())
        self._count(FAILED, 1)

    def _ail(self, what: str, error: Exception) -> None:
        """Say it once, not for every run."""
        kind = type(error).__name__
        if kind == self._trouble:
            return
        self._trouble = kind
        trace = None if isinstance(error, LifecycleError) else error
        log.warning("%s (%s); it is looked at when that is due", what, error, exc_info=trace)

    def _count(self, what: str, by: int) -> None:
        self.counts[what] += by
        if self._meters is not None and by:
            self._meters.count(what, by)

    def _tell_health(self) -> None:
        if self._meters is not None:
            self._meters.observer(self.health())
