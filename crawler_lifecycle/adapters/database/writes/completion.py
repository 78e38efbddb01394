"""Completion and resumption: the verdict, new rows for what is to run again, events and exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, func, insert, literal, or_, select, update

from crawler_lifecycle.adapters.database.schema.row_validation import Fault, unreadable
from crawler_lifecycle.adapters.database.schema.rows import event_row, run_row
from crawler_lifecycle.adapters.database.schema.tables import (
    export_record,
    outbox_delivery,
    outbox_event,
    run_history,
    status_transition,
    task_addition,
    task_history,
)
from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState, RowUnreadable
from crawler_lifecycle.domain.names import EVENT_RUN_ENDED, EVENT_RUN_STOPPED, WAITING_FOR_START, archive_key, event_key
from crawler_lifecycle.domain.run import EndedTasks, ExportResult, Stage, StopIntent, Verdict
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports import Event, Fence, RunRow, TaskCounts

from .bulk import chunks, forget_staged, update_tasks
from .live_counters import count_sums
from .stops import note_acted
from .unit_of_work import StorePart, Unit, check_fence, checked_counts, current_tasks

_NOT_SUCCEEDED = (TaskStatus.FAILED.value, TaskStatus.CANCELLED.value, TaskStatus.LOST.value)


def ended_groups(conn: Connection, run_id: int) -> list[EndedTasks]:
    """How many tasks are in which status with which outcome, and the cause of one of them."""
    t = task_history.c
    rows = conn.execute(
        current_tasks(run_id, t.status, t.outcome, func.count(), func.min(t.cause))
        .group_by(t.status, t.outcome)
        .order_by(t.status, t.outcome)
    )
    return [EndedTasks(status, outcome, count, cause) for status, outcome, count, cause in rows]


def _with_the_wait(verdict: Verdict, unit: Unit) -> Verdict:
    """The verdict of a run that did not start in time names what it waited for, which is on record until then."""
    waited = unit.run["waiting_for"]
    if verdict.outcome != "start_timeout" or waited in (None, WAITING_FOR_START):
        return verdict
    return replace(verdict, cause=f"{verdict.cause}; it waited for this: {waited}")


class CompletionPart(StorePart):
    """``end_run``, ``requeue_ended``, ``append_event``, ``record_delivery``, ``record_export``."""

    def end_run(self, fence: Fence, judge: Callable[[Sequence[EndedTasks], StopIntent | None], Verdict]) -> RunRow:
        """Judge the run and set its terminal status, with the events of it in the same transaction.

        These are ``run.ended``, and ``run.stopped`` whenever a stop is on record, however its signal fared.

        Again: the row as it is, without asking ``judge``.

        Raises ``NotInThisState`` when tasks are still alive, and whatever ``judge`` raises.
        """
        with self._unit(fence.run_id, fence) as unit:
            counts = checked_counts(unit.conn, unit.run)
            if unit.status.terminal:
                _check_judged(unit)
                return run_row(unit.run)
            if counts.alive:
                raise NotInThisState(f"Run {unit.run_id} cannot end: {counts.alive} of its tasks are still alive")
            _check_complete(unit, counts)
            verdict = _with_the_wait(judge(ended_groups(unit.conn, unit.run_id), unit.stop), unit)
            t = task_history.c
            last_end = unit.conn.execute(current_tasks(unit.run_id, func.max(t.ended_at))).scalar_one()
            unit.move_run(
                verdict.status,
                "stop" if unit.stop else "look",
                {"tasks": dict(counts.by_status), "outcome": verdict.outcome, "cause": verdict.cause},
                cluster_time=last_end,
                outcome=verdict.outcome,
                cause=verdict.cause,
                # The run was over when its last task was, however late that was found; a clock ahead of ours is not
                # believed.
                ended_at=min(last_end, unit.now) if last_end else unit.now,
                stage=Stage.COMPLETION.value,
                waiting_for=None,
                next_look_at=None,
                **count_sums(unit),
            )
            if unit.stop is not None:
                note_acted(unit, unit.now)  # nothing is left to be done about one that nobody heard of any more
            forget_staged(unit)
            if unit.stop is not None:
                key = event_key(unit.ref, unit.attempt, EVENT_RUN_STOPPED)
                unit.append_event(EVENT_RUN_STOPPED, key, _stopped_body(unit))
            key = event_key(unit.ref, unit.attempt, EVENT_RUN_ENDED)
            unit.append_event(EVENT_RUN_ENDED, key, _ended_body(unit, counts))
            return run_row(unit.run)

    def requeue_ended(self, fence: Fence, include_succeeded: bool) -> TaskCounts:
        """New QUEUED rows of this attempt for indexes that ended without success in an earlier one.

        QUEUED rows go on as rows of this attempt, unless a call of a former attempt for them may still be on its way;
        ``offer_tasks`` takes those over when it no longer can. Under a stop no rows are made. Again: nothing.
        """
        with self._unit(fence.run_id, fence) as unit:
            _adopt_queued(unit)
            if unit.stop is None and not unit.status.terminal and unit.run["requeued_attempt"] != unit.attempt:
                statuses = (*_NOT_SUCCEEDED, TaskStatus.SUCCEEDED.value) if include_succeeded else _NOT_SUCCEEDED
                _new_rows(unit, statuses)
                unit.update_run(requeued_attempt=unit.attempt)
            return unit.counts()

    def append_event(self, fence: Fence, type: str, key: str, body: Mapping[str, object]) -> Event:
        """Append one event. The same ``key`` again answers the event already there."""
        with self._unit(fence.run_id, fence) as unit:
            e = outbox_event.c
            row = unit.conn.execute(select(outbox_event).where(e.event_key == key)).mappings().one_or_none()
            return event_row(row) if row is not None else unit.append_event(type, key, body)

    def record_delivery(self, seq: int, sink: str, error: str | None) -> None:
        """Count one try. What was delivered stays delivered. Raises ``InvalidRequest`` when there is no such event."""
        d = outbox_delivery.c
        with self._db.writing() as conn:
            event = select(outbox_event.c.seq).where(outbox_event.c.seq == seq).with_for_update()
            if conn.execute(event).one_or_none() is None:
                raise InvalidRequest(f"seq: {seq} is not allowed; there is no such event")
            key = (d.seq == seq, d.sink == sink)
            row = conn.execute(select(outbox_delivery).where(*key)).mappings().one_or_none()
            delivered = error is None or (row is not None and row["status"] == "delivered")
            at = self._clock() if error is None else None
            values = {
                "status": "delivered" if delivered else "failed",
                "tries": (row["tries"] if row is not None else 0) + 1,
                "error": None if delivered else error,
                "delivered_at": row["delivered_at"] or at if row is not None else at,
            }
            if row is None:
                conn.execute(insert(outbox_delivery).values(seq=seq, sink=sink, **values))
            else:
                conn.execute(update(outbox_delivery).where(*key).values(**values))

    def record_export(self, fence: Fence, status: str, result: ExportResult | None, error: str | None) -> None:
        """How the export of the fence's attempt stands; there is one row for an attempt, and the last word counts.

        What was stored stays on record with its address: a later try that fails adds its error and nothing else.
        An attempt that was resumed meanwhile may still say how its own export went: nobody else will.
        """
        x = export_record.c
        with self._unit(fence.run_id) as unit:
            if fence.attempt >= unit.attempt:
                check_fence(unit.run, fence)
            key = (x.run_id == unit.run_id, x.attempt == fence.attempt)
            values = {
                "status": status,
                "url": result.url if result else None,
                "bytes": result.bytes if result else None,
                "files": result.files if result else None,
                "sha256": result.sha256 if result else None,
                "error": error,
                "at": unit.now,
            }
            stored = unit.conn.execute(select(x.url).where(*key)).one_or_none()
            if stored is not None and stored.url is not None and result is None:
                values = {"error": error, "at": unit.now}
            if stored is None:
                row = {"run_id": unit.run_id, "attempt": fence.attempt, **values}
                unit.conn.execute(insert(export_record).values(**row))
            else:
                unit.conn.execute(update(export_record).where(*key).values(**values))


def _check_judged(unit: Unit) -> None:
    """Raise ``RowUnreadable`` when the terminal status is not ours: with each verdict of ours comes its event."""
    key = event_key(unit.ref, unit.attempt, EVENT_RUN_ENDED)
    if unit.conn.execute(select(outbox_event.c.seq).where(outbox_event.c.event_key == key)).one_or_none() is None:
        cure = f"no verdict of attempt {unit.attempt} set it: set it back to PROCESSING, and the run is judged at once"
        raise unreadable(run_history, unit.run, Fault("status", unit.run["status"], cure))


def _check_complete(unit: Unit, counts: TaskCounts) -> None:
    """Raise ``RowUnreadable`` when a task's row vanished, or one index counts twice: a verdict would be over others."""
    t = task_history.c
    rows = sum(counts.by_status.values())
    last = unit.conn.execute(current_tasks(unit.run_id, func.max(t.task_index))).scalar_one()
    expected = max(_tasks_made(unit), 0 if last is None else last + 1)
    if rows == expected:
        return
    found = set(unit.conn.execute(current_tasks(unit.run_id, t.task_index)).scalars())
    missing = [str(index) for index in range(expected) if index not in found]
    if missing:
        what = f"no row that counts has task_index {', '.join(missing[:10])}"
        cure = "insert it again (QUEUED, to execute it; LOST with ended_at, when it is gone), or restore a backup"
    else:
        what = "a task_index has two rows that count"
        cure = "set superseded_by of the older one to the task_id of the newer one"
    raise RowUnreadable(f"task_history run_id {unit.run_id}: {rows} rows for {expected} tasks: {what}; {cure}")


