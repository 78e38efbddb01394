"""Runs beside the runs before them: of one run its crawler's last good one, of each crawler its last runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.kept import Kept
from crawler_lifecycle.ports.runs import CRAWLERS_MAX, RecentRun, RunRow
from crawler_lifecycle.store.runs.reads import RunReader

from .crawlers import Crawlers

#: Runs of each crawler, and seconds for which they are good enough for everybody who asks.
EACH, FRESH_S = 20, 5.0
#: With fewer items than this part of what its runs before brought, a run brought strikingly few; of fewer runs before
#: nothing is said.
LESS, RUNS_MIN = 0.7, 3
_COUNTERS = ("pages", "items", "errors")


@dataclass(frozen=True, slots=True)
class Compared:
    """A counter of a run beside that of the run before."""

    name: str
    now: int | None
    before: int | None
    per_minute: float | None
    """On average, from the start to the end, or to now; null where that is unknown."""
    before_per_minute: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run beside its crawler's last run before it that completed; ``run_id`` is null where there is none."""

    run_id: int | None
    started_at: datetime | None
    duration_s: float | None
    """Of the run itself, so far."""
    before_duration_s: float | None
    counters: list[Compared]


def compared(runs: RunReader, row: RunRow, now: datetime) -> Comparison:
    """The run beside the one before. Blocks."""
    found = runs.list_runs(crawler=row.crawler, status=[RunStatus.COMPLETED.value], before_run_id=row.run_id, limit=1)
    before = found[0] if found else None
    mine, theirs = _seconds(row, now), None if before is None else _seconds(before, now)
    counters = []
    for name in _COUNTERS:
        one, other = getattr(row, name), getattr(before, name, None)
        counters.append(Compared(name, one, other, _per_minute(one, mine), _per_minute(other, theirs)))
    return Comparison(
        before.run_id if before is not None else None,
        before.started_at if before is not None else None,
        mine,
        theirs,
        counters,
    )


def _seconds(row: RunRow | RecentRun, now: datetime) -> float | None:
    """From the start to the end or, before that, to now. Clocks differ: never negative."""
    if row.started_at is None:
        return None
    return max(0.0, ((row.ended_at or now) - row.started_at).total_seconds())


def _per_minute(count: int | None, seconds: float | None) -> float | None:
    return None if count is None or seconds is None or seconds < 1 else round(count * 60 / seconds, 1)


@dataclass(frozen=True, slots=True)
class CrawlerRuns:
    """The last runs of a crawler, newest first."""

    crawler: str
    runs: list[RecentRun]
    less: str | None
    """A sentence where its last good run brought strikingly few items."""


@dataclass(frozen=True, slots=True)
class AllCrawlerRuns:
    """The same of every crawler of the catalogue."""

    crawlers: list[CrawlerRuns]
    left_out: int
    """Crawlers beyond ``CRAWLERS_MAX``."""
    at: datetime


class RecentRuns:
    """The last runs of all crawlers, by one statement for everybody who asks within ``FRESH_S`` seconds."""

    def __init__(
        self, runs: RunReader, crawlers: Crawlers, clock: Callable[[], datetime], fresh_s: float = FRESH_S
    ) -> None:
        self._runs, self._crawlers, self.clock = runs, crawlers, clock
        self._kept = Kept(self._ask, fresh_s)

    async def read(self) -> AllCrawlerRuns:
        """Raises what the scheduler service and the database raise when they do not answer."""
        return await self._kept.read()

    async def _ask(self) -> AllCrawlerRuns:
        known = sorted(await self._crawlers.all())
        now, asked = self.clock(), known[:CRAWLERS_MAX]
        found: dict[str, list[RecentRun]] = {name: [] for name in asked}
        for one in await run_in_threadpool(self._runs.recent_runs, asked, EACH):
            found[one.crawler].append(one)
        rows = [CrawlerRuns(name, runs, brought_less(runs)) for name, runs in found.items()]
        return AllCrawlerRuns(rows, len(known) - len(asked), now)


def brought_less(runs: Sequence[RecentRun]) -> str | None:
    """Say in a sentence that the newest good run brought strikingly fewer items than those before; ``None``: it did
    not. ``runs`` are newest first."""
    good = [run for run in runs if run.status == RunStatus.COMPLETED and run.items is not None]
    if len(good) <= RUNS_MIN:
        return None
    newest, *before = good
    usual = median(run.items or 0 for run in before)
    if (newest.items or 0) >= LESS * usual:
        return None
    return (
        f"run {newest.run_id} brought {newest.items:,} items, the {len(before)} good runs before it {usual:,g} (median)"
    )
