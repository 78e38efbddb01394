"""Live counters of tasks, which are written between polls.

No decision about a run depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func

from crawler_lifecycle.domain.blocked import TaskReport
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import ALIVE
from crawler_lifecycle.ports.polls import LiveCounters
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.rows import Row, change_row

from .caps import hear_reports
from .moves import update_tasks
from .tables import run_history, task_history
from .unit import RunPart, Unit, current_tasks

COUNTERS = ("pages", "items", "errors", "bytes")


class LiveCounterStore(RunPart):
    """The counters of executing crawlers."""

    def record_counts(self, run: RunRef, counted: Sequence[LiveCounters]) -> int:
        """Raise the counters of live tasks of the run between polls.

        Returns the number of changed tasks.

        ``counted`` contains counters of this run. Callers need no fence. This method therefore only
        raises counters, only for the task with the same run uid, index and attempt, and only while
        that task is alive. It also sets ``last_progress_at``. No other column is changed, because
        an old ``updated_at`` must still show that no worker is handling the run. No event is
        appended. Raises ``RunNotFound``.
        """
        wanted = {(entry.index, entry.attempt): entry for entry in counted}
        with self._unit(run.run_id) as unit:
            if not run.owns(unit.run["run_uid"]) or unit.status.terminal:
                return 0
            reports = [
                TaskReport(task.index, task.attempt, block)
                for task in counted
                for block in task.blocked or ()
            ]
            hear_reports(unit, reports)
            news = [
                new
                for task in _live(unit, (entry.index for entry in counted))
                if (one := wanted.get((task["task_index"], task["attempt"]))) is not None
                if (new := _raised(task, one, unit.now)) is not None
            ]
            if news:
                update_tasks(unit, news, replace=(*COUNTERS, "last_progress_at"))
                _add_up(unit)
            return len(news)


def count_sums(unit: Unit) -> dict[str, int | None]:
    """Return the counters of the run, summed over its tasks, excluding superseded tasks.

    A counter is ``None`` until a task has reported it.
    """
    t = task_history.c
    sums = (func.sum(t[name]).label(name) for name in COUNTERS)
    row = unit.conn.execute(current_tasks(unit.run_id, *sums)).one()
    return {name: None if value is None else int(value) for name, value in row._mapping.items()}


def _live(unit: Unit, indexes: Iterable[int]) -> Sequence[Row]:
    t = task_history.c
    columns = (
        t.task_id,
        t.task_index,
        t.attempt,
        t.last_progress_at,
        *(t[name] for name in COUNTERS),
    )
    return rows_in(
        unit.conn,
        current_tasks(unit.run_id, *columns).where(t.status.in_(ALIVE)),
        t.task_index,
        indexes,
    )


def grown(known: Any, read: int | None) -> Any:
    """Return the value of a counter of one task after a read. A counter never decreases."""
    return max((n for n in (known, read) if n is not None), default=None)


def _raised(task: Row, read: LiveCounters, now: datetime) -> dict[str, Any] | None:
    """Return the columns of a task after this reading; ``None`` if no counter has changed."""
    new = {name: grown(task[name], getattr(read.counters, name)) for name in COUNTERS}
    if all(task[name] == value for name, value in new.items()):
        return None
    # The time is reported by the crawler, so a time in the future is replaced. Counters of zero do
    # not count as progress.
    at = min(read.at or now, now) if moved(task, new) else task["last_progress_at"]
    return {"task_id": task["task_id"], **new, "last_progress_at": at}


def moved(before: Row, after: Mapping[str, Any]) -> bool:
    """Return whether a counter has changed and is greater than zero."""
    return any(after[name] and after[name] != before[name] for name in COUNTERS)


def _add_up(unit: Unit) -> None:
    """Write the sums of the run, and the time of their last change.

    This time is always after the last poll, because it shows the next poll that there was progress
    (``polls.py``).
    """
    run = unit.run
    values: dict[str, Any] = dict(count_sums(unit))
    if moved(run, values):
        polled = run["verified_at"]
        values["last_progress_at"] = (
            unit.now if polled is None else max(unit.now, polled + timedelta(microseconds=1))
        )
    change_row(unit.conn, run_history, run, values)
    run.update(values)