def _tasks_made(unit: Unit) -> int:
    """How many tasks the run was given, by the record of its beginning and of what was added later."""
    s, a = status_transition.c, task_addition.c
    query = select(status_transition).where(s.run_id == unit.run_id).order_by(s.seq).limit(1)
    first = unit.conn.execute(query).mappings().one_or_none()
    known = first is not None and first["from_status"] is None and isinstance(first["evidence"], dict)
    began = first["evidence"].get("tasks") if known and first is not None else None
    added = unit.conn.execute(select(func.sum(a.tasks)).where(a.run_id == unit.run_id)).scalar_one()
    return (began if isinstance(began, int) else 0) + int(added or 0)


def _stopped_body(unit: Unit) -> dict[str, object]:
    """What the front end is told about a run that was to be stopped."""
    return {name: unit.run[name] for name in ("run_id", "attempt", "crawler", "status", "outcome", "cause")}


def _ended_body(unit: Unit, counts: TaskCounts) -> dict[str, object]:
    """What data pipelines are told about an ended run."""
    run = run_row(unit.run)
    return {
        "run_id": run.run_id,
        "attempt": run.attempt,
        "request_id": run.request_id,
        "crawler": run.crawler,
        "trigger": run.trigger,
        "flow_id": run.flow_id,
        "status": run.status.value,
        "outcome": run.outcome,
        "cause": run.cause,
        "tasks": counts.positive(),
        "pages": run.pages,
        "items": run.items,
        "errors": run.errors,
        "started_at": run.started_at.isoformat() if run.started_at else None,
        "ended_at": run.ended_at.isoformat() if run.ended_at else None,
        "supporting_files": archive_key(run.run_id, run.attempt),
    }


