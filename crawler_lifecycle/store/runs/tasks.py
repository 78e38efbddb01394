"""Queries of tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, func, or_, select, union_all

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.audits.audit import RecordedTask
from crawler_lifecycle.domain.coverage import Coverage, summed
from crawler_lifecycle.domain.task import TaskState, TaskStatus
from crawler_lifecycle.ports.runs import ROWS_MAX, DrawnTask, RunTasks, TaskCounts, TaskRow
from crawler_lifecycle.store.base.bulk import CHUNK, chunks
from crawler_lifecycle.store.base.rows import Row, made
from crawler_lifecycle.store.base.unit import StorePart

from .rows import task_row, task_state
from .tables import run_history, task_history, task_log, task_stats
from .unit import BY_RUN, count_tasks, current_tasks

#: Names of statistics that are summed over the tasks of a run.
NAMES_MAX = 1000
#: The most PENDING tasks of a run among which the first reason is searched.
_REASONS = 5
_BY_ID = "FORCE INDEX (ix_task_history_run_id_task_id)"


class TaskReader(StorePart):
    """Tasks of runs."""

    def list_tasks(
        self,
        run_id: int,
        *,
        after_task_id: int = 0,
        limit: int = 500,
        superseded: bool = False,
        among: Collection[int] | None = None,
    ) -> list[TaskRow]:
        """Tasks by id, superseded ones only when asked for; ``among``: of these ids alone, at most ``ROWS_MAX``."""
        t = task_history.c
        query = select(task_history).where(t.run_id == run_id, t.task_id > after_task_id)
        if not superseded:
            query = query.where(t.superseded_by.is_(None))
        if among is not None:
            if len(among) > ROWS_MAX:
                raise ValueError(f"{len(among)} tasks are asked for at once; give at most {ROWS_MAX}")
            query = query.where(t.task_id.in_(sorted(among)))
        # MySQL may otherwise use the index of current tasks and sort all tasks of a large run.
        page = query.order_by(t.task_id).limit(limit).with_hint(task_history, _BY_ID, "mysql")
        return [task_row(row) for row in self._rows(page)] if among is None or among else []

    def drawn_tasks(self, run_id: int, limit: int) -> list[DrawnTask]:
        """The first tasks by id that are not superseded, in a short form: whole rows of so many would take long."""
        t = task_history.c
        query = select(*(t[name] for name in DrawnTask._fields)).where(t.run_id == run_id, t.superseded_by.is_(None))
        page = query.order_by(t.task_id).limit(limit).with_hint(task_history, _BY_ID, "mysql")
        with self._db.reading() as conn:
            return [DrawnTask._make(row) for row in conn.execute(page)]

    def task_page(
        self, run_id: int, statuses: Sequence[TaskStatus], after_index: int = -1, limit: int = 500
    ) -> list[TaskState]:
        """Tasks in these statuses by index, superseded ones left out."""
        t = task_history.c
        query = (
            current_tasks(run_id, task_history)
            .where(
                t.status.in_([status.value for status in statuses]),
                t.task_index > after_index,
            )
            .order_by(t.task_index)
            .limit(limit)
        )
        return [task_state(row) for row in self._rows(query)]

    def count_tasks(self, run_id: int) -> TaskCounts:
        with self._db.reading() as conn:
            return count_tasks(conn, run_id)

    def tasks_of_runs(self, run_ids: Collection[int]) -> dict[int, RunTasks]:
        """The tasks of these runs, at most ``ROWS_MAX``, that are not superseded; runs without any are left out.

        One statement for all of them, and one for 50 of those that have PENDING tasks.
        """
        if len(run_ids) > ROWS_MAX:
            raise ValueError(f"{len(run_ids)} runs are asked for at once; give at most {ROWS_MAX}")
        t, ids = task_history.c, sorted(set(run_ids))
        if not ids:
            return {}
        query = select(t.run_id, t.status, func.count()).where(t.run_id.in_(ids), t.superseded_by.is_(None))
        counts: dict[int, dict[str, int]] = {}
        reasons: dict[int, str] = {}
        with self._db.reading() as conn:
            counted = query.group_by(t.run_id, t.status).with_hint(task_history, BY_RUN, "mysql")
            for run_id, status, count in conn.execute(counted).all():
                counts.setdefault(run_id, {})[status] = count
            waiting = [run_id for run_id in ids if TaskStatus.PENDING.value in counts.get(run_id, ())]
            for chunk in chunks(waiting, 50):
                first = (
                    current_tasks(run_id, t.run_id, t.task_index, t.reason)
                    .where(t.status == TaskStatus.PENDING.value)
                    .order_by(t.task_index)
                    .limit(_REASONS)
                    .subquery(f"page_{n}")
                    for n, run_id in enumerate(chunk)
                )
                for run_id, _, reason in sorted(conn.execute(union_all(*(select(one) for one in first))).all()):
                    if reason:
                        reasons.setdefault(run_id, reason)
        return {run_id: RunTasks(TaskCounts(found), reasons.get(run_id)) for run_id, found in counts.items()}

    def task_indexes(self, task_ids: Collection[int]) -> dict[int, int]:
        """The index of each of these tasks, at most ``ROWS_MAX``; those that do not exist are left out."""
        if len(task_ids) > ROWS_MAX:
            raise ValueError(f"{len(task_ids)} tasks are asked for at once; give at most {ROWS_MAX}")
        t = task_history.c
        query = select(t.task_id, t.task_index).where(t.task_id.in_(sorted(set(task_ids))))
        return {row["task_id"]: row["task_index"] for row in self._rows(query)} if task_ids else {}

    def recorded_tasks(self, keys: Collection[tuple[int, int, int]]) -> list[RecordedTask]:
        """The existing rows of these tasks (run, index, attempt)."""
        t, wanted = task_history.c, set(keys)
        runs: dict[int, set[int]] = {}
        for run_id, index, _ in wanted:
            runs.setdefault(run_id, set()).add(index)
        found: list[RecordedTask] = []
        with self._db.reading() as conn:
            # Not by tuples: SQLite would read the whole table for those.
            for chunk in chunks(sorted(runs), 50):
                query = (
                    recorded()
                    .where(or_(*(and_(t.run_id == run_id, t.task_index.in_(sorted(runs[run_id]))) for run_id in chunk)))
                    .with_hint(task_history, "FORCE INDEX (uq_task_history_run_id_task_index_attempt)", "mysql")
                )
                found += [recorded_task(row) for row in conn.execute(query).mappings()]
        return [task for task in found if task.key in wanted]

    def log_tail(self, task_id: int) -> str | None:
        rows = self._rows(select(task_log.c.log_tail).where(task_log.c.task_id == task_id))
        return str(rows[0]["log_tail"]) if rows else None

    def statistics(self, run_id: int) -> dict[str, int | float]:
        """The crawlers' own statistics, summed over the run's tasks that are not superseded; empty where none told.

        At most 8 KiB as JSON (``bounds.statistics``).
        """
        with self._db.reading() as conn:
            return run_statistics(conn, run_id)


def recorded() -> Select[Any]:
    t, r = task_history.c, run_history.c
    columns = (t.task_id, t.run_id, t.task_index, t.attempt, t.status, t.cluster_uid, t.exit_code, t.exit_signal)
    return select(*columns, t.outcome, r.run_uid, r.status.label("run_status")).join_from(
        task_history, run_history, r.run_id == t.run_id
    )


def recorded_task(row: Row) -> RecordedTask:
    return made(RecordedTask, row, index=row["task_index"], uid=row["cluster_uid"])


def run_statistics(conn: Connection, run_id: int) -> dict[str, int | float]:
    """The crawlers' own statistics, summed over the run's tasks that are not superseded."""
    t = task_history.c
    query = select(t.task_id, task_stats.c.stats)
    query = query.join_from(task_history, task_stats, task_stats.c.task_id == t.task_id)
    total: dict[str, int | float] = {}
    for stats in _of_each(conn, run_id, query):
        for name, number in bounds.statistics(stats).items():
            if name in total or len(total) < NAMES_MAX:
                total[name] = total.get(name, 0) + number
    return bounds.statistics(total)


def run_coverage(conn: Connection, run_id: int, first: Iterable[str]) -> Coverage | None:
    """The fields that the items of the run's tasks fill, each task as it was at last; ``first`` are told first."""
    t = task_history.c
    told = map(Coverage.of, _of_each(conn, run_id, select(t.task_id, t.fields).where(t.fields.is_not(None))))
    return summed((one for one in told if one is not None), first)


def _of_each(conn: Connection, run_id: int, query: Select[Any]) -> Iterator[Any]:
    """The second column of the query, of each task of the run that is not superseded, read in pages."""
    t, after = task_history.c, 0
    query = query.where(t.run_id == run_id, t.superseded_by.is_(None)).order_by(t.task_id).limit(CHUNK)
    query = query.with_hint(task_history, _BY_ID, "mysql")
    while True:
        rows = conn.execute(query.where(t.task_id > after)).all()
        yield from (row[1] for row in rows)
        if len(rows) < CHUNK:
            return
        after = rows[-1][0]
