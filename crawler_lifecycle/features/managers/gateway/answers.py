"""Answers about crawl managers and user code: filters of lists, bodies, and the class that reads
the managers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field

from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.status_words import MANAGER_WORDS, status_word
from crawler_lifecycle.domain.waiting import ASK_DOCTOR
from crawler_lifecycle.gateway.api.lists import ResultPage
from crawler_lifecycle.gateway.api.paging import (
    Id,
    Paging,
    SearchParameters,
    SearchText,
    cut,
    one_of,
    order,
)
from crawler_lifecycle.gateway.api.rows import OfRow
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.owned import OwnedViews
from crawler_lifecycle.gateway.runs.answers import Stop
from crawler_lifecycle.gateway.runs.commands import existing
from crawler_lifecycle.subjects import MANAGER

from ..domain.manager import BUILT_IN, Job, JobState
from ..ports import JobRow, ManagerRow, UserCodeRow
from ..store.managers import ManagerStore
from ..store.unit import SORTS

ManagerId = Id
#: If no worker has reported a class for this time, the class counts as served by no worker. Workers
#: report their user code every few seconds.
SERVED = timedelta(minutes=2)
#: The maximum number of jobs that one page of a search reads.
SEARCHED_MAX = 2_000


_STATUS = one_of({word: word for word in (*RunStatus, *MANAGER_WORDS)})


class ManagerFilters(SearchParameters):
    """Filters of ``GET /v1/managers``. ``status`` may be given several times."""

    sort: Annotated[str, order(SORTS)] | None = None
    status: list[Annotated[str, _STATUS]] = Field(default_factory=list)
    name: str | None = Field(default=None, max_length=63)
    flow_id: str | None = Field(default=None, max_length=120)

    def check(self) -> None:
        """Raise ``InvalidRequest`` for a flow id without a name, because only both together
        identify a manager.
        """
        if self.flow_id is not None and self.name is None:
            raise InvalidRequest("flow_id: needs name; give name too, or leave out flow_id")
        if self.flow_id is not None and (self.search or self.sort):
            raise InvalidRequest("flow_id: selects one manager; leave out search and sort")


class JobFilters(Paging):
    """Filters of ``GET /v1/managers/{manager_id}/jobs``. ``state`` may be given several times."""

    search: SearchText = None
    state: list[JobState] = Field(default_factory=list)


class Jobs(OfRow):
    """The number of a manager's jobs in each state, and counters since its start."""

    buffered: int
    delayed: int
    queued: int
    starting: int
    started: int
    ended: int
    yields: int
    """The number of items that the manager's source has returned, in all passes."""
    duplicates: int
    skipped: int
    scheduled: int
    retried: int
    good: int
    bad: int


class Manager(OfRow):
    """One crawl manager."""

    manager_id: int
    manager_uid: str
    """The manager's identity. After a restore of the database, a number may be used again, but
    never a uid.
    """
    name: str
    flow_id: str
    project: str
    workflow_id: str
    """The id of the manager's workflow, which is the ``parent`` of the manager's runs."""
    plan: str
    crawler: str | None
    """The crawler of the built-in manager, which runs once for each job; null for a class."""
    argv: list[str]
    status: RunStatus
    outcome: str | None
    ended_by: EndedBy | None
    """Who ended it: ``person`` (a stop), ``crawler`` (its class) or ``service``; null before its
    end.
    """
    cause: str | None
    attempt: int
    live: int
    """The number of jobs that hold a slot. After its end, it is the number of its runs that still
    continue.
    """
    cap: int | None
    """The maximum number of live jobs that a person set; null if the class sets it."""
    paused: bool
    waiting: str | None
    """A sentence about why the manager starts no more jobs; null if it can start jobs."""
    error: str | None
    """The error of its class, with the position and the fix."""
    stuck: bool
    """True if its class has failed three times in a row."""
    stop: Stop | None
    leave: bool
    """True if its runs continue after a stop."""
    jobs: Jobs
    position: int
    exhausted: bool
    sealed: bool
    """True if no more jobs can be added."""
    close_reason: str | None
    tags: list[str]
    requested_by: str | None
    parent: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    updated_at: datetime
    """The time of the last change to this row, by the manager's newest cycle or by a later
    command.
    """
    jobs_pruned_at: datetime | None
    """The time at which its jobs were last removed, long after an end. Since then, equal jobs can
    be added again.
    """

    @classmethod
    def of(cls, row: ManagerRow, why: str | None = None, **more: Any) -> Self:
        """Build the body from a row.

        ``why`` is the reason why its workflow cannot continue, and ``more`` are further fields.
        """
        argv = row.options.get("argv")
        words = [str(word) for word in argv] if isinstance(argv, list) else []
        jobs = {state.value: row.counts.by_state.get(state, 0) for state in JobState}
        crawler = words[0] if row.plan == BUILT_IN and words else None
        return cls.from_row(
            row,
            crawler=crawler,
            argv=words,
            live=row.counts.live,
            waiting=why or waiting(row),
            jobs=Jobs.from_row(row.counts, **jobs),
            **more,
        )


