"""Live counters of tasks, written between looks. Nothing waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, update

from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import ALIVE
from crawler_lifecycle.ports.looks import Counted
from crawler_lifecycle.store.base.bulk import chunks
from crawler_lifecycle.store.base.rows import Row

from .moves import update_tasks
from .tables import run_history, task_history
from .unit import RunPart, Unit, current_tasks

COUNTERS = ("pages", "items", "errors", "bytes")
_ALIVE = [status.value for status in ALIVE]


class LiveCounterStore(RunPart):
    """Counters of crawlers that execute."""

    def record_counts(self, run: RunRef, counted: Sequence[Counted]) -> int:
        """Raise counters of the run's live tasks, between looks; how many tasks. ``counted`` is of that run.

        Every reader of counters may write them without a fence. So it only ever raises a counter, of the very task (uid
        of the run, index, attempt) while that lives, and moves ``last_progress_at``. It leaves everything else as it
        is, also what belongs to looks, and ``updated_at``: that this does not move says that nobody works for the run.
        It makes no event. Raises ``RunNotFound``.
        """
        wanted = {(one.index, one.attempt): one for one in counted}
        with self._unit(run.run_id) as unit:
            if not run.owns(unit.run["run_uid"]) or unit.status.terminal:
                return 0
            news = [
                new
                for chunk in chunks(sorted({one.index for one in counted}))
                for task in _live(unit, chunk)
                if (one := wanted.get((task["task_index"], task["attempt"]))) is not None
                if (new := _raised(task, one, unit.now)) is not None
            ]
            if news:
                update_tasks(unit, news, replace=(*COUNTERS, "last_progress_at"))
                _add_up(unit)
            return len(news)


def count_sums(unit: Unit) -> dict[str, int | None]:
    """The run's counters: sums over tasks that are not superseded; unknown as long as no task has reported any."""
    t = task_history.c
    sums = (func.sum(t[name]).label(name) for name in COUNTERS)
    row = unit.conn.execute(current_tasks(unit.run_id, *sums)).one()
    return {name: None if value is None else int(value) for name, value in row._mapping.items()}


def _live(unit: Unit, indexes: Sequence[int]) -> Sequence[Row]:
    t = task_history.c
    columns = (t.task_id, t.task_index, t.attempt, t.last_progress_at, *(t[name] for name in COUNTERS))
    query = current_tasks(unit.run_id, *columns).where(t.status.in_(_ALIVE), t.task_index.in_(indexes))
    return unit.conn.execute(query).mappings().all()


def grown(known: Any, told: int | None) -> Any:
    """A counter of one task after a reading: never less than it was."""
    return max((n for n in (known, told) if n is not None), default=None)


def _raised(task: Row, told: Counted, now: datetime) -> dict[str, Any] | None:
    """The columns of a task after this reading; ``None`` when no counter has changed."""
    new = {name: grown(task[name], getattr(told.counters, name)) for name in COUNTERS}
    if all(task[name] == value for name, value in new.items()):
        return None
    # The crawler itself reports the time; a time in the future is not accepted. A first report is no progress yet.
    at = min(told.at or now, now) if moved(task, new) else task["last_progress_at"]
    return {"task_id": task["task_id"], **new, "last_progress_at": at}


def moved(before: Row, after: Mapping[str, Any]) -> bool:
    """Return whether any counter is above zero and differs from before."""
    return any(after[name] and after[name] != before[name] for name in COUNTERS)


def _add_up(unit: Unit) -> None:
    """The run's sums, and when they last moved: after its last look, as the stall rule reads it (``looks.py``)."""
    run = unit.run
    values: dict[str, Any] = dict(count_sums(unit))
    if moved(run, values):
        looked = run["verified_at"]
        values["last_progress_at"] = unit.now if looked is None else max(unit.now, looked + timedelta(microseconds=1))
    unit.conn.execute(update(run_history).where(run_history.c.run_id == unit.run_id).values(**values))
    run.update(values)
