"""The numbers of runs and tasks: reads the highest number in the database, and raises the
counters.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    String,
    Table,
    delete,
    func,
    insert,
    select,
)

from crawler_lifecycle.domain.names import TASKS_PER_RUN_MAX
from crawler_lifecycle.domain.run import RunStatus, Stage, Trigger
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.store.base.outbox import outbox_counter
from crawler_lifecycle.store.base.unit import StorePart
from crawler_lifecycle.store.columns import UtcTime
from crawler_lifecycle.store.runs.tables import run_history, task_history

#: The maximum number of task numbers that are skipped at once.
TASK_GAP_MAX = 10**9
#: Values in temporary rows for columns that accept only certain values.
_REAL = {
    "run_history": {
        "attempt": 1,
        "status": RunStatus.INITIALIZING,
        "stage": Stage.INITIATION,
        "trigger": Trigger.API,
    },
    "task_history": {"attempt": 1, "status": TaskStatus.QUEUED},
}


class RunNumberStore(StorePart):
    """The numbers of runs."""

    def newest_run_id(self) -> int:
        """Return the highest number of a run in the database; 0 if there are no runs."""
        with self._db.reading() as conn:
            return _newest(conn, run_history.c.run_id)

    def begin_run_ids_above(self, run_id: int) -> bool:
        """Ensure that new runs get numbers higher than ``number``. Returns whether this changed
        anything.

        Numbers never decrease. If runs are missing because the database was restored or recreated,
        their tasks are missing too. New tasks therefore skip as many numbers as the missing runs
        may have used.

        A row with this number is inserted and deleted in one transaction. This raises the counter
        on every database, needs no permission to change the schema, and reaches replicas. No other
        transaction sees the row.
        """
        if run_id <= self.newest_run_id():
            return False
        with self._db.writing() as conn:
            # Many workers may start at the same time. This lock prevents deadlocks between inserts
            # of the same number.
            conn.execute(select(outbox_counter.c.id).with_for_update()).all()
            now = self._clock()
            following = _insert(conn, run_history, now)
            _remove(conn, run_history, following)
            if following > run_id:
                return False
            _insert(conn, run_history, now, run_id=run_id)
            gap = min((run_id - following + 1) * TASKS_PER_RUN_MAX, TASK_GAP_MAX)
            task_id = _newest(conn, task_history.c.task_id) + gap
            _insert(conn, task_history, now, task_id=task_id, run_id=run_id)
            _remove(conn, task_history, task_id)
            _remove(conn, run_history, run_id)
            return True


def _newest(conn: Connection, column: Column[int]) -> int:
    return conn.execute(select(func.max(column))).scalar_one() or 0


def _insert(conn: Connection, table: Table, now: datetime, **values: Any) -> int:
    blanks = {c.name: _blank(c, now) for c in table.columns if not c.nullable and not c.primary_key}
    done = conn.execute(insert(table).values(**{**blanks, **_REAL[table.name], **values}))
    assert done.inserted_primary_key is not None, "it is a plain INSERT of one row"
    return int(done.inserted_primary_key[0])


def _blank(column: Column[Any], now: datetime) -> object:
    """Return a value of this column for a temporary row."""
    if isinstance(column.type, UtcTime):
        return now
    if isinstance(column.type, Boolean):
        return False
    if isinstance(column.type, JSON):
        return {}
    return "" if isinstance(column.type, String) else 0


def _remove(conn: Connection, table: Table, number: int) -> None:
    [key] = table.primary_key.columns
    conn.execute(delete(table).where(key == number))
