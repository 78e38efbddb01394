"""Queries that several modules of this package need: jobs of managers, and the facts about their
runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, func, not_, select

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.retries import IS_FINAL
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.store.base.bulk import chunks, rows_in
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.runs.rows import run_row
from crawler_lifecycle.store.runs.tables import LIVE_RUNS, run_history, task_history, task_stats
from crawler_lifecycle.store.runs.tasks import run_statistics

from ..domain.manager import JobState
from .rows import RUN_FACTS, JobRun, JobTask
from .tables import manager_item

#: States of jobs that hold a slot.
HOLDING = (JobState.STARTING.value, JobState.STARTED.value)
#: Hints for ``with_hint``: the table, its index, and the dialect that needs them.
BY_IDENTITY = (manager_item, "FORCE INDEX (uq_manager_item_manager_id_identity)", "mysql")
BY_END = (run_history, "FORCE INDEX (ix_run_history_parent_ended_at_run_id)", "mysql")
BY_STATE = (manager_item, "FORCE INDEX (ix_manager_item_manager_id_state_item_id)", "mysql")
_CURRENT = (task_history, "FORCE INDEX (ix_task_history_current)", "mysql")


def known(conn: Connection, manager_id: int, identities: Iterable[str]) -> set[str]:
    """Return the identities among these that a job of the manager has."""
    i = manager_item.c
    query = select(i.identity).where(i.manager_id == manager_id).with_hint(*BY_IDENTITY)
    return {row["identity"] for row in rows_in(conn, query, i.identity, identities)}


def with_run(*conditions: Any) -> Select[Any]:
    """Return a query for jobs, each with the facts about the job's run, if there is one."""
    r = run_history.c
    i = manager_item.c
    facts = [r[name].label(f"run_{name}") for name in RUN_FACTS]
    joined = manager_item.outerjoin(run_history, r.run_id == i.run_id)
    return select(manager_item, *facts).select_from(joined).where(*conditions)


def in_states(
    conn: Connection,
    manager_id: int,
    states: Sequence[str],
    after_id: int,
    limit: int,
    *,
    over: bool = False,
) -> list[Row]:
    """Return a page of the jobs in these states, by id.

    ``over`` is true if the manager has ended. A started job then counts as ENDED if its run has
    ended. Each state has its own query, so that an index gives the order.
    """
    i = manager_item.c
    found = list[Row]()
    lives = func.coalesce(run_history.c.status, "").in_(LIVE_RUNS)
    started = i.state == JobState.STARTED
    conditions = [
        i.state == state if not over or state != JobState.STARTED else and_(started, lives)
        for state in states
    ]
    conditions += [and_(started, not_(lives))] if over and JobState.ENDED in states else []
    for condition in conditions:
        query = with_run(i.manager_id == manager_id, condition, i.item_id > after_id)
        query = query.order_by(i.item_id).limit(limit).with_hint(*BY_STATE)
        found += conn.execute(query).mappings().all()
    return sorted(found, key=lambda row: int(row["item_id"]))[:limit]


def jobs_that_live(conn: Connection, manager_ids: Sequence[int]) -> dict[int, int]:
    """Return the number of started jobs whose run has not ended, for each of these managers."""
    r = run_history.c
    i = manager_item.c
    joined = manager_item.join(run_history, r.run_id == i.run_id)
    query = select(i.manager_id, func.count()).select_from(joined).group_by(i.manager_id)
    query = query.where(
        i.manager_id.in_(manager_ids), i.state == JobState.STARTED, r.status.in_(LIVE_RUNS)
    )
    rows = conn.execute(query.with_hint(*BY_STATE)).all()
    return {of: jobs for of, jobs in rows}  # noqa: C416


def runs_of(conn: Connection, rows: Iterable[Row]) -> dict[int, JobRun]:
    """Return the facts about the runs of these jobs, by the number of the run."""
    r = run_history.c
    found: dict[int, JobRun] = {}
    for chunk in chunks(sorted({row["run_id"] for row in rows if row["run_id"] is not None})):
        query = (
            select(run_history)
            .where(r.run_id.in_(chunk))
            .with_hint(run_history, "FORCE INDEX (PRIMARY)", "mysql")
        )
        runs = [run_row(row) for row in conn.execute(query).mappings()]
        single = _single(conn, [run.run_id for run in runs if not run.multi])
        fatal = _fatal(
            conn, [run.run_id for run in runs if run.multi and run.status == RunStatus.FAILED]
        )
        for run in runs:
            if run.multi:
                found[run.run_id] = JobRun(run, fatal[run.run_id], run_statistics(conn, run.run_id))
            else:
                tasks, statistics = single.get(run.run_id, ([], {}))
                found[run.run_id] = JobRun(run, tasks, statistics)
    return found


def _single(
    conn: Connection, run_ids: Sequence[int]
) -> dict[int, tuple[list[JobTask], dict[str, int | float]]]:
    """Return the only task of each of these single-process runs, with its statistics."""
    t = task_history.c
    joined = task_history.outerjoin(task_stats, task_stats.c.task_id == t.task_id)
    query = select(t.run_id, t.outcome, t.retry_note, task_stats.c.stats).select_from(joined)
    query = query.where(t.run_id.in_(run_ids), t.superseded_by.is_(None))
    if not run_ids:
        return {}
    return {
        row["run_id"]: (
            [JobTask(row["outcome"], row["retry_note"])],
            bounds.statistics(row["stats"]),
        )
        for row in conn.execute(query.with_hint(*_CURRENT)).mappings()
    }


def _fatal(conn: Connection, run_ids: Sequence[int]) -> dict[int, list[JobTask]]:
    """Return a task with a fatal exit code for each of these multi-process runs that has one."""
    t = task_history.c
    found = defaultdict[int, list[JobTask]](list)
    for run_id in run_ids:
        query = select(t.outcome, t.retry_note).where(t.run_id == run_id, t.superseded_by.is_(None))
        query = query.where(t.retry_note.like(f"%{IS_FINAL}")).limit(1)
        rows = conn.execute(query.with_hint(*_CURRENT))
        found[run_id] = [JobTask(outcome, note) for outcome, note in rows]
    return found
