"""Stops: the recorded intent, the cancellation of QUEUED tasks, and the requests to tasks to
end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import ColumnElement, and_, false, func, insert, or_, select, update

from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.domain.task import ACTIVE, TaskState, TaskStatus
from crawler_lifecycle.ports.runs import Fence, RunRow, TaskCounts
from crawler_lifecycle.store.base.bulk import change_in, rows_in
from crawler_lifecycle.store.base.unit import stop_values

from .caps import leave_lines
from .moves import Move, move_tasks
from .rows import run_row, task_state
from .tables import cancellation_log, task_history
from .unit import RunPart, Unit, check_fence, current_tasks, read_run

#: Statuses of tasks that a stop without force must still ask to end.
_UNASKED = (TaskStatus.PENDING, TaskStatus.RUNNING)
#: The maximum number of QUEUED tasks that one transaction cancels. Even a slow database needs only
#: seconds for this.
CANCEL_PAGE = 5_000


class StopStore(RunPart):
    """The records of stops, and of tasks that were asked to end."""

    def record_stop(
        self, run_id: int, stop: StopIntent, request_id: str | None, fence: Fence | None = None
    ) -> RunRow:
        """Record the stop intent, and set the run to STOPPING.

        A person's stop also gets a row in ``cancellation_log``.

        The gateway calls this without a fence before it signals the workflow. A second stop keeps
        the time of the first; a forced stop adds force; a person's stop replaces the stop of a
        limit. Nothing is written after the end.
        """
        with self._unit(fence or run_id) as unit:
            if not unit.status.terminal:
                self._record(unit, stop, request_id, fence)
        return run_row(unit.run)

    def _record(
        self, unit: Unit, stop: StopIntent, request_id: str | None, fence: Fence | None
    ) -> None:
        # Ends before the stop were not caused by it. The wrong clock of a gateway must not decide
        # which ends these are.
        at = unit.by_server if fence is None else min(stop.requested_at, unit.by_server)
        before, stop = unit.stop, replace(stop, requested_at=at)
        leave_lines(unit)
        unit.update_run(**stop_values(stop if before is None else before.merged(stop)))
        if unit.stop != before:
            unit.update_run(look_revision=unit.next_revision)
        if fence is None and unit.stop != before:
            # The stop was recorded without the workflow, so the workflow must be notified (again).
            unit.update_run(stop_acted_at=None)
        if stop.limit is None and request_id is not None:
            c = cancellation_log.c
            # After a takeover, the next attempt is notified of the stop with the same id.
            key = (c.run_id == unit.run_id, _of_this_intent(unit), c.request_id == request_id)
            if unit.conn.execute(select(c.id).where(*key).limit(1)).one_or_none() is None:
                _log(unit, stop, request_id)
        evidence = {
            "by": stop.requested_by,
            "reason": stop.reason,
            "force": stop.force,
            "limit": stop.limit,
        }
        unit.move_run(RunStatus.STOPPING, "stop", evidence)
        unit.changed = unit.changed or unit.stop != before

    def cancel_queued(self, fence: Fence, now: datetime) -> TaskCounts:
        """Set QUEUED tasks to CANCELLED, except tasks that a deployment call may still create.

        Returns the counts.

        A call without an answer can create its tasks until ``offered_until``. An offered task is
        therefore cancelled only after a poll between this time and ``now`` that did not find the
        task.

        Each page of tasks is a separate transaction, so that no other writer waits long for the row
        of the run. A retry continues after the last committed page.
        """
        while (counts := self._cancel_page(fence, now)) is None:
            continue
        return counts

    def _cancel_page(self, fence: Fence, now: datetime) -> TaskCounts | None:
        """Cancel one page of tasks.

        Returns the counts after the last page; ``None`` if there may be more pages.
        """
        with self._unit(fence) as unit:
            t = task_history.c
            never_offered = t.offered_until.is_(None)
            polled_at = unit.run["verified_at"]
            not_there = (
                and_(t.offered_until < min(polled_at, now), ~t.ever_seen) if polled_at else false()
            )
            queued = unit.conn.execute(
                current_tasks(unit.run_id, t.task_id)
                .where(t.status == TaskStatus.QUEUED, or_(never_offered, not_there))
                .order_by(t.task_index)
                .limit(CANCEL_PAGE)
            ).scalars()
            outcome = unit.run["stop_limit"] or "cancelled"
            by = unit.run["stop_requested_by"]
            ended_by = EndedBy.PERSON if unit.stop is None else unit.stop.ended_by
            cause = f"Stopped{f' by {by}' if by else ''} before it was deployed"
            moves = [
                Move(
                    task_id,
                    TaskStatus.QUEUED,
                    TaskStatus.CANCELLED,
                    None,
                    outcome,
                    cause,
                    ended_by=ended_by,
                )
                for task_id in queued
            ]
            moved = move_tasks(unit, moves, "stop")
            return None if moved == CANCEL_PAGE else unit.counts()

    def unstopped(
        self,
        fence: Fence,
        force: bool,
        killed_before: datetime | None = None,
        after_index: int = -1,
        limit: int = 500,
    ) -> list[TaskState]:
        """Return a page of the tasks that must still be asked to end (PENDING or RUNNING), by
        index.

        If ``force`` is true, the page contains the active tasks that were not killed yet. If
        ``killed_before`` is given, the page contains the active tasks that were last killed before
        that time. Raises ``Fenced``.
        """
        t = task_history.c
        statuses = ACTIVE if force else _UNASKED
        query = current_tasks(fence.run_id, task_history).where(
            t.status.in_(statuses),
            t.task_index > after_index,
        )
        if force:
            query = query.where(
                t.killed_at.is_(None) if killed_before is None else t.killed_at < killed_before
            )
        with self._db.reading() as conn:
            check_fence(read_run(conn, fence.run_id), fence)
            rows = conn.execute(query.order_by(t.task_index).limit(limit)).mappings().all()
        return [task_state(row) for row in rows]

    def mark_stopping(self, fence: Fence, task_ids: Sequence[int], *, killed: bool = False) -> None:
        """Record that these tasks were asked to end: PENDING and RUNNING become STOPPING.

        ``killed`` is true if a forced stop has just killed these tasks.
        """
        with self._unit(fence) as unit:
            t = task_history.c
            query = select(t.task_id, t.status).where(
                t.run_id == unit.run_id, t.status.in_(_UNASKED)
            )
            rows = rows_in(unit.conn, query, t.task_id, task_ids)
            moves = [
                Move(row["task_id"], TaskStatus(row["status"]), TaskStatus.STOPPING, None)
                for row in rows
            ]
            if killed:
                kill = (
                    update(task_history).where(t.run_id == unit.run_id).values(killed_at=unit.now)
                )
                change_in(unit.conn, kill, t.task_id, task_ids)
            move_tasks(unit, moves, "stop")

    def last_asked(self, run_id: int) -> datetime | None:
        """Return the latest time at which a STOPPING task was asked to end; ``None`` if no task is
        STOPPING.
        """
        t = task_history.c
        query = current_tasks(run_id, func.max(t.status_since)).where(
            t.status == TaskStatus.STOPPING
        )
        with self._db.reading() as conn:
            found: datetime | None = conn.execute(query).scalar_one()
            return found

    def acted_on_stop(self, fence: Fence, at: datetime) -> None:
        """Record the time when the workflow acted on the stop, as ``note_acted`` does."""
        with self._unit(fence) as unit:
            note_acted(unit, at)


def note_acted(unit: Unit, at: datetime) -> None:
    """Record the time when the stop was acted on, in the run and in its rows of the cancellation
    log.

    Rows of an earlier attempt are included, because the next attempt carries out the same stop
    after a takeover.
    """
    c = cancellation_log.c
    unit.conn.execute(
        update(cancellation_log)
        .where(c.run_id == unit.run_id, _of_this_intent(unit), c.acted_at.is_(None))
        .values(acted_at=at)
    )
    if unit.stop is not None and unit.run["stop_acted_at"] is None:
        unit.update_run(stop_acted_at=at)


def _of_this_intent(unit: Unit) -> ColumnElement[bool]:
    """Return the condition for the log rows of the recorded stop.

    A stop remains in force after a takeover, until a verdict ends it.
    """
    c = cancellation_log.c
    stop = unit.stop
    mine = c.attempt == unit.attempt
    return mine if stop is None else or_(mine, c.requested_at >= stop.requested_at)


def _log(unit: Unit, stop: StopIntent, request_id: str) -> None:
    facts = {
        name: getattr(stop, name) for name in ("requested_by", "reason", "force", "requested_at")
    }
    row = {"run_id": unit.run_id, "attempt": unit.attempt, "request_id": request_id, **facts}
    unit.conn.execute(insert(cancellation_log).values(**row))
