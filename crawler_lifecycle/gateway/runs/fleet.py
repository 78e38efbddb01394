"""The state of all crawlers, from their open incidents and their runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.waiting import Wait
from crawler_lifecycle.gateway.ttl_cache import TtlCache
from crawler_lifecycle.ports.runs import CRAWLERS_MAX, LiveRuns, RecentRun
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.store import Store

from .crawlers import Crawlers

#: Seconds for which the state is reused, and the names of crawlers.
FRESH_S = 5.0
NAMES_S = 10.0
#: The most crawlers, open incidents, and live runs of a status that are read.
NAMES_MAX = 100_000
INCIDENTS_MAX = 5_000
LIVE_MAX = 10_000
#: Hours that are counted, the present one included.
HOURS = 24
HOUR = timedelta(hours=1)
#: How late a run may appear in the list of an hour.
LATE = timedelta(minutes=10)
_WAITS_FOR = {
    Wait.CLUSTER: "an answer of the cluster",
    Wait.SCHEDULER: "the scheduler service",
    Wait.RETRY: "their next try",
    Wait.WORKER: "a worker",
    Wait.START: "the start of their first task",
}


class CrawlerState(StrEnum):
    """The state of a crawler, the worst first."""

    FAILS = "fails"
    FLAKY = "flaky"
    LESS = "brings less"
    FAILED_LAST = "failed last"
    WAITS = "waits"
    RUNNING = "running"
    HEALTHY = "healthy"
    NEVER_RAN = "never ran"


_OF_KIND = {
    "crawler_failing": CrawlerState.FAILS,
    "crawler_flaky": CrawlerState.FLAKY,
    "crawler_less": CrawlerState.LESS,
    "crawler_empty": CrawlerState.LESS,
}


@dataclass(frozen=True, slots=True)
class FleetCrawler:
    """A crawler and its state."""

    name: str
    state: CrawlerState
    since: datetime | None
    """The time since which it fails, is flaky, or brings less."""
    why: str
    """A line about the reason of the state; empty without one."""
    items: int | None
    """The items of its newest run."""
    in_catalogue: bool


def crawler_state(
    name: str,
    incidents: Iterable[IncidentRow],
    live: Iterable[LiveRuns],
    newest: RecentRun | None,
    *,
    in_catalogue: bool,
) -> FleetCrawler:
    """Return the state of a crawler from its open incidents, its live runs and its newest run."""
    worst = min(incidents, key=lambda row: (_rank(_OF_KIND[row.kind]), row.opened_at), default=None)
    waits = [line for line in live if line.wait is not None]
    why = ""
    if worst is not None:
        state = _OF_KIND[worst.kind]
        why = worst.cause
    elif newest is None:
        state = CrawlerState.NEVER_RAN
    elif newest.status == RunStatus.FAILED and newest.ended_by != EndedBy.PERSON:
        state = CrawlerState.FAILED_LAST
        why = f"run {newest.run_id}: {newest.outcome}"
    elif waits:
        state = CrawlerState.WAITS
        why = waiting_words(waits)
    else:
        state = CrawlerState.RUNNING if live else CrawlerState.HEALTHY
    if not (why or in_catalogue):
        why = "not in the catalogue any more"
    since = worst.opened_at if worst is not None else None
    items = newest.items if newest is not None else None
    return FleetCrawler(name, state, since, why, items, in_catalogue)


def waiting_words(waits: Iterable[LiveRuns]) -> str:
    """Return a sentence about what these runs wait for."""
    parts = []
    for line in waits:
        what = _WAITS_FOR.get(line.wait) if line.wait else None
        verb = "waits" if line.runs == 1 else "wait"
        reason = what or f"a slot in pool {line.pool}"
        parts.append(f"{count(line.runs, 'run')} {verb} for {reason}")
    return "; ".join(parts)


def _rank(state: CrawlerState) -> int:
    return list(CrawlerState).index(state)


@dataclass(frozen=True, slots=True)
class FleetReport:
    """All crawlers, the worst first, and what else needs attention."""

    crawlers: list[FleetCrawler]
    incidents: list[IncidentRow]
    """The open incidents of everything."""
    live_runs: int
    day: Counter[str]
    """The runs accepted since ``day_from``, by ``completed``, ``failed``, ``stopped``, ``open``."""
    day_from: datetime
    away: str | None
    """A sentence if the catalogue is not the newest one."""
    at: datetime


@dataclass(eq=False)
class Fleet:
    """Reads the state of all crawlers. The answer is reused for ``FRESH_S`` seconds."""

    store: Store
    crawlers: Crawlers
    clock: Clock
    _days: dict[str | None, RunsOfDay] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kept = TtlCache(self._ask, FRESH_S)
        self._names = TtlCache(
            lambda: run_in_threadpool(self.store.runs.crawler_names, NAMES_MAX), NAMES_S
        )

    async def read(self) -> FleetReport:
        """Return the report. Raises ``StoreUnavailable``."""
        return await self._kept.own.read()

    async def _ask(self) -> FleetReport:
        known, away = await self.crawlers.last()
        names = sorted({*known, *await self._names.own.read()})
        return await run_in_threadpool(self._read, names, known, away)

    def _read(self, names: Sequence[str], known: Collection[str], away: str | None) -> FleetReport:
        now = self.clock()
        runs = self.store.runs
        incidents = self.store.incidents.open_incidents(INCIDENTS_MAX)
        live = runs.live_runs(LIVE_MAX)
        newest = {run.crawler: run for run in last_runs(runs, names, 1)}
        of_crawler = _grouped(incidents, live)
        found = []
        for name in names:
            about = of_crawler.get(name, ([], []))
            found.append(crawler_state(name, *about, newest.get(name), in_catalogue=name in known))
        found.sort(key=lambda crawler: (_rank(crawler.state), crawler.since or now, crawler.name))
        day = self._days.setdefault(only(), RunsOfDay(runs))
        day_from, counts = day.read(now)
        total = sum(line.runs for line in live)
        return FleetReport(found, incidents, total, counts, day_from, away, now)


def _grouped(
    incidents: Iterable[IncidentRow], live: Iterable[LiveRuns]
) -> Mapping[str, tuple[list[IncidentRow], list[LiveRuns]]]:
    """Return the incidents and the live runs of each crawler."""
    found: dict[str, tuple[list[IncidentRow], list[LiveRuns]]] = {}
    for row in incidents:
        if row.kind in _OF_KIND:
            found.setdefault(row.name, ([], []))[0].append(row)
    for line in live:
        found.setdefault(line.crawler, ([], []))[1].append(line)
    return found


def last_runs(runs: RunReader, names: Sequence[str], each: int) -> list[RecentRun]:
    """Return the last runs of each of these crawlers, the newest first for each."""
    parts = range(0, len(names), CRAWLERS_MAX)
    return [run for n in parts for run in runs.recent_runs(names[n : n + CRAWLERS_MAX], each)]


@dataclass(eq=False)
class RunsOfDay:
    """Counts the runs of the last 24 hours.

    An hour that is over, and whose runs have all ended, changes only when somebody resumes one of
    them. Each time, only one such hour is counted again, in turn: to count all runs of a day would
    cost a database too much.
    """

    runs: RunReader
    #: The hours, the one that was counted longest ago first, each with its time of counting.
    _hours: dict[datetime, tuple[datetime, Counter[str]]] = field(default_factory=dict)

    def read(self, at: datetime) -> tuple[datetime, Counter[str]]:
        """Return the beginning of the first hour, and the numbers of all hours."""
        now = at.astimezone(UTC)
        since = now.replace(minute=0, second=0, microsecond=0) - HOUR * (HOURS - 1)
        hours = [since + HOUR * n for n in range(HOURS)]
        # The clocks of hosts differ: a run may appear late in an hour that is over.
        over = [
            (begin, (counted_at, counts))
            for begin, (counted_at, counts) in self._hours.items()
            if counted_at >= begin + HOUR + LATE and not counts["open"] and begin in hours
        ]
        kept = dict(over[1:])
        for begin in hours:
            if begin not in kept:
                kept[begin] = (now, self.runs.runs_between(begin, begin + HOUR))
        self._hours = kept
        return since, sum((counts for _, counts in kept.values()), Counter())
