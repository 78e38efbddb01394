"""The status bar: the state of each part of the installation, with the time at which it was
checked.

All readers share it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from anyio import CapacityLimiter, to_thread

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.compose import SERVED_BY
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.corrections import wrong_words
from crawler_lifecycle.domain.audits.overdue import overdue_words
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.store.store import Store, StoreHealth
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.operator.queue_findings import judged

from .ttl_cache import CachedAnswer, TtlCache

#: Seconds for which the state is reused.
FRESH_S = 3.0
#: The same for the state of the task queues, which is expensive to get.
QUEUES_S = 15.0
#: Seconds that a reader waits for a new state of the task queues.
QUEUES_WAIT_S = 1.0
#: Seconds that a check can take.
READY_TIMEOUT_S = 3.0
#: Seconds without a read of the outbox after which the stream counts as stopped.
SILENT_S = 10.0
_WEEK = timedelta(days=7)
#: The display names of the systems that the gateway needs, by the keys of ``Needs``.
NEEDED = {"database": "the database", "temporal": "Temporal"}

Level = Literal["ok", "asking", "warn", "bad"]
"""``asking`` means that the state is not known yet, because the first check is still running."""
#: All levels, from the best to the worst.
_LEVELS: tuple[Level, ...] = ("ok", "asking", "warn", "bad")


@dataclass(frozen=True, slots=True)
class HealthPart:
    """One part of the installation."""

    name: str
    """``database``, ``temporal``, ``polls``, ``stream``, or ``queue`` with the name and kind of a
    task queue.
    """
    level: Level
    text: str
    """A sentence about its state."""
    fix: str | None
    at: datetime
    """The time at which this state was checked."""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The state of all parts."""

    level: Level
    """The level of the worst part."""
    parts: list[HealthPart]
    wrong: str
    """A sentence with the longest time for which a recorded status may have been untrue during the
    last seven days.
    """
    worst_s: float | None
    """The longest time in seconds for which a status was untrue; null if there was none or if the
    time is not known.
    """
    at: datetime


@dataclass(eq=False)
class Needs:
    """The check of the database and of Temporal.

    The result for each is ``ok`` or its error. Concurrent calls share one check.
    """

    health: StoreHealth
    workflows: Workflows

    def __post_init__(self) -> None:
        # The checks have two threads of their own, because requests can use up all other threads if
        # the database hangs.
        self._threads = CapacityLimiter(2)
        self._answer = CachedAnswer(self._ask, 0.0)

    async def __call__(self) -> dict[str, str]:
        return dict(await self._answer.read())

    async def _ask(self) -> dict[str, str]:
        ping = to_thread.run_sync(self.health.ping, abandon_on_cancel=True, limiter=self._threads)
        database, temporal = await asyncio.gather(_check(ping), _check(self.workflows.ping()))
        return {"database": database, "temporal": temporal}


async def _check(probe: Awaitable[None]) -> str:
    try:
        await asyncio.wait_for(probe, READY_TIMEOUT_S)
    except TimeoutError:
        return f"no answer within {READY_TIMEOUT_S:g} s"
    except LifecycleError as error:
        return str(error)
    return "ok"


