"""A simulated manager for tests: ``simulate(MyManager, outcomes=…)``.

The class is called by the same code and under the same rules as in a worker. The clock moves from
one event to the next, and no run is started. The same call always returns the same record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import InvalidRequest, Overtaken
from crawler_lifecycle.domain.run_data import HeldFiles
from crawler_lifecycle.features.managers.domain.manager import (
    CYCLE_ENDS,
    DELAYED_MAX,
    FINISHED,
    TRIES,
    Decision,
    EndedJob,
    Facts,
    Job,
    JobState,
    Live,
    Page,
    Start,
    Waiting,
    new_numbers,
    outcome_of,
    run_request_id,
    yields_behind,
)
from crawler_lifecycle.features.managers.domain.scrapy_cloud import FAILED_HERE, never_retried

from .base import BaseScript
from .driver import Driver, identity_of
from .platform import OwnedPage, OwnedQuery

#: Epoch seconds at which every simulation begins.
BEGINNING = 1_700_000_000.0
_WAITING = (JobState.BUFFERED, JobState.DELAYED, JobState.QUEUED)
_HOLDING = (JobState.STARTING, JobState.STARTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled(Job):
    """A job at its start."""

    key: str
    seq: int
    retry: int
    at: float
    """Seconds since the simulation began."""


@dataclass(slots=True)
class Record:
    """The events of a simulation, in chronological order."""

    scheduled: list[Scheduled] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    """Positions of yields that did not become a job, with the reasons."""
    hooks: list[tuple[str, int | None]] = field(default_factory=list)
    """Called methods of the class, each with the number of its job."""
    waits: list[str] = field(default_factory=list)
    """The distinct sentences about why no more jobs were started."""
    errors: list[str] = field(default_factory=list)
    """Errors of the class."""
    close_reason: str | None = None
    failed: bool = False
    """True if the manager FAILED."""
    stats: dict[str, float] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    flow_tags: list[str] = field(default_factory=list)
    cycles: int = 0
    most_live: int = 0
    left: int = 0
    """The number of jobs that were still live at the end."""
    seconds: float = 0.0
    """Simulated seconds since the beginning."""
    over: bool = False

    @property
    def args(self) -> list[dict[str, str]]:
        """The arguments of the scheduled jobs."""
        return [job.spider_args for job in self.scheduled]


@dataclass(slots=True)
class _Row:
    item_id: int
    state: JobState
    job: Job
    position: int | None = None
    unique: bool = True
    seq: int | None = None
    retry: int = 0
    retry_of: str | None = None
    not_before: float | None = None
    cap_key: str | None = None
    started_at: float | None = None
    ends_at: float = 0.0
    outcome: str | None = None
    bad: bool = False
    tries: int = 0
    items: Sequence[Any] | None = None


#: The outcomes of jobs that did not end on their own.
_ENDED_BY = {
    "cancelled": EndedBy.PERSON,
    "cancel_timeout": EndedBy.PERSON,
    "deploy_failed": EndedBy.SERVICE,
}
#: One outcome for all jobs, a list in the order of their starts, a mapping from job number to
#: outcome, or a function of the job.
Outcomes = str | Sequence[str] | Mapping[int, str] | Callable[[Scheduled], str]
#: Items of jobs: a mapping from spider to items, or a function of the job.
Left = Mapping[str, Sequence[Any]] | Callable[[Scheduled], Sequence[Any]]


class Simulation(HeldFiles):
    """One simulated manager, with its rows, its clock, and the driver of its class."""

    def __init__(
        self,
        cls: type[BaseScript],
        argv: Sequence[str] = (),
        *,
        outcomes: Outcomes = FINISHED,
        seconds: float | Callable[[Scheduled], float] = 60.0,
        stats: Mapping[str, float] | None = None,
        tags: Sequence[str] = (),
        others: Sequence[Mapping[str, Any]] = (),
        items: Left = {},  # noqa: B006
    ) -> None:
        super().__init__()
        self.others = others
        self.items = items
        """``others`` are jobs of managers of this name in other flows, in the form of
        ``JobDict``.
        """
        self.cls = cls
        self.outcomes = outcomes
        self.seconds = seconds
        self.job_stats = dict(stats or {})
        name, flow_id = identity_of(cls, list(argv), list(tags))
        flow_id = flow_id or ("simulated" if cls.flow_id_required else "")
        self.row = Start(1, name, flow_id, list(argv), tags=list(tags), started_at=BEGINNING)
        self.clock = BEGINNING
        self.record = Record()
        self.rows: list[_Row] = []
        self._identities: set[str] = set()
        self.paused = False
        self.sealed = False
        self.exhausted = False
        self.cap: int | None = None
        self.source_error: str | None = None
        self.position = 0
        self.last_pick: float | None = None
        self.hook_errors = 0
        """The number of ends whose hooks failed too often in this attempt."""
        self.driver: Driver | None = None
        self.buffer = DELAYED_MAX
        """The number of jobs to read ahead from the source. The last page may exceed this
        number.
        """
        self.read_clock: Callable[[], float] = lambda: 0.0
        """The driver's clock, for its time limits. The default clock never moves."""

    # --- methods for tests ------------------------------------------------------------------------

    def run(
        self, cycles: int = 10_000, until: Callable[[Record], bool] = lambda record: False
    ) -> Record:
        """Execute at most this many cycles, until the end or until ``until`` is true. Return the
        record.
        """
        for _ in range(cycles):
            if self.record.over or until(self.record):
                break
            self.turn()
        return self.record

    def restart(self) -> None:
        """Simulate the death of the process, after which the next cycle creates a new object.

        The generator begins again, or continues after its position if ``on_code_change`` is
        ``continue``.
        """
        self.driver = None
        self.row = replace(self.row, resumed=True)
        self.exhausted = False
        self.source_error = None
        if getattr(self.cls, "on_code_change", "replay") != "continue":
            self.position = 0

    def resume(self) -> None:
        """After the manager's end, start its next attempt."""
        self.restart()
        self.row = replace(
            self.row, attempt=self.row.attempt + 1, close_reason=None, started_at=self.clock
        )
        self.hook_errors = 0
        self.record.over = False
        self.record.close_reason = None
        self.record.failed = False

    def add_jobs(self, jobs: Iterable[Job], *, seal: bool = False) -> int:
        """Add jobs as a user does, and return the number of new jobs. If ``seal`` is true, no more
        jobs will come.
        """
        new = [job for job in jobs if self._insert(JobState.QUEUED, job) is not None]
        self.sealed = self.sealed or seal
        return len(new)

    # --- one turn ---------------------------------------------------------------------------------

    def turn(self) -> None:
        """Execute one cycle, and move the clock to the next event."""
        if self.driver is None:
            self.driver = Driver(self.cls, self, clock=self.read_clock)
            self.driver.begin()
        facts = self._read_source(self.driver)
        decision = self.driver.cycle(facts)
        if decision.over:
            decision = self.driver.close()
        self.commit(decision)
        record = self.record
        record.cycles += 1
        record.errors += [decision.error] if decision.error else []
        if decision.waiting and decision.waiting not in record.waits:
            record.waits.append(decision.waiting)
        if decision.over:
            self._end(self.driver, decision)
        else:
            self._pass(decision.again_s)

    def _read_source(self, driver: Driver) -> Facts:
        while (
            not (self.exhausted or self.source_error or self.paused)
            and self._count(JobState.BUFFERED) < self.buffer
        ):
            self.add_page(driver.page(self.position))
        return self.facts()

    def add_page(self, page: Page) -> None:
        """Add the yields of a page of the source.

        Raises ``InvalidRequest`` if positions are missing.
        """
        for item in yields_behind(page, self.position):
            if item.job is None:
                self.record.skipped.append((item.position, item.error or ""))
            elif (
                item.known
                or self._insert(JobState.BUFFERED, item.job, position=item.position) is None
            ):
                why = (
                    f"a job with these arguments is known: {item.job.spider} {item.job.spider_args}"
                )
                self.record.skipped.append((item.position, why))
        self.position = page.position
        self.exhausted = page.exhausted
        self.source_error = page.error

    def facts(self) -> Facts:
        """Return the facts for the next cycle."""
        ended = [
            row for row in self.rows if row.state is JobState.STARTED and row.ends_at <= self.clock
        ]
        ended.sort(key=lambda row: (row.started_at or 0.0, row.item_id))
        listed = ended[:CYCLE_ENDS]
        gone = {row.item_id for row in ended[:CYCLE_ENDS]}
        live = [row for row in self.rows if row.state in _HOLDING and row.item_id not in gone]
        delayed = [row for row in self.rows if row.state is JobState.DELAYED]
        return Facts(
            manager_id=self.row.manager_id,
            attempt=self.row.attempt,
            next_seq=self.row.next_seq,
            now=self.clock,
            cap=self.cap,
            paused=self.paused,
            exhausted=self.exhausted,
            sealed=self.sealed,
            source_error=self.source_error,
            last_pick=self.last_pick,
            ended=[self._ended(row) for row in listed],
            live=len(live),
            live_by_spider=dict(Counter(row.job.spider for row in live)),
            live_by_key=dict(Counter(row.cap_key for row in live if row.cap_key is not None)),
            delayed=len(delayed),
            delayed_by_spider=dict(Counter(row.job.spider for row in delayed)),
            queued=self._count(JobState.QUEUED),
            buffered=self._count(JobState.BUFFERED),
            more_ended=len(ended) > CYCLE_ENDS,
        )

    def _ended(self, row: _Row) -> EndedJob:
        outcome = row.outcome or FINISHED
        again = not never_retried(_ENDED_BY.get(outcome), ())
        return EndedJob(self.live(row), 1, row.bad, outcome, again, self.job_dict(row), row.tries)

    def commit(self, decision: Decision) -> None:
        """Apply a whole decision.

        Raises ``InvalidRequest`` for an impossible decision, and ``Overtaken`` if a job's state has
        changed since the facts were read.
        """
        picked = self._rows(
            [pick.item_id for pick in decision.picked if pick.item_id > 0], *_WAITING
        )
        hooked = self._rows([hooked.item_id for hooked in decision.hooked], JobState.STARTED)
        delayed = self._rows(decision.delayed, JobState.BUFFERED)
        numbers = new_numbers(
            decision, self.row.next_seq, {item_id: row.seq for item_id, row in picked.items()}
        )
        for row in hooked.values():
            row.state = JobState.ENDED
            self.hook_errors += row.tries >= TRIES
        for failed in [failed for failed in decision.failed if not failed.later]:
            self.rows[failed.item_id - 1].tries += 1
        for added in decision.added:
            more = {
                name: getattr(added, name)
                for name in ("unique", "seq", "retry", "retry_of", "not_before")
            }
            if (new := self._insert(JobState.QUEUED, added.job, **more)) is not None:
                picked[added.ref] = new
        for row in delayed.values():
            row.state = JobState.DELAYED
        for pick in decision.picked:
            if pick.item_id in picked:
                row = picked[pick.item_id]
                row.state = JobState.STARTED
                row.seq = pick.seq
                row.job = pick.job
                row.cap_key = pick.cap_key
                self._begin(row)
        self.row = replace(
            self.row,
            next_seq=max(numbers, default=self.row.next_seq - 1) + 1,
            flow_tags=[*self.row.flow_tags, *decision.flow_tags],
            state=self.row.state if decision.state is None else decision.state,
            stats=decision.stats,
            close_reason=decision.close_reason,
        )
        self.record.stats = self.row.stats
        self.record.state = self.row.state
        self.record.flow_tags = self.row.flow_tags
        self.record.most_live = max(self.record.most_live, self._count(*_HOLDING))

    def _begin(self, row: _Row) -> None:
        assert row.seq is not None
        key = run_request_id(self.row.manager_id, row.seq, row.retry)
        began = Scheduled(
            key=key, seq=row.seq, retry=row.retry, at=self.clock - BEGINNING, **asdict(row.job)
        )
        self.last_pick = self.clock
        self.record.scheduled.append(began)
        row.outcome = self._outcome(began)
        row.bad = row.outcome in FAILED_HERE
        row.items = self.items(began) if callable(self.items) else self.items.get(row.job.spider)
        self.leave(row.item_id, row.items)
        row.started_at = self.clock
        row.ends_at = self.clock + (self.seconds(began) if callable(self.seconds) else self.seconds)

    def _outcome(self, job: Scheduled) -> str:
        outcomes = self.outcomes
        if isinstance(outcomes, str):
            return outcomes
        if isinstance(outcomes, Mapping):
            return outcomes.get(job.seq, FINISHED)
        if callable(outcomes):
            return outcomes(job)
        n = len(self.record.scheduled) - 1
        return outcomes[n] if n < len(outcomes) else FINISHED

    def _pass(self, again_s: float | None) -> None:
        """Move the clock to the next end of a job or to the next cycle, whichever comes first."""
        ends = [row.ends_at for row in self.rows if row.state is JobState.STARTED]
        nexts = [max(self.clock, at) for at in ends] + (
            [] if again_s is None else [self.clock + again_s]
        )
        self.clock = min(nexts, default=self.clock)
        self.record.seconds = self.clock - BEGINNING

    def _end(self, driver: Driver, decision: Decision) -> None:
        record = self.record
        reason = decision.close_reason
        failed = decision.error is not None or (reason or FINISHED) in driver.failed_outcomes
        record.over = True
        mode = getattr(self.cls, "on_hook_error", "fail")
        record.close_reason, record.failed = outcome_of(reason, failed, self.hook_errors, mode)
        record.left = self._count(*_HOLDING)
        self.driver = None

    # --- rows -------------------------------------------------------------------------------------

    def _rows(self, item_ids: Sequence[int], *states: JobState) -> dict[int, _Row]:
        """Return these rows by id. Each must be named once and be in one of these states."""
        found = {
            item_id: self.rows[item_id - 1] for item_id in item_ids if 0 < item_id <= len(self.rows)
        }
        if len(found) != len(item_ids):
            raise InvalidRequest(
                "item_id: a job does not exist or is named twice; name each job once"
            )
        if any(row.state not in states for row in found.values()):
            raise Overtaken(
                "A job's state has changed since the facts were read; the next cycle decides again"
            )
        return found

    def _insert(
        self, state: JobState, job: Job, *, unique: bool = True, **more: Any
    ) -> _Row | None:
        if unique and job.identity in self._identities:
            return None
        number = more.get("seq"), more.get("retry", 0)
        if number[0] is not None and any((row.seq, row.retry) == number for row in self.rows):
            return None
        row = _Row(len(self.rows) + 1, state, job, unique=unique, **more)
        self.rows.append(row)
        if unique:
            self._identities.add(job.identity)
        return row

    def _count(self, *states: JobState) -> int:
        return sum(row.state in states for row in self.rows)

    def live(self, row: _Row) -> Live:
        assert row.seq is not None
        key = run_request_id(self.row.manager_id, row.seq, row.retry)
        return Live(row.item_id, key, row.job, row.seq, row.retry, row.cap_key, row.started_at)

    def job_dict(self, row: _Row) -> dict[str, Any]:
        """Return a job in the form of ``JobDict``, for hooks and lists."""
        over = row.state is JobState.ENDED or (
            row.state is JobState.STARTED and row.ends_at <= self.clock
        )
        state = "finished" if over else "running" if row.state in _HOLDING else "pending"
        key = None if row.seq is None else run_request_id(self.row.manager_id, row.seq, row.retry)
        return {
            "key": key,
            "state": state,
            "close_reason": row.outcome if over else None,
            **asdict(row.job),
            "running_time": None if row.started_at is None else int(row.started_at * 1000),
            "finished_time": int(row.ends_at * 1000) if over else None,
            "scrapystats": dict(self.job_stats) if over else {},
            "items": None if row.items is None or not over else len(row.items),
            "run_id": None if row.started_at is None else row.item_id,
            "pages": None,
            "errors": None,
            "attempt": 1,
            "cause": None,
        }

    # --- Platform ---------------------------------------------------------------------------------

    def start(self) -> Start:
        return self.row

    def now(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def entering(self, what: str, item_id: int | None = None) -> None:
        row = None if item_id is None or item_id < 0 else self.rows[item_id - 1]
        self.record.hooks.append((what, None if row is None else row.seq))

    def did(self, done: Decision) -> None:
        """Do nothing, because a simulation kills no process."""

    def waiting_jobs(self, state: JobState, after_id: int = 0, limit: int = 100) -> list[Waiting]:
        found = [row for row in self.rows if row.state is state and row.item_id > after_id][:limit]
        return [
            Waiting(row.item_id, row.job, row.seq, row.retry, row.retry_of, row.not_before)
            for row in found
        ]

    def live_jobs(self, after_id: int = 0, limit: int = 500) -> list[Live]:
        clock = self.clock
        found = [
            row
            for row in self.rows
            if row.state in _HOLDING and row.ends_at > clock and row.item_id > after_id
        ]
        return [self.live(row) for row in found[:limit]]

    def known_identities(self, identities: Collection[str]) -> set[str]:
        return self._identities.intersection(identities)

    def job(self, key: str) -> dict[str, Any] | None:
        return next(
            (
                dict(job)
                for job in [*map(self.job_dict, self.rows), *self.others]
                if job["key"] == key
            ),
            None,
        )

    def owned_jobs(self, query: OwnedQuery) -> OwnedPage:
        jobs = [
            job
            for job in map(self.job_dict, self.rows)
            if job["key"] and job["state"] in query.states
        ]
        jobs += [
            dict(other)
            for other in self.others
            if query.all_flows and other["state"] in query.states
        ]
        if query.spider is not None:
            jobs = [job for job in jobs if job["spider"] == query.spider]
        if query.project_id is not None:
            jobs = [job for job in jobs if job["project_id"] == query.project_id]
        if query.states == ["finished"]:
            jobs.sort(key=lambda one: -one["finished_time"])
        first = int(query.after or 0)
        last = first + query.limit
        return OwnedPage(jobs[first:last], str(last) if last < len(jobs) else None)


def simulate(
    cls: type[BaseScript],
    argv: Sequence[str] = (),
    *,
    outcomes: Outcomes = FINISHED,
    seconds: float | Callable[[Scheduled], float] = 60.0,
    stats: Mapping[str, float] | None = None,
    tags: Sequence[str] = (),
    cycles: int = 10_000,
    items: Left = {},  # noqa: B006
) -> Record:
    """Simulate a manager until its end, or for ``cycles`` cycles, and return the record.

    - ``argv`` are the words of its command line.
    - ``outcomes`` is one outcome for all jobs, a list in the order of their starts, a mapping from
      job number to outcome, or a function of the job.
    - ``seconds`` is the duration of each job, or a function of the job.
    - ``stats`` are the ``scrapystats`` of each job.
    - ``tags`` are the tags of the manager.
    - ``items`` maps spiders to the items of their jobs, or is a function of the job.

    Raises ``ClassError`` for errors of the class outside of its hooks.

    >>> from crawler_lifecycle.managers import PeriodicCrawlManager
    >>> from crawler_lifecycle.managers.testing import simulate
    >>> class Hourly(PeriodicCrawlManager):
    ...     name, spider, loop_mode = "hourly", "shop.com", 3600
    >>> record = simulate(Hourly, cycles=5)
    >>> record.over, len(record.scheduled)
    (False, 3)
    """
    simulation = Simulation(
        cls, argv, outcomes=outcomes, seconds=seconds, stats=stats, tags=tags, items=items
    )
    return simulation.run(cycles)