def waiting(row: ManagerRow) -> str | None:
    """Return a sentence about what a manager waits for, or ``None`` if the manager is not
    waiting.
    """
    if row.status.terminal:
        return None
    live = row.counts.live
    runs = f"{live} {'run' if live == 1 else 'runs'}"
    if row.status is RunStatus.STOPPING:
        rest = "; its runs continue" if row.leave else f": {runs} must end first" if live else ""
        return f"it is being stopped{rest}"
    if row.owner_run_id is None:
        return f"waiting for a worker{ASK_DOCTOR}"
    if row.paused:
        return f"it is paused; {runs} continue" if live else "it is paused"
    return row.waiting_for


class ManagerDetail(Manager):
    """One manager with all its fields."""

    state: Mapping[str, Any]
    stats: Mapping[str, float]
    generation: int
    """The number of times that its class was created again."""
    fingerprint: str | None


class AcceptedManager(Manager):
    """The manager after a command. ``note`` states for people what happens next, or why nothing
    changed.
    """

    note: str | None


class ManagerPage(ResultPage):
    """A page of managers, newest first."""

    managers: list[Manager]


class JobPage(BaseModel):
    """A page of a manager's jobs, oldest row first."""

    jobs: list[JobRow]
    next_page_token: str | None
    note: str | None = None
    """A sentence about the jobs that a search did not cover; null if there are none."""


@dataclass(frozen=True, slots=True)
class UserCodeAnswer(UserCodeRow):
    """A class that can be started as a manager, or a module with functions that graphs may call."""

    served: bool = False
    """True if a worker recently reported that it serves this user code."""

    @classmethod
    def of(cls, row: UserCodeRow, now: datetime) -> Self:
        return cls(**asdict(row), served=row.seen_at is not None and now - row.seen_at < SERVED)


class UserCodeList(BaseModel):
    """The classes and modules that user-code workers have registered."""

    user_code: list[UserCodeAnswer]
    note: str | None


class ManagerViews(OwnedViews[ManagerFilters, ManagerPage, ManagerDetail]):
    """Reads a page of managers, one manager or its jobs for answers."""

    store: ManagerStore
    subject = MANAGER
    pages = ManagerPage
    brief = Manager
    whole = ManagerDetail

    def found(self, key: int) -> ManagerRow:
        return existing("manager", key, self.store.get_manager(key))

    def named(self, filters: ManagerFilters) -> list[ManagerRow] | None:
        if filters.flow_id is None:
            return None
        row = self.store.find_manager(filters.name, filters.flow_id)
        if row is None:
            return []
        words = {row.status, status_word(asdict(row))}
        return [row] if words & set(filters.status or words) else []

    def jobs(self, manager_id: int, filters: JobFilters) -> JobPage:
        """Return the jobs of a manager that match the filters, oldest row first. This blocks.

        No index finds a text in a job. A search therefore reads at most ``SEARCHED_MAX`` jobs, and
        the next page continues after the last of these.
        """
        after = decode("job", filters.page_token) or 0
        size = filters.page_size
        most = SEARCHED_MAX if filters.search else size
        rows = self.store.list_jobs(manager_id, after, most + 1, states=filters.state)
        window, token = cut("job", rows, most, _number)
        if not filters.search:
            return JobPage(jobs=window, next_page_token=token)
        text = filters.search.casefold()
        found = [row for row in window if text in _words(row)]
        if len(found) > size:
            page, token = cut("job", found, size, _number)
            return JobPage(jobs=page, next_page_token=token)
        note = f"Only {most:,} jobs were searched; the next page continues." if token else None
        return JobPage(jobs=found, next_page_token=token, note=note)


def _number(row: JobRow) -> int:
    return row.item_id


def _words(row: JobRow) -> str:
    """Return the text of a job that is searched: its numbers, its crawler and arguments, and its
    end.
    """
    job = row.job or Job("")
    args = [f"{name}={value}" for name, value in job.spider_args.items()]
    parts = [row.item_id, row.run_id, job.spider, *args, *job.tags, row.outcome, row.error]
    return "\n".join(str(part) for part in parts if part).casefold()