@dataclass(eq=False)
class Health:
    """Creates the status bar, again after ``FRESH_S`` seconds, and until then all readers get the
    same one.
    """

    needs: Callable[[], Awaitable[Mapping[str, str]]]
    workflows: Workflows
    feed: Feed
    store: Store
    clock: Clock

    def __post_init__(self) -> None:
        self._strip = TtlCache(self._ask, FRESH_S)
        self._queues = CachedAnswer(self._ask_queues, QUEUES_S)
        self._threads = CapacityLimiter(1)

    async def read(self) -> HealthReport:
        """Return the state of all parts. This method never raises."""
        return await self._strip.own.read()

    async def read_within(self, seconds: float) -> HealthReport | None:
        """Return the state of all parts.

        If that takes longer than ``seconds``, return the last known state or ``None``.
        """
        return await self._strip.own.read_within(seconds)

    async def _ask(self) -> HealthReport:
        now = self.clock()
        answers, (polls, wrong, worst_s) = await asyncio.gather(self.needs(), self._ledger(now))
        parts = [_part(name, answer, now) for name, answer in answers.items()]
        if answers.get("temporal") == "ok":
            # If a worker is gone, this answer can take seconds.
            queues = await self._queues.read_within(QUEUES_WAIT_S)
            asking = HealthPart(
                "queue",
                "asking",
                "task queue workers are still being checked",
                None,
                now,
            )
            parts += [asking] if queues is None else queues[only() is None]
        parts += [polls, self._stream(now)]
        worst = max((part.level for part in parts), key=_LEVELS.index)
        return HealthReport(worst, parts, wrong, worst_s, now)

    async def _ledger(self, now: datetime) -> tuple[HealthPart, str, float | None]:
        """Return the part about polls, and the longest time for which a status was untrue this
        week, as a sentence and in seconds.
        """

        def read() -> tuple[HealthPart, str, float | None]:
            late = self.store.overdue.overdue_polls(now)
            found = self.store.corrections.correction_summary(now - _WEEK)
            words = wrong_words(
                found.worst_ms, {kind.kind: kind.count for kind in found.kinds}, "this week"
            )
            worst_s = None if found.worst_ms is None else found.worst_ms / 1000
            if not late.count and not late.lost:
                return (
                    HealthPart("polls", "ok", "no poll is overdue", None, now),
                    words,
                    worst_s,
                )
            fix = (
                "see the other parts: a poll needs Temporal, a worker with the role cluster, and "
                "the cluster"
            )
            return (
                HealthPart("polls", "bad", overdue_words(late, now) or "", fix, now),
                words,
                worst_s,
            )

        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                return await to_thread.run_sync(read, abandon_on_cancel=True, limiter=self._threads)
        except (TimeoutError, LifecycleError) as error:
            why = str(error) or f"the database did not answer within {READY_TIMEOUT_S:g} s"
            part = HealthPart(
                "polls", "bad", f"it is not known whether runs are polled: {why}", None, now
            )
            return part, "not known at the moment", None

    async def _ask_queues(self) -> tuple[list[HealthPart], list[HealthPart]]:
        """Return a part for each task queue, in two versions: one for callers of a single project,
        without the work of others, and one for callers with all projects.
        """
        unreachable = "crawlctl doctor shows what is wrong with Temporal"
        try:
            queues = await self.workflows.task_queues([names.QUEUE_MAIN], list(SERVED_BY))
        except LifecycleError as error:
            bad = HealthPart(
                "queue", "bad", f"the task queues are not known: {error}", unreachable, self.clock()
            )
            return [bad], [bad]
        now = self.clock()
        parts = (list[HealthPart](), list[HealthPart]())
        for queue, told in itertools.product(queues, (False, True)):
            found = judged(queue, SERVED_BY[queue.name], unreachable, told=told)
            name = f"{queue.name} ({queue.kind})"
            parts[told].append(HealthPart(f"queue {name}", found.level, found.text, found.fix, now))
        return parts

    def _stream(self, now: datetime) -> HealthPart:
        silent_s = self.feed.silent_s
        readers = self.feed.readers
        if silent_s is None:
            return HealthPart("stream", "ok", "nobody reads the event stream", None, now)
        many = "1 reader" if readers == 1 else f"{readers} readers"
        many = many if only() is None else "it is read"  # the readers can belong to other projects
        text = f"{many}, the outbox was read {silent_s:.0f} s ago"
        if silent_s < SILENT_S:
            return HealthPart("stream", "ok", text, None, now)
        return HealthPart(
            "stream", "bad", f"{text}: changes arrive late", "wait until the database answers", now
        )


def _part(name: str, answer: str, now: datetime) -> HealthPart:
    what = NEEDED[name]
    if answer == "ok":
        return HealthPart(name, "ok", f"{what} answers", None, now)
    return HealthPart(
        name, "bad", f"{what} does not answer: {answer}", "crawlctl doctor shows what is wrong", now
    )