def _adopt_queued(unit: Unit) -> None:
    t = task_history.c
    queued = current_tasks(unit.run_id, t.task_id).where(
        t.status == TaskStatus.QUEUED,
        t.attempt < unit.attempt,
        or_(t.offered_until.is_(None), t.offered_until < unit.now),
    )
    for chunk in chunks(unit.conn.execute(queued.with_for_update()).scalars().all()):
        unit.conn.execute(
            update(task_history)
            .where(t.task_id.in_(chunk), t.status == TaskStatus.QUEUED)
            .values(attempt=unit.attempt, offered_until=None)
        )


def _new_rows(unit: Unit, statuses: Sequence[str]) -> None:
    """Insert the new rows from the old ones, and point each old one to its successor."""
    t = task_history.c
    again = (t.attempt < unit.attempt, t.status.in_(statuses))
    columns = ("run_id", "attempt", "task_index", "status", "status_since", "args", "ever_seen")
    since = literal(unit.now, t.status_since.type)
    values = (t.run_id, literal(unit.attempt), t.task_index, literal("QUEUED"), since, t.args, literal(False))
    old = current_tasks(unit.run_id, *values)
    unit.conn.execute(insert(task_history).from_select(columns, old.where(*again).order_by(t.task_index)))
    new = task_history.alias("new")
    pairs = unit.conn.execute(
        current_tasks(unit.run_id, t.task_id, new.c.task_id.label("superseded_by"))
        .where(*again)
        .where(new.c.run_id == t.run_id, new.c.task_index == t.task_index, new.c.attempt == unit.attempt)
    )
    done = update_tasks(unit, [dict(pair) for pair in pairs.mappings()], replace=("superseded_by",))
    unit.changed = unit.changed or done > 0
