"""Parts that the lines of pools and of caps share: the tasks that hold a slot, and the calls of
waiting runs.

The table of a line has the columns ``run_id`` and ``called_at``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import Column, ColumnElement, Connection, Table, and_, delete, or_, select, update

from crawler_lifecycle.domain.pools import BATCH, RECALL_S
from crawler_lifecycle.domain.task import ACTIVE, TaskStatus
from crawler_lifecycle.store.base.bulk import change_in, rows_in
from crawler_lifecycle.store.base.unit import StorePart

from .tables import LIVE_RUNS, run_history, task_history


class SlotLines(StorePart, ABC):
    """Lines of runs that wait for slots of one kind, as used by workers that call these runs."""

    line: ClassVar[Table]
    """The table of the waiting runs."""

    @abstractmethod
    def adopt(self) -> None:
        """Compare the lines with the present settings."""

    @abstractmethod
    def call(self) -> dict[int, str]:
        """Return the runs that must request slots now, with their workflows."""

    def uncall(self, run_ids: Sequence[int], *, gone: bool) -> None:
        """Undo calls that did not reach a workflow.

        The workflows of the runs ``gone`` are closed, so these runs also leave the line. After a
        takeover, such a run requests its slots again.
        """
        undo = delete(self.line) if gone else update(self.line).values(called_at=None)
        with self._db.writing() as conn:
            # The other runs have requested slots meanwhile.
            called = undo.where(self.line.c.called_at.is_not(None))
            change_in(conn, called, self.line.c.run_id, run_ids)


def holds_slot(now: datetime) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Return the conditions of tasks that hold a slot: of active tasks, and of offered tasks.

    No task meets both. A query that counts slots must be one statement, because between two
    statements, an answer to a call could move tasks from one count to the other.
    """
    t = task_history.c
    of_task = run_history.alias("of_task")
    # A call without an answer may have created its task. The task keeps its slot until a poll after
    # the call proves that the task does not exist.
    unseen = or_(of_task.c.verified_at.is_(None), of_task.c.verified_at <= t.offered_until)
    unseen = select(of_task.c.run_id).where(of_task.c.run_id == t.run_id, unseen).exists()
    offered = and_(
        t.status == TaskStatus.QUEUED,
        t.offered_until.is_not(None),
        or_(t.offered_until >= now, unseen),
    )
    return t.status.in_(ACTIVE), offered


def live_workflows(conn: Connection, line: Table, run_ids: Sequence[int]) -> dict[int, str]:
    """Return the workflows of the live runs among these, and remove the other runs from the line.

    After the takeover of a run without a workflow, the new workflow requests slots again.
    """
    r = run_history.c
    live = select(r.run_id, r.owner_workflow_id).where(
        r.status.in_(LIVE_RUNS), r.stop_requested_at.is_(None), r.owner_workflow_id.is_not(None)
    )
    found = {
        row["run_id"]: row["owner_workflow_id"] for row in rows_in(conn, live, r.run_id, run_ids)
    }
    change_in(conn, delete(line), line.c.run_id, set(run_ids) - found.keys())
    return found


def late_rows(
    conn: Connection, line: Table, columns: Sequence[Column[Any]], now: datetime
) -> list[Any]:
    """Return these columns of runs that did not respond to their call and can be called again,
    those with the earliest calls first.
    """
    at = line.c.called_at
    again = timedelta(seconds=RECALL_S)
    rows = list[Any]()
    # With one condition for both, SQLite would read all runs that were not called.
    for late in (at <= now - again, at >= now + again):
        rows += conn.execute(select(*columns).where(late).order_by(at).limit(BATCH))
    return rows[:BATCH]
