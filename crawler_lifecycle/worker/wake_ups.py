"""Wake-ups: when the observer notices a change, the run's workflow gets the signal ``look_now``.

The observer watches in its own thread. Everything else happens in the event loop. The workflow of a run and the result
of its last look are read from the database. Temporal's visibility store is not used, because it may be out of date.

A failure here only costs time: a run that is not woken has its next look as planned.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from crawler_lifecycle.activities import meters
from crawler_lifecycle.background import Failures, Loop
from crawler_lifecycle.domain.wake_ups import Wake, Wakes
from crawler_lifecycle.ports.cluster import Observer
from crawler_lifecycle.ports.looks import ObserverHealth
from crawler_lifecycle.store.runs.reads import WakeUpStore

#: Seconds that an observer waits for each observer that started before it. By then the look is usually recorded.
STAGGER_S = 0.5
#: The most signals that are sent at the same time.
SIGNALS_AT_ONCE = 20
#: Seconds between two readings of the observer's health.
HEALTH_S = 1.0
#: Seconds to the next turn after an error: the first pause, and the longest.
RETRY_S = (1.0, 30.0)

#: Values of the metric label ``what``: noticed changes; changes that were joined with an earlier one or that a look had
#: already seen; delivered signals; failed tries.
NOTICED, COALESCED, SENT, FAILED = "noticed", "coalesced", "sent", "failed"


@dataclass(eq=False)
class Waker:
    """Sends wake-ups for the changes that one observer notices.

    ``wake`` sends ``look_now`` to a workflow id, and returns whether that workflow is open.
    """

    observer: Observer
    store: WakeUpStore
    wake: Callable[[str], Awaitable[bool]]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._wakes = Wakes()
        self._at_once = asyncio.Semaphore(SIGNALS_AT_ONCE)
        self._bell = asyncio.Event()
        self._lock = threading.Lock()
        self._noticed: dict[int, datetime] = {}
        self._notices = 0
        self._failures = Failures("waking runs", "their next looks come as planned")
        self.counts: Counter[str] = Counter()

    def health(self) -> ObserverHealth:
        """Return the health of the observer."""
        return self.observer.health()

    def state(self) -> Mapping[str, object]:
        """Return the present state, for a probe."""
        health = self.health()
        return {"observer": "up" if health.up else f"down: {health.problem}", "tasks": health.watched, **self.counts}

    async def run(self) -> None:
        """Observe and wake until cancelled. Raises nothing."""
        ended, loop = threading.Event(), asyncio.get_running_loop()

        def changed(run_id: int, at: datetime) -> None:
            if self._take(run_id, at) and not ended.is_set():
                loop.call_soon_threadsafe(self._bell.set)

        thread = threading.Thread(target=self.observer.watch, args=(changed, ended), name="observer", daemon=True)
        thread.start()
        try:
            await Loop("handling noticed changes", 0.0, retry_s=RETRY_S).run(self._turn)
        finally:
            ended.set()
            await asyncio.to_thread(thread.join, 5.0)
            meters.observer_up(self.health().up)

    def _take(self, run_id: int, at: datetime) -> bool:
        """Keep a noticed change; called in the observer's thread. Return whether the event loop must be woken."""
        with self._lock:
            first = not self._noticed
            known = self._noticed.get(run_id)
            self._noticed[run_id] = at if known is None else max(known, at)
            self._notices += 1
        return first

    async def _turn(self) -> None:
        """Wait for a change or a due wake-up, at most ``HEALTH_S`` seconds; then send the wake-ups that are due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(max(self._wakes.next_at() - self.clock(), 0.0), HEALTH_S)):
                await self._bell.wait()
        self._bell.clear()
        with self._lock:
            noticed, self._noticed = self._noticed, {}
            notices, self._notices = self._notices, 0
        now, delay = self.clock(), self.health().place * STAGGER_S
        fresh = sum(self._wakes.changed(run_id, at, now, delay) for run_id, at in noticed.items())
        self._count(NOTICED, notices)
        self._count(COALESCED, notices - fresh)
        meters.observer_up(self.health().up)
        while due := self._wakes.due(self.clock()):
            await self._serve(due)

    async def _serve(self, due: list[int]) -> None:
        """Decide by the present rows which of these runs to wake, and send the signals."""
        try:
            standings = await asyncio.to_thread(self.store.wake_targets, due)
            wakes = self._wakes.decide(due, standings, self.clock())
        except Exception as error:  # back off for each run, not for the whole loop
            self._failures.failed(error)
            for run_id in due:
                self._failed(run_id)
            return
        refused = [found for found in await asyncio.gather(*(self._send(wake) for wake in wakes)) if found is not None]
        for why in refused:
            self._failures.failed(why)
        if wakes and not refused:
            self._failures.worked()

    async def _send(self, wake: Wake) -> Exception | None:
        """Send one signal. Return the error of the call; ``None`` if Temporal answered."""
        try:
            async with self._at_once:
                heard = await self.wake(wake.workflow_id)
        except Exception as error:
            self._failed(wake.run_id)
            return error
        self._wakes.sent(wake, self.clock(), heard=heard)
        if heard:
            self._count(SENT, 1)
        return None

    def _failed(self, run_id: int) -> None:
        self._wakes.failed(run_id, self.clock())
        self._count(FAILED, 1)

    def _count(self, what: str, by: int) -> None:
        self.counts[what] += by
        meters.count(meters.WAKE_UPS, by, what=what)
