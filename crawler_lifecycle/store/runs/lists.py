"""The list of runs: one statement that stays fast for every filter and any number of runs.

The inner query finds the ids of one page, and the outer query reads these rows. Every filter has an
index whose last column is the id, so a page reads about as many index entries as it has rows. Four
cases need more work:

- Several statuses: each has its own subquery for one page. A single subquery for two statuses
  could not read the ids in order from the index, so the database would sort all completed runs.
- Attention: a run needs attention if it failed, or completed with less than expected, and no later
  run of the same work or schedule succeeded. This takes two index lookups for each such run. Failed
  and completed runs have separate subqueries.
- A range of time is also expressed as a range of ids, because ids grow with time. The clocks of
  hosts may differ, so the range of ids is ``CLOCK_SLACK`` wider on both sides, and the time is
  compared as well.
- Some indexes start with the filtered column but are not ordered by id. MySQL might use such an
  index and then sort, so a hint excludes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Table,
    and_,
    case,
    exists,
    false,
    null,
    or_,
    select,
)

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.run import UNMET_OUTCOMES, RunStatus
from crawler_lifecycle.domain.waiting import CLUSTER_WAIT, CODE_WAIT, RETRY_AT, SCHEDULER_WAIT, Wait
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.base.rows import Row, seen
from crawler_lifecycle.store.base.search import in_statuses, newest

from .caps import caps
from .rows import run_row, tag_key
from .tables import LIVE_RUNS, pool_ticket, run_code, run_history, run_tag

CLOCK_SLACK = timedelta(hours=1)
"""The maximum difference between the clocks of two hosts with which a filter by time still finds
every run.
"""

ATTENTION = timedelta(days=30)
"""The default age after which a run no longer needs attention, counted from its creation. Older
failures no longer matter to people, and each failed run costs two index lookups per page.
"""


_OTHER_ORDER = (
    "created_at",
    "pool_created_at",
    "project_created_at",
    "parent_ended_at_run_id",
    "parent_attempt_run_id",
)
_OF_STATUS = (
    "crawler_status_run_id",
    "flow_id_status_run_id",
    "parent_status_run_id",
    "project_status_run_id",
    "project_crawler_status_run_id",
)
"""Indexes that are not ordered by id. ``_OTHER_ORDER`` is never useful. ``_OF_STATUS`` is useful
only if the list is filtered by status.
"""


class RunQuery(TypedDict, total=False):
    """The filters of a list of runs as callers give them.

    A run must have all of the tags. The range includes ``created_from`` and excludes
    ``created_until``. ``RunFilters`` explains ``waits`` and ``attention``. Unless ``created_from``
    is given, ``attention`` is limited to the last 30 days.
    """

    status: Sequence[str]
    stage: str | None
    crawler: str | None
    pool: str | None
    trigger: str | None
    outcome: str | None
    ended_by: str | None
    flow_id: str | None
    parent: str | None
    tags: Sequence[str]
    created_from: datetime | None
    created_until: datetime | None
    waits: str | None
    attention: bool
    code: str | None


@dataclass(frozen=True, slots=True)
class RunFilters:
    """The filters of a list of runs.

    ``equal`` maps columns of ``run_history`` to their required values.
    """

    equal: dict[str, str]
    statuses: Sequence[str] = ()
    """Statuses, and words of ``RUN_WORDS``."""
    tags: Sequence[str] = ()
    """A run must have all of these tags."""
    before_run_id: int | None = None
    created_from: datetime | None = None
    created_until: datetime | None = None
    waits: str | None = None
    """Only live runs that are waiting for this (``domain.waiting.Wait``)."""
    attention: bool = False
    """True to list only runs that need attention. Such a run failed and was not ended by a person,
    or it completed with less than expected. In addition, no later run of the same work or schedule
    succeeded.
    """
    digest: str | None = None
    """Only runs with a task whose code has this digest."""


def good_runs(runs: FromClause) -> ColumnElement[bool]:
    """Return the condition of ``domain.results.is_good`` for rows of this table or alias."""
    return and_(runs.c.status == RunStatus.COMPLETED, runs.c.lacks.is_(None))


def newest_runs(conn: Connection, filters: RunFilters, limit: int, *columns: Any) -> Sequence[Row]:
    """Return the newest ``limit`` runs that match the filters, newest first, with these columns
    or all.
    """
    query = newest(
        run_history.c.run_id, page_of(filters, times_of(conn, filters), limit), limit, *columns
    )
    return conn.execute(query).mappings().all()


#: The statuses of runs that can wait for something.
WAITING = [RunStatus.INITIALIZING.value, RunStatus.PROCESSING.value]


def wait_column() -> ColumnElement[str]:
    """Return what a run with a status in ``WAITING`` is waiting for (``domain.waiting.Wait``); null
    if the run is not waiting.
    """
    r = run_history.c
    in_line = exists(
        select(pool_ticket.c.run_id).where(pool_ticket.c.run_id == r.run_id).correlate(run_history)
    )
    return case(
        *((cap.in_line(r.run_id), cap.wait.value) for cap in caps()),
        (in_line, Wait.POOL.value),
        (r.look_error.is_not(None), Wait.CLUSTER.value),
        (r.waiting_for.startswith(RETRY_AT, autoescape=True), Wait.RETRY.value),
        (r.waiting_for.startswith(CODE_WAIT, autoescape=True), Wait.CODE.value),
        (
            r.status != RunStatus.INITIALIZING,
            null(),
        ),  # the reason may be left over from an earlier try
        (r.waiting_for.startswith(SCHEDULER_WAIT, autoescape=True), Wait.SCHEDULER.value),
        (r.waiting_for.startswith(CLUSTER_WAIT, autoescape=True), Wait.CLUSTER.value),
        (r.owner_run_id.is_(None), Wait.WORKER.value),
        else_=Wait.START.value,
    )


def page_of(
    filters: RunFilters, times: Sequence[ColumnElement[bool]], limit: int
) -> list[Select[Any]]:
    """Return the queries for the ids of the page: a single query, or one for each status.

    ``times`` contains the conditions from ``times_of``.
    """
    r = run_history.c
    # A flow or a parent belongs to one project, and the index of flows or parents finds fewer runs
    # than the index of projects.
    of_project = seen(
        run_history, leads=not ({"flow_id", "parent"} & filters.equal.keys() or _labels(filters))
    )
    conditions = [*of_project, *(r[name] == value for name, value in filters.equal.items()), *times]
    if filters.waits is not None:
        conditions.append(wait_column() == filters.waits)
        filters = replace(
            filters,
            statuses=[status for status in filters.statuses or WAITING if status in WAITING],
        )
    if filters.before_run_id is not None:
        conditions.append(r.run_id < filters.before_run_id)
    kinds = [[kind] for kind in in_statuses(r.status, filters.statuses, dict(r))] or [[]]
    if filters.attention:  # only ended runs need attention, and ended runs wait for nothing
        kinds = _attention(filters.statuses)
    if not kinds or (filters.waits is not None and not filters.statuses):
        kinds = [[false()]]
    return [_ids([*conditions, *kind], filters, limit) for kind in kinds]


def _ids(conditions: Sequence[ColumnElement[bool]], filters: RunFilters, limit: int) -> Select[Any]:
    r = run_history.c
    query = select(r.run_id).order_by(r.run_id.desc())
    labels = _labels(filters)
    if labels:
        # The index of the first label returns runs in the order of their ids. Further labels are
        # looked up for each run.
        (leading, name, value), *others = labels
        first = leading.c
        query = (
            select(first.run_id)
            .join(run_history, r.run_id == first.run_id)
            .order_by(first.run_id.desc())
        )
        query = query.where(first[name] == value, *seen(leading, leads=True))
        for table, column, also in others:
            other = table.alias()
            query = query.join(other, and_(other.c.run_id == first.run_id, other.c[column] == also))
        if filters.before_run_id is not None:
            query = query.where(first.run_id < filters.before_run_id)
    # The index of the time is not needed, because the range of ids replaces the time range.
    indexes = _OTHER_ORDER if filters.statuses or filters.attention else _OTHER_ORDER + _OF_STATUS
    ignored = ", ".join(f"ix_run_history_{name}" for name in indexes)
    query = query.with_hint(run_history, f"IGNORE INDEX ({ignored})", "mysql")
    return query.where(*conditions).limit(limit)


def _labels(filters: RunFilters) -> list[tuple[Table, str, str]]:
    """Return the tables and columns that must have a row with a value for each matching run."""
    tags = dict.fromkeys(map(tag_key, filters.tags))
    code = [] if filters.digest is None else [(run_code, "code_digest", filters.digest)]
    return [*code, *((run_tag, "tag", tag) for tag in tags)]


def _attention(statuses: Sequence[str]) -> list[list[ColumnElement[bool]]]:
    """Return the conditions for runs that need attention, as one list for each of these statuses
    (default: all).

    A failed run that was resumed no longer has the status FAILED.
    """
    r = run_history.c
    later = run_history.alias("later")

    def followed(column: str) -> ColumnElement[bool]:
        same = later.c[column] == r[column]
        good = and_(same, good_runs(later), later.c.run_id > r.run_id)
        return exists(select(later.c.run_id).where(good).correlate(run_history))

    theirs = or_(r.ended_by.is_(None), r.ended_by != EndedBy.PERSON)
    left = (r.deleted_at.is_(None), ~followed("work_hash"), ~followed("schedule"))
    kinds = {
        RunStatus.FAILED.value: [r.status == RunStatus.FAILED, theirs, *left],
        # The first condition matches few runs.
        RunStatus.COMPLETED.value: [
            r.ended_by == EndedBy.SERVICE,
            r.lacks.in_(UNMET_OUTCOMES),
            r.status != RunStatus.FAILED,
            *left,
        ],
    }
    return [kind for status, kind in kinds.items() if not statuses or status in statuses]


def times_of(conn: Connection, filters: RunFilters) -> list[ColumnElement[bool]]:
    """Return the conditions for the time range, and for an id range that contains all runs of that
    time.
    """
    r = run_history.c
    conditions: list[ColumnElement[bool]] = []
    if filters.created_from is not None:
        conditions += [
            r.created_at >= filters.created_from,
            r.run_id > last_before(conn, filters.created_from),
        ]
    if filters.created_until is not None:
        conditions += [
            r.created_at < filters.created_until,
            r.run_id < first_after(conn, filters.created_until),
        ]
    return conditions


def last_before(conn: Connection, at: datetime) -> int:
    """Return the number of a run that precedes every run created since ``at``."""
    r = run_history.c
    earlier = (
        select(r.run_id)
        .where(r.created_at < at - CLOCK_SLACK)
        .order_by(r.created_at.desc())
        .limit(1)
    )
    return conn.execute(earlier).scalar_one_or_none() or 0


def first_after(conn: Connection, at: datetime) -> int:
    """Return a number that is higher than the number of every run created before ``at``."""
    r = run_history.c
    later = select(r.run_id).where(r.created_at >= at + CLOCK_SLACK).order_by(r.created_at).limit(1)
    return conn.execute(later).scalar_one_or_none() or ID_MAX


def live_runs(
    conn: Connection, parent: str, request_ids: str, *more: Any, after: int = 0, limit: int = 100
) -> list[int]:
    """Return the ids of live runs of this parent above ``after``, in ascending order.

    ``request_ids`` is the LIKE pattern of their request ids, and ``more`` contains further
    conditions.
    """
    # Each status has its own query, so that an index provides the order.
    r = run_history.c
    found = list[int]()
    for status in LIVE_RUNS:
        query = select(r.run_id).where(r.parent == parent, r.status == status, r.run_id > after)
        query = query.where(r.request_id.like(request_ids), *more).order_by(r.run_id).limit(limit)
        found += conn.execute(query).scalars()
    return sorted(found)[:limit]


def runs_by_id(conn: Connection, run_ids: Sequence[int]) -> list[RunRow]:
    """Return the runs with these ids, by id."""
    r = run_history.c
    query = select(run_history).where(r.run_id.in_(run_ids)).order_by(r.run_id)
    return [run_row(run) for run in conn.execute(query).mappings()] if run_ids else []
