"""Queries for reads and writes of managers: their jobs, and the records of the runs of these jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, func, not_, select

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.managers.manager import JobState
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.store.base.bulk import chunks
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.runs.rows import run_row
from crawler_lifecycle.store.runs.tables import LIVE_RUNS, run_history, task_history, task_stats
from crawler_lifecycle.store.runs.tasks import run_statistics

from .rows import RUN_FACTS, ToldRun, ToldTask
from .tables import manager_item

#: States of jobs that hold a slot.
HOLDING = (JobState.STARTING.value, JobState.STARTED.value)
BY_IDENTITY = "FORCE INDEX (uq_manager_item_manager_id_identity)"
BY_STATE = "FORCE INDEX (ix_manager_item_manager_id_state_item_id)"
_FINAL_EXIT_CODES = (4, 17)
_CURRENT = "FORCE INDEX (ix_task_history_current)"


def known(conn: Connection, manager_id: int, identities: Iterable[str]) -> set[str]:
    """Identities among these that some job of the manager has."""
    i = manager_item.c
    found: set[str] = set()
    for chunk in chunks(sorted(set(identities))):
        query = select(i.identity).where(i.manager_id == manager_id, i.identity.in_(chunk))
        found |= set(conn.execute(query.with_hint(manager_item, BY_IDENTITY, "mysql")).scalars())
    return found


def with_run(*conditions: Any) -> Select[Any]:
    """Jobs with the records of their runs, if they have one."""
    r, i = run_history.c, manager_item.c
    facts = [r[name].label(f"run_{name}") for name in RUN_FACTS]
    joined = manager_item.outerjoin(run_history, r.run_id == i.run_id)
    return select(manager_item, *facts).select_from(joined).where(*conditions)


def in_states(
    conn: Connection, manager_id: int, states: Sequence[str], after_id: int, limit: int, *, over: bool = False
) -> list[Row]:
    """A page of the jobs in these states, by id. ``over``: the manager has ended, so a job that was started is ENDED
    when its run has.

    Each state is read for itself, so that nothing is sorted.
    """
    i, found = manager_item.c, list[Row]()
    lives, started = func.coalesce(run_history.c.status, "").in_(LIVE_RUNS), i.state == JobState.STARTED.value
    conditions = [
        i.state == state if not over or state != JobState.STARTED else and_(started, lives) for state in states
    ]
    conditions += [and_(started, not_(lives))] if over and JobState.ENDED in states else []
    for condition in conditions:
        query = with_run(i.manager_id == manager_id, condition, i.item_id > after_id)
        query = query.order_by(i.item_id).limit(limit).with_hint(manager_item, BY_STATE, "mysql")
        found += conn.execute(query).mappings().all()
    return sorted(found, key=lambda row: int(row["item_id"]))[:limit]


def jobs_that_live(conn: Connection, manager_ids: Sequence[int]) -> dict[int, int]:
    """The number of started jobs whose run has not ended, for each of these managers."""
    r, i = run_history.c, manager_item.c
    joined = manager_item.join(run_history, r.run_id == i.run_id)
    query = select(i.manager_id, func.count()).select_from(joined).group_by(i.manager_id)
    query = query.where(i.manager_id.in_(manager_ids), i.state == JobState.STARTED.value, r.status.in_(LIVE_RUNS))
    rows = conn.execute(query.with_hint(manager_item, BY_STATE, "mysql")).all()
    return {of: jobs for of, jobs in rows}  # noqa: C416


def runs_of(conn: Connection, rows: Iterable[Row]) -> dict[int, ToldRun]:
    """The records of the runs of these jobs, by run, for the jobs that have one."""
    r = run_history.c
    found: dict[int, ToldRun] = {}
    for chunk in chunks(sorted({row["run_id"] for row in rows if row["run_id"] is not None})):
        query = select(run_history).where(r.run_id.in_(chunk)).with_hint(run_history, "FORCE INDEX (PRIMARY)", "mysql")
        runs = [run_row(row) for row in conn.execute(query).mappings()]
        single = _single(conn, [run.run_id for run in runs if not run.multi])
        fatal = _fatal(conn, [run.run_id for run in runs if run.multi and run.status == RunStatus.FAILED])
        for run in runs:
            if run.multi:
                found[run.run_id] = ToldRun(run, fatal[run.run_id], run_statistics(conn, run.run_id))
            else:
                tasks, statistics = single.get(run.run_id, ([], {}))
                found[run.run_id] = ToldRun(run, tasks, statistics)
    return found


def _single(conn: Connection, run_ids: Sequence[int]) -> dict[int, tuple[list[ToldTask], dict[str, int | float]]]:
    """The one task of each of these runs, with its statistics."""
    t = task_history.c
    joined = task_history.outerjoin(task_stats, task_stats.c.task_id == t.task_id)
    query = select(t.run_id, t.outcome, t.exit_code, task_stats.c.stats).select_from(joined)
    query = query.where(t.run_id.in_(run_ids), t.superseded_by.is_(None))
    if not run_ids:
        return {}
    return {
        row["run_id"]: ([ToldTask(row["outcome"], row["exit_code"])], bounds.statistics(row["stats"]))
        for row in conn.execute(query.with_hint(task_history, _CURRENT, "mysql")).mappings()
    }


def _fatal(conn: Connection, run_ids: Sequence[int]) -> dict[int, list[ToldTask]]:
    """The runs of these with many tasks whose end no retry can improve."""
    t, found = task_history.c, defaultdict[int, list[ToldTask]](list)
    for run_id in run_ids:
        query = select(t.outcome, t.exit_code).where(t.run_id == run_id, t.superseded_by.is_(None))
        query = query.where(t.exit_code.in_(_FINAL_EXIT_CODES)).limit(1)
        rows = conn.execute(query.with_hint(task_history, _CURRENT, "mysql"))
        found[run_id] = [ToldTask(outcome, exit_code) for outcome, exit_code in rows]
    return found
