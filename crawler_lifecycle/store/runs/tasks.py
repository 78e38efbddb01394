"""Queries for tasks, their logs and their statistics."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, and_, func, or_, select, union_all

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.audits.audit import RecordedTask
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.coverage import Coverage, summed
from crawler_lifecycle.domain.names import files_prefix
from crawler_lifecycle.domain.task import TaskState, TaskStatus
from crawler_lifecycle.domain.tries import Try, counting
from crawler_lifecycle.ports.runs import ROWS_MAX, RunTasks, TaskCounts, TaskRow
from crawler_lifecycle.store.base.bulk import CHUNK, chunks, rows_in
from crawler_lifecycle.store.base.rows import Fault, Row, made, seen, unreadable
from crawler_lifecycle.store.base.unit import StorePart
from crawler_lifecycle.store.columns import uncompressed

from .codes import CODE, code_of
from .rows import task_row, task_state
from .tables import run_history, task_history, task_log, task_observation, task_stats
from .unit import BY_RUN, count_tasks, current_tasks

#: The maximum number of names of statistics that are summed over the tasks of a run.
NAMES_MAX = 1000
#: The maximum number of PENDING tasks of a run that are searched for a reason.
_REASONS = 5
_BY_ID = (task_history, "FORCE INDEX (ix_task_history_run_id_task_id)", "mysql")


class TaskReader(StorePart):
    """Queries for the tasks of runs."""

    def list_tasks(
        self,
        run_id: int,
        *,
        after_task_id: int = 0,
        limit: int = 500,
        superseded: bool = False,
        among: Collection[int] | None = None,
    ) -> list[TaskRow]:
        """Return tasks of a run by id.

        If ``superseded`` is true, include superseded tasks. ``among`` limits the result to tasks
        with these ids. Raises ``ValueError`` for more than ``ROWS_MAX`` ids.
        """
        t = task_history.c
        query = select(task_history).where(t.run_id == run_id, t.task_id > after_task_id)
        if not superseded:
            query = query.where(t.superseded_by.is_(None))
        if among is not None:
            if len(among) > ROWS_MAX:
                raise ValueError(
                    f"among: {len(among)} ids are not allowed; give at most {ROWS_MAX}"
                )
            query = query.where(t.task_id.in_(sorted(among)))
        # Otherwise MySQL may use the index of current tasks and sort all tasks of a large run.
        page = query.order_by(t.task_id).limit(limit).with_hint(*_BY_ID)
        return [task_row(row) for row in self._rows(page)] if among is None or among else []

    def peak_memory(self, run_id: int, most: int) -> int | None:
        """Return the largest peak memory, in bytes, of the first ``most`` current tasks of a run;
        ``None`` if it is not known for any of them.
        """
        t = task_history.c
        current = select(t.peak_memory).where(t.run_id == run_id, t.superseded_by.is_(None))
        first = current.order_by(t.task_id).limit(most).with_hint(*_BY_ID).subquery()
        [row] = self._rows(select(func.max(first.c.peak_memory).label("peak")))
        return None if row["peak"] is None else int(row["peak"])

    def tries(self, run_id: int) -> list[Try]:
        """Return all tries of the tasks of a run, by id."""
        with self._db.reading() as conn:
            return tries_of(conn, run_id)

    def codes(self, run_id: int) -> dict[str, Code]:
        """Return the known codes of all tries of a run, by the folders of their files
        (``names.files_prefix``).
        """
        t = task_history.c
        query = select(t.task_index, t.attempt, *(t[name] for name in CODE))
        found = {}
        for row in self._rows(
            query.where(t.run_id == run_id).order_by(t.task_id).with_hint(*_BY_ID)
        ):
            code = code_of(row)
            if code is not None:
                found[files_prefix(row["task_index"], row["attempt"])] = code
        return found

    def task_page(
        self, run_id: int, statuses: Sequence[TaskStatus], after_index: int = -1, limit: int = 500
    ) -> list[TaskState]:
        """Return tasks in these statuses with an index above ``after_index``, by index, excluding
        superseded tasks.
        """
        t = task_history.c
        query = (
            current_tasks(run_id, task_history)
            .where(
                t.status.in_(statuses),
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
        """Return the counts of tasks of each of these runs, excluding superseded tasks, and a
        reason why a task waits.

        Runs without tasks are left out. One statement counts all tasks, and another one reads the
        reasons for each 50 runs with PENDING tasks. Raises ``ValueError`` for more than
        ``ROWS_MAX`` runs.
        """
        if len(run_ids) > ROWS_MAX:
            raise ValueError(
                f"run_ids: {len(run_ids)} runs are not allowed; give at most {ROWS_MAX}"
            )
        t = task_history.c
        ids = sorted(set(run_ids))
        if not ids:
            return {}
        query = select(t.run_id, t.status, func.count()).where(
            t.run_id.in_(ids), t.superseded_by.is_(None)
        )
        counts: dict[int, dict[str, int]] = {}
        reasons: dict[int, str] = {}
        with self._db.reading() as conn:
            counted = query.group_by(t.run_id, t.status).with_hint(*BY_RUN)
            for run_id, status, count in conn.execute(counted).all():
                counts.setdefault(run_id, {})[status] = count
            waiting = [
                run_id for run_id in ids if TaskStatus.PENDING.value in counts.get(run_id, ())
            ]
            for chunk in chunks(waiting, 50):
                first = (
                    current_tasks(run_id, t.run_id, t.task_index, t.reason)
                    .where(t.status == TaskStatus.PENDING)
                    .order_by(t.task_index)
                    .limit(_REASONS)
                    .subquery(f"page_{n}")
                    for n, run_id in enumerate(chunk)
                )
                for run_id, _, reason in sorted(
                    conn.execute(union_all(*(select(query) for query in first))).all()
                ):
                    if reason:
                        reasons.setdefault(run_id, reason)
        return {
            run_id: RunTasks(TaskCounts(found), reasons.get(run_id))
            for run_id, found in counts.items()
        }

    def task_indexes(self, task_ids: Collection[int]) -> dict[int, int]:
        """Return the index of each of these tasks. Unknown tasks are left out.

        Raises ``ValueError`` for more than ``ROWS_MAX`` tasks.
        """
        if len(task_ids) > ROWS_MAX:
            raise ValueError(
                f"task_ids: {len(task_ids)} tasks are not allowed; give at most {ROWS_MAX}"
            )
        t = task_history.c
        query = select(t.task_id, t.task_index).where(t.task_id.in_(sorted(set(task_ids))))
        return {row["task_id"]: row["task_index"] for row in self._rows(query)} if task_ids else {}

    def recorded_tasks(self, keys: Collection[tuple[int, int, int]]) -> list[RecordedTask]:
        """Return the existing rows of the tasks with these keys (run, index, attempt)."""
        t = task_history.c
        wanted = set(keys)
        runs: dict[int, set[int]] = {}
        for run_id, index, _ in wanted:
            runs.setdefault(run_id, set()).add(index)
        found: list[RecordedTask] = []
        with self._db.reading() as conn:
            # The condition has no tuples, because SQLite would then read the whole table.
            for chunk in chunks(sorted(runs), 50):
                query = (
                    recorded()
                    .where(
                        or_(
                            *(
                                and_(t.run_id == run_id, t.task_index.in_(sorted(runs[run_id])))
                                for run_id in chunk
                            )
                        )
                    )
                    .where(*seen(run_history))
                    .with_hint(
                        task_history,
                        "FORCE INDEX (uq_task_history_run_id_task_index_attempt)",
                        "mysql",
                    )
                )
                found += [recorded_task(row) for row in conn.execute(query).mappings()]
            found = [task for task in found if task.key in wanted]
            o = task_observation.c
            query = select(o.task_id)
            ids = [task.task_id for task in found]
            staged = {row["task_id"] for row in rows_in(conn, query, o.task_id, ids)}
        return [replace(task, staged=task.task_id in staged) for task in found]

    def log_tail(self, task_id: int) -> str | None:
        rows = self._rows(select(task_log).where(task_log.c.task_id == task_id))
        try:
            return uncompressed(rows[0]["compressed"]) or str(rows[0]["log_tail"]) if rows else None
        except (zlib.error, TypeError, UnicodeDecodeError):  # it was edited manually
            fault = Fault(
                "compressed",
                rows[0]["compressed"],
                "set it to NULL: this log is gone",
                document=True,
            )
            raise unreadable(task_log, rows[0], fault) from None

    def statistics(self, run_id: int) -> dict[str, int | float]:
        """Return the statistics that crawlers reported, summed over the run's tasks, excluding
        superseded tasks.

        The result is limited to 8 KiB as JSON (``bounds.statistics``). It is empty if no crawler
        reported statistics.
        """
        with self._db.reading() as conn:
            return run_statistics(conn, run_id)


def tries_of(conn: Connection, run_id: int) -> list[Try]:
    """Return all tries of the tasks of a run, by id."""
    t = task_history.c
    query = select(*(t[name] for name in Try._fields)).where(t.run_id == run_id).order_by(t.task_id)
    return [Try._make(row) for row in conn.execute(query.with_hint(*_BY_ID))]


def recorded() -> Select[Any]:
    t = task_history.c
    r = run_history.c
    columns = (
        t.task_id,
        t.run_id,
        t.task_index,
        t.attempt,
        t.status,
        t.cluster_uid,
        t.exit_code,
        t.exit_signal,
    )
    return select(
        *columns, t.outcome, t.ended_by, r.run_uid, r.status.label("run_status")
    ).join_from(task_history, run_history, r.run_id == t.run_id)


def recorded_task(row: Row) -> RecordedTask:
    return made(RecordedTask, row, index=row["task_index"], uid=row["cluster_uid"])


def run_statistics(conn: Connection, run_id: int) -> dict[str, int | float]:
    """Return the statistics that crawlers reported, summed over the run's tasks, excluding
    superseded tasks.
    """
    t = task_history.c
    query = select(t.task_id, task_stats.c.stats).where(t.superseded_by.is_(None))
    query = query.join_from(task_history, task_stats, task_stats.c.task_id == t.task_id)
    total: dict[str, int | float] = {}
    for _, stats in _of_each(conn, run_id, query):
        for name, number in bounds.statistics(stats).items():
            if name in total or len(total) < NAMES_MAX:
                total[name] = total.get(name, 0) + number
    return bounds.statistics(total)


def run_coverage(conn: Connection, run_id: int, first: Iterable[str]) -> Coverage | None:
    """Return how many items of the run fill each field, summed over all valid tries.

    The fields ``first`` come first. Return ``None`` if no try has reported its fields.
    """
    t = task_history.c
    count = {task_try.task_id for task_try in counting(tries_of(conn, run_id))}
    rows = _of_each(conn, run_id, select(t.task_id, t.fields).where(t.fields.is_not(None)))
    found = (Coverage.of(fields) for task_id, fields in rows if task_id in count)
    return summed((coverage for coverage in found if coverage is not None), first)


def _of_each(conn: Connection, run_id: int, query: Select[Any]) -> Iterator[Any]:
    """Return the rows of the query for each task of the run, read in pages."""
    t = task_history.c
    after = 0
    query = query.where(t.run_id == run_id).order_by(t.task_id).limit(CHUNK).with_hint(*_BY_ID)
    while True:
        rows = conn.execute(query.where(t.task_id > after)).all()
        yield from rows
        if len(rows) < CHUNK:
            return
        after = rows[-1][0]
