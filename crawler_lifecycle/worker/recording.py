"""Immediately records the changes that the observer notices, and polls runs whose planned poll is
missing.

A change is first recorded by a complete poll in this process. The workflow of the run is notified
afterwards, so that it counts the tasks and continues. A status is therefore correct even while
Temporal is unavailable or busy. Verdicts, deployments, retries and stops are left to the workflow.

The observer watches in its own thread, polls are made in a few threads, and signals are sent in the
event loop. None of these waits for the others. A failure here only costs time, because the workflow
polls as planned.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.poll_step import Recorder
from crawler_lifecycle.background import Failures, Loop
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.wake_ups import Change, Changes, Signal, Signals, Tasks, WakeUpState
from crawler_lifecycle.ports.cluster import Changed, Observer
from crawler_lifecycle.ports.polls import ObserverHealth
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.runs.reads import WakeUpStore
from crawler_lifecycle.temporal.errors import answering

#: Seconds that an observer waits for each observer that started before it. By then, the poll is
#: usually recorded.
STAGGER_S = 0.5
#: The maximum number of concurrent polls and signals.
POLLS_AT_ONCE = 4
SIGNALS_AT_ONCE = 20
#: Seconds between two checks of the observer's health.
HEALTH_S = 1.0
#: Seconds until the next turn after an error (the first pause and the longest pause), and for one
#: signal. Together, these times are less than the 10 s after Temporal's return within which a
#: verdict must follow.
RETRY_S = (0.5, 1.0)
SEND_S = 5.0
#: Seconds between two searches for runs whose planned poll is missing, and the allowed delay of
#: such a poll.
SEARCH_S = 5.0
LATE_S = 8.0

#: Values of the metric label ``what``: noticed changes; changes that were merged with an earlier
#: change or that a poll had already seen; recorded polls; delivered signals; failed tries.
NOTICED = "noticed"
COALESCED = "coalesced"
RECORDED = "recorded"
SENT = "sent"
FAILED = "failed"


@dataclass(eq=False)
class Recording:
    """Records the changes that an observer notices, and notifies the workflows.

    If ``observer`` is ``None``, this class only polls runs whose planned poll is missing.
    ``notify`` sends the signal to a workflow id, and returns whether that workflow is open. Its
    second argument is true if the workflow only needs to count the tasks because a poll was
    recorded.
    """

    observer: Observer | None
    store: WakeUpStore
    recorder: Recorder
    notify: Callable[[str, bool], Awaitable[bool]]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._changes = Changes()
        self._signals = Signals()
        self._changed = asyncio.Event()
        self._unsent = asyncio.Event()
        self._lock = threading.Lock()
        self._noticed: list[tuple[int, Change]] = []
        self._polling: set[asyncio.Task[None]] = set()
        self._failures = Failures("recording noticed changes", "the workflows poll as planned")
        self._sending = Loop(
            "notifying workflows", 0.0, meanwhile="verdicts and retries wait", retry_s=RETRY_S
        )
        self._threads = ThreadPoolExecutor(POLLS_AT_ONCE, thread_name_prefix="recorder")
        self._up = False
        self.counts: Counter[str] = Counter()

    def health(self) -> ObserverHealth:
        """Return the health of the observer."""
        return (
            ObserverHealth(False, "there is none")
            if self.observer is None
            else self.observer.health()
        )

    def state(self) -> Mapping[str, object]:
        """Return the current state for a probe."""
        health = self.health()
        unsent = len(self._signals)
        problem = self._failures.problem or self._sending.failures.problem
        up = "up" if health.up else f"down: {health.problem}"
        return {
            "observer": up,
            "tasks": health.watched,
            "unsent": unsent,
            "problem": problem,
            **self.counts,
        }

    async def run(self) -> None:
        """Observe, record and notify until cancelled. Never raises."""
        ended = threading.Event()
        loop = asyncio.get_running_loop()

        def changed(run_id: int, at: datetime, tasks: Tasks) -> None:
            with self._lock:
                self._noticed.append((run_id, Change(at, tasks)))
                first = len(self._noticed) == 1
            if first and not ended.is_set():
                loop.call_soon_threadsafe(self._changed.set)

        watching = threading.Thread(
            target=self._watch, args=(changed, ended), name="observer", daemon=True
        )
        watching.start()
        search = Loop("the search for missing polls", SEARCH_S, first_s=SEARCH_S)
        polling = Loop("handling noticed changes", 0.0, retry_s=(1.0, 30.0))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(polling.run(self._poll_due))
                group.create_task(self._sending.run(self._send_due))
                group.create_task(search.run(self._find_unverified))
        finally:
            ended.set()
            self._threads.shutdown(wait=False, cancel_futures=True)
            await asyncio.to_thread(watching.join, 5.0)
            meters.observer_up(self.health().up)

    def _watch(self, changed: Changed, over: threading.Event) -> None:
        if self.observer is not None:
            self.observer.watch(changed, over)

    async def _poll_due(self) -> None:
        """Wait at most ``HEALTH_S`` seconds for a change or a due poll, and then begin the due
        polls.
        """
        full = len(self._polling) >= POLLS_AT_ONCE  # the end of a poll also sets the event
        left = HEALTH_S if full else self._changes.next_at() - self.clock()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(max(left, 0.0), HEALTH_S)):
                await self._changed.wait()
        self._changed.clear()
        with self._lock:
            noticed, self._noticed = self._noticed, []
        now = self.clock()
        health = self.health()
        delay = health.place * STAGGER_S
        fresh = sum(self._changes.noticed(run_id, change, now, delay) for run_id, change in noticed)
        self._count(NOTICED, len(noticed))
        self._count(COALESCED, len(noticed) - fresh)
        self._note_health(health.up)
        for run_id, change in self._changes.take(self.clock(), POLLS_AT_ONCE - len(self._polling)):
            task = asyncio.create_task(self._poll(run_id, change))
            self._polling.add(task)
            task.add_done_callback(self._polled)

    def _note_health(self, up: bool) -> None:
        """Publish the health of the observer.

        When it has recovered, failed polls are retried.
        """
        meters.observer_up(up)
        if up and not self._up:
            self._changes.retry_now(self.clock())
        self._up = up

    def _polled(self, task: asyncio.Task[None]) -> None:
        self._polling.discard(task)
        self._changed.set()

    async def _poll(self, run_id: int, change: Change) -> None:
        """Poll a run, and note the signal for its workflow."""
        try:
            loop = asyncio.get_running_loop()
            target = await loop.run_in_executor(self._threads, self._target, run_id, change.at)
            recorded = None
            if target is not None:
                fence = Fence(run_id, target.attempt, target.owner_run_id or "", target.run.uid)
                source = "look" if change.at is None else "wake"
                order = (fence, source, change.tasks)
                recorded = await loop.run_in_executor(self._threads, self.recorder.record, *order)
        except Exception as error:
            self._count(FAILED, 1)
            self._failures.failed(error)
            if self._changes.failed(run_id, change, self.clock()):
                await self._ask_to_poll(run_id)
            return
        if self._failures.count:
            self._changes.retry_now(self.clock())
        self._failures.worked()
        if recorded is None:
            self._changes.polled(run_id, self.clock())
        else:
            self._count(RECORDED, 1)
            self._changes.polled(run_id, self.clock(), recorded.seconds, recorded.again_s)
        if target is not None and (recorded is None or recorded.changed):
            self._add(
                run_id, target.workflow_id, recorded=recorded is not None and recorded.spares_poll
            )

    def _target(self, run_id: int, at: datetime | None) -> WakeUpState | None:
        """Return the row of a run that must be polled; ``None`` if it has already been polled or
        has no owner.
        """
        target = self.store.wake_target(run_id)
        if target is None or target.ended or target.workflow_id is None:
            return None
        if at is None:
            late = utc_now() - timedelta(seconds=LATE_S)
            return target if target.due_at is not None and target.due_at < late else None
        second = self.health().place > 0
        seen = target.verified_at is not None and target.verified_at >= at
        return None if second and seen else target

    async def _ask_to_poll(self, run_id: int) -> None:
        """Leave the poll to the workflow, because this process cannot poll."""
        # The database may be the cause. The workflow polls as planned.
        with contextlib.suppress(Exception):
            target = await asyncio.to_thread(self.store.wake_target, run_id)
            if target is not None and not target.ended:
                self._add(run_id, target.workflow_id, recorded=False)

    def _add(self, run_id: int, workflow_id: str | None, *, recorded: bool) -> None:
        if workflow_id is not None:
            self._signals.add(Signal(run_id, workflow_id, recorded))
            self._unsent.set()

    async def _send_due(self) -> None:
        """Wait for signals, and send those that are due.

        If a signal fails, its error is raised after all others were sent.
        """
        left = self._signals.next_at() - self.clock()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(max(left, 0.0), HEALTH_S)):
                await self._unsent.wait()
        self._unsent.clear()
        while due := self._signals.due(self.clock(), SIGNALS_AT_ONCE):
            results = await asyncio.gather(
                *(self._send(signal) for signal in due), return_exceptions=True
            )
            errors = [found for found in results if isinstance(found, BaseException)]
            self._count(FAILED, len(errors))
            if errors:
                raise errors[0]

    async def _send(self, signal: Signal) -> None:
        async with answering(SEND_S):
            heard = await self.notify(signal.workflow_id, signal.recorded)
        self._signals.sent(signal, self.clock())
        self._count(SENT, int(heard))

    async def _find_unverified(self) -> None:
        """Find the runs whose planned poll is missing because Temporal is unavailable or its queues
        are full.
        """
        late = await asyncio.to_thread(self.store.unverified, utc_now() - timedelta(seconds=LATE_S))
        for target in late:
            self._changes.noticed(target.run.run_id, Change(tasks=None), self.clock())
        if late:
            self._changed.set()

    def _count(self, what: str, by: int) -> None:
        self.counts[what] += by
        meters.count(meters.WAKE_UPS, by, what=what)
