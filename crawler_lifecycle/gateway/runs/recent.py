"""Comparisons with earlier runs: one run with the last good run of its crawler, and the last runs
of each crawler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.ttl_cache import TtlCache
from crawler_lifecycle.ports.runs import CRAWLERS_MAX, RecentRun, RunRow
from crawler_lifecycle.store.runs.reads import RunReader

from .crawlers import Crawlers

#: The number of recent runs of each crawler.
EACH = 20
#: Seconds for which the answer is reused.
FRESH_S = 5.0
#: A run has unusually few items if it has less than this share of the median of the previous runs.
LESS = 0.7
#: With fewer previous runs than this, nothing is reported.
RUNS_MIN = 3
_COUNTERS = ("pages", "items", "errors")


@dataclass(frozen=True, slots=True)
class ComparedCounter:
    """A counter of a run, and the same counter of the previous run."""

    name: str
    now: int | None
    before: int | None
    per_minute: float | None
    """The average from the start to the end (or until now); null if it is unknown."""
    before_per_minute: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run compared with the last previous run of its crawler that completed.

    ``run_id`` is null if there is no such run.
    """

    run_id: int | None
    started_at: datetime | None
    duration_s: float | None
    """The duration of the run itself until now."""
    before_duration_s: float | None
    counters: list[ComparedCounter]


def compared(runs: RunReader, row: RunRow, now: datetime) -> Comparison:
    """Compare the run with the previous one. This call blocks."""
    found = runs.list_runs(
        crawler=row.crawler, status=[RunStatus.COMPLETED.value], before_run_id=row.run_id, limit=1
    )
    before = found[0] if found else None
    mine = _seconds(row, now)
    theirs = None if before is None else _seconds(before, now)
    counters = []
    for name in _COUNTERS:
        one = getattr(row, name)
        other = getattr(before, name, None)
        counters.append(
            ComparedCounter(name, one, other, _per_minute(one, mine), _per_minute(other, theirs))
        )
    if before is None:
        return Comparison(None, None, mine, None, counters)
    return Comparison(before.run_id, before.started_at, mine, theirs, counters)


def _seconds(row: RunRow | RecentRun, now: datetime) -> float | None:
    """Return the seconds from the start to the end (or until now).

    Clocks differ, so a negative value becomes 0.
    """
    if row.started_at is None:
        return None
    return max(0.0, ((row.ended_at or now) - row.started_at).total_seconds())


def _per_minute(count: int | None, seconds: float | None) -> float | None:
    return (
        None if count is None or seconds is None or seconds < 1 else round(count * 60 / seconds, 1)
    )


@dataclass(frozen=True, slots=True)
class CrawlerRuns:
    """The last runs of a crawler, newest first."""

    crawler: str
    runs: list[RecentRun]
    warning: str | None
    """A sentence if its last good run found unusually few items."""


@dataclass(frozen=True, slots=True)
class AllCrawlerRuns:
    """The last runs of all crawlers in the catalogue."""

    crawlers: list[CrawlerRuns]
    left_out: int
    """The number of crawlers beyond ``CRAWLERS_MAX``, which are omitted."""
    at: datetime


@dataclass(eq=False)
class RecentRuns:
    """Reads the last runs of all crawlers with one statement.

    The result is reused for ``FRESH_S`` seconds.
    """

    runs: RunReader
    crawlers: Crawlers
    clock: Clock

    def __post_init__(self) -> None:
        self._kept = TtlCache(self._ask, FRESH_S)

    async def read(self) -> AllCrawlerRuns:
        """Return the last runs. Raises ``SchedulerUnavailable`` or ``StoreUnavailable``."""
        return await self._kept.own.read()

    async def _ask(self) -> AllCrawlerRuns:
        known = sorted(await self.crawlers.all())
        now = self.clock()
        asked = known[:CRAWLERS_MAX]
        found: dict[str, list[RecentRun]] = {name: [] for name in asked}
        for one in await run_in_threadpool(self.runs.recent_runs, asked, EACH, RecentRun):
            found[one.crawler].append(one)
        rows = [CrawlerRuns(name, runs, brought_less(runs)) for name, runs in found.items()]
        return AllCrawlerRuns(rows, len(known) - len(asked), now)


def brought_less(runs: Sequence[RecentRun]) -> str | None:
    """Return a sentence if the newest completed run found unusually few items.

    ``runs`` is sorted from newest to oldest.
    """
    completed = [run for run in runs if run.status == RunStatus.COMPLETED and run.items is not None]
    before = [run for run in completed[1:] if run.lacks is None]
    if len(before) < RUNS_MIN:
        return None
    newest = completed[0]
    usual = median(run.items or 0 for run in before)
    if (newest.items or 0) >= LESS * usual:
        return None
    return (
        f"run {newest.run_id} brought {newest.items:,} items, the {len(before)} good runs "
        f"before it {usual:,g} (median)"
    )
