"""The state of all crawlers, from their open incidents and their runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.crawlers.state import CrawlerState
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.waiting import Wait
from crawler_lifecycle.features import INCIDENT_KINDS
from crawler_lifecycle.gateway.ttl_cache import TtlCache
from crawler_lifecycle.ports.runs import CRAWLERS_MAX, LiveRuns, RunRow, ShortRun
from crawler_lifecycle.store.base.bulk import chunks
from crawler_lifecycle.store.store import Store

from .crawlers import Crawlers

#: Seconds for which the state is reused.
FRESH_S = 5.0
#: The maximum numbers of crawlers, of open incidents, and of live runs in one status that are read.
NAMES_MAX = 100_000
INCIDENTS_MAX = 5_000
LIVE_MAX = 10_000
#: The number of last runs of a crawler that are read: twice those that are shown, because live ones
#: do not define what is usual. The period for which good runs are counted.
EACH = 40
WEEK = timedelta(days=7)
#: The period for which runs are counted: 24 hours, including the present one. It begins on the
#: hour.
DAY = timedelta(hours=23)
_WAITS_FOR = {
    Wait.SITE: "a slot of a site",
    Wait.CLUSTER: "an answer from the cluster",
    Wait.SCHEDULER: "the scheduler service",
    Wait.RETRY: "their next try",
    Wait.WORKER: "a worker",
    Wait.START: "the start of their first task",
    Wait.CODE: "the code of a task",
}


#: The states of crawlers by the kinds of their incidents.
_STATES = {kind.name: kind.state for kind in INCIDENT_KINDS.values() if kind.state is not None}


@dataclass(frozen=True, slots=True)
class FleetCrawler:
    """A crawler and its state."""

    name: str
    state: CrawlerState
    since: datetime | None
    """Since when it has been failing or flaky, or has produced less."""
    why: str
    """A line with the reason for the state; empty if there is none."""
    items: int | None
    """The number of items in its newest run; it counts as its result only when that run has
    ended."""
    live: bool
    """True if its newest run is live."""
    last_run_at: datetime | None
    """The time at which its newest run was requested."""
    in_catalogue: bool

    @property
    def rank(self) -> int:
        """The position of its state, from the worst state to the best."""
        return self.state.rank


def crawler_state(
    name: str,
    incidents: Iterable[IncidentRow],
    live: Iterable[LiveRuns],
    newest: ShortRun | RunRow | None,
    *,
    in_catalogue: bool,
) -> FleetCrawler:
    """Return the state of a crawler from its open incidents, its live runs and its newest run."""
    worst = min(incidents, key=lambda row: (_STATES[row.kind].rank, row.opened_at), default=None)
    waits = [line for line in live if line.wait is not None]
    why = ""
    if worst is not None:
        state = _STATES[worst.kind]
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
        why = "no longer in the catalogue"
    since = worst.opened_at if worst is not None else None
    items = newest.items if newest is not None else None
    is_live = newest is not None and not RunStatus(newest.status).terminal
    last_run_at = newest.created_at if newest is not None else None
    return FleetCrawler(name, state, since, why, items, is_live, last_run_at, in_catalogue)


def waiting_words(waits: Iterable[LiveRuns]) -> str:
    """Return a sentence about what these runs are waiting for."""
    parts = []
    for line in waits:
        what = _WAITS_FOR.get(line.wait) if line.wait else None
        verb = "is waiting" if line.runs == 1 else "are waiting"
        reason = what or f"a slot in pool {line.pool}"
        parts.append(f"{count(line.runs, 'run')} {verb} for {reason}")
    return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class CrawlerResults:
    """The results of a crawler."""

    last: list[ShortRun]
    """Its last runs, newest first."""
    good: float | None
    """The share of its runs in the last ``WEEK`` that were good; ``None`` if none has ended."""

    @property
    def ended(self) -> list[ShortRun]:
        """The last runs that have ended, newest first."""
        return [run for run in self.last if RunStatus(run.status).terminal]

    @property
    def items(self) -> int | None:
        """The number of items in its newest ended run."""
        return self.ended[0].items if self.ended else None


@dataclass(frozen=True, slots=True)
class FleetReport:
    """All crawlers, worst first, and everything else that needs attention."""

    crawlers: list[FleetCrawler]
    incidents: list[IncidentRow]
    """All open incidents."""
    live_runs: int
    day: Counter[str]
    """The numbers of runs accepted since ``day_from``: ``completed``, ``failed``, ``stopped`` and
    ``open``."""
    day_from: datetime
    away: str | None
    """A note if this is not the newest catalogue."""
    at: datetime
    results: dict[str, CrawlerResults] = field(default_factory=dict)
    """The results of the crawlers that a page has shown."""


@dataclass(eq=False)
class Fleet:
    """Reads the state of all crawlers. The answer is reused for ``FRESH_S`` seconds."""

    store: Store
    crawlers: Crawlers
    clock: Clock

    def __post_init__(self) -> None:
        self._kept = TtlCache(self._ask, FRESH_S)

    async def read(self) -> FleetReport:
        """Return the report. Raises ``StoreUnavailable``."""
        return await self._kept.own.read()

    def results(self, report: FleetReport, crawlers: Iterable[str]) -> Mapping[str, CrawlerResults]:
        """Return the results of these crawlers (at most 200) and perhaps of others. Pages that show
        the same report share them. This call blocks.
        """
        missing = [name for name in crawlers if name not in report.results]
        last: dict[str, list[ShortRun]] = {name: [] for name in missing}
        for run in self.store.runs.recent_runs(missing, EACH):
            last[run.crawler].append(run)
        good = self.store.runs.good_shares(missing, report.at - WEEK)
        for name in missing:
            report.results[name] = CrawlerResults(last[name], good.get(name))
        return report.results

    def items(self, report: FleetReport, crawlers: Sequence[FleetCrawler]) -> Mapping[str, int]:
        """Return the number of items in the newest ended run, by crawler. A crawler without such a
        number is missing. This call blocks.
        """
        items = {crawler.name: crawler.items for crawler in crawlers}
        live = [crawler.name for crawler in crawlers if crawler.live]
        for part in chunks(live, CRAWLERS_MAX):
            results = self.results(report, part)
            items |= {name: results[name].items for name in part}
        return {name: known for name, known in items.items() if known is not None}

    async def _ask(self) -> FleetReport:
        known, away = await self.crawlers.last()
        now = self.clock()
        return await run_in_threadpool(self._read, now, known, away)

    def _read(self, now: datetime, known: Collection[str], away: str | None) -> FleetReport:
        runs = self.store.runs
        incidents = self.store.incidents.open_incidents(INCIDENTS_MAX)
        live = runs.live_runs(LIVE_MAX)
        newest = {run.crawler: run for run in runs.newest_runs(NAMES_MAX)}
        of_crawler = _grouped(incidents, live)
        found = []
        for name in sorted({*known, *newest}):
            about = of_crawler.get(name, ([], []))
            found.append(crawler_state(name, *about, newest.get(name), in_catalogue=name in known))
        found.sort(key=lambda crawler: (crawler.rank, crawler.since or now, crawler.name))
        day_from = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - DAY
        total = sum(line.runs for line in live)
        return FleetReport(found, incidents, total, runs.runs_since(day_from), day_from, away, now)


def _grouped(
    incidents: Iterable[IncidentRow], live: Iterable[LiveRuns]
) -> Mapping[str, tuple[list[IncidentRow], list[LiveRuns]]]:
    """Return the incidents and the live runs of each crawler."""
    found: dict[str, tuple[list[IncidentRow], list[LiveRuns]]] = {}
    for row in incidents:
        if row.kind in _STATES:
            found.setdefault(row.name, ([], []))[0].append(row)
    for line in live:
        found.setdefault(line.crawler, ([], []))[1].append(line)
    return found
