"""Everything that only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, Table, and_, func, or_, select

from crawler_lifecycle.adapters.database.schema.rows import (
    Row,
    event_row,
    listed_event,
    listed_run,
    load_request,
    task_row,
    task_state,
    transition_row,
    whole_run,
)
from crawler_lifecycle.adapters.database.schema.tables import (
    cancellation_log,
    export_record,
    history_property,
    outbox_counter,
    outbox_delivery,
    outbox_event,
    run_history,
    status_transition,
    task_history,
    task_log,
)
from crawler_lifecycle.adapters.database.writes.completion import ended_groups
from crawler_lifecycle.adapters.database.writes.unit_of_work import StorePart, count_tasks, current_tasks, missing
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.run import EndedTasks, RunRequest, RunStatus
from crawler_lifecycle.domain.task import ACTIVE, TaskState, TaskStatus
from crawler_lifecycle.domain.wake_ups import WakeUpState
from crawler_lifecycle.ports import Event, Resumption, RunRow, TaskCounts, TaskRow, TransitionRow

from .run_lists import RunFilters, newest_runs

#: Different notes on resumption that are told of one run.
_NOTES_MAX = 10
_LIVE = [status.value for status in RunStatus if not status.terminal]


class ReaderPart(StorePart):
    """The readers of the port. Each is one transaction; all raise only ``StoreUnavailable``, and ``RowUnreadable``.

    Lists of runs, tasks and records go on over a row that another hand spoilt, and mark it.
    """

    def _rows(self, query: Select[Any]) -> Sequence[Row]:
        with self._db.reading() as conn:
            return conn.execute(query).mappings().all()

    def _of_run(self, table: Table, run_id: int) -> list[Mapping[str, object]]:
        query = select(table).where(table.c.run_id == run_id).order_by(table.c.id)
        return [{str(name): value for name, value in row.items()} for row in self._rows(query)]

    def get_run(self, run_id: int) -> RunRow | None:
        if not 0 < run_id <= ID_MAX:  # no row has it, and SQLite's driver does not even take a larger one
            return None
        rows = self._rows(select(run_history).where(run_history.c.run_id == run_id))
        return whole_run(rows[0]) if rows else None

    def wake_targets(self, run_ids: Sequence[int]) -> list[WakeUpState]:
        """By the primary key, in the order of the ids."""
        r = run_history.c
        if not run_ids:
            return []
        query = select(r.run_id, r.owner_workflow_id, r.status, r.verified_at)
        rows = self._rows(query.where(r.run_id.in_(sorted(set(run_ids)))).order_by(r.run_id))
        return [
            WakeUpState(
                row["run_id"],
                row["owner_workflow_id"],
                ended=RunStatus(row["status"]).terminal,
                verified_at=row["verified_at"],
            )
            for row in rows
            # A run whose row another hand spoilt is not woken: the next look tells what is wrong.
            if row["status"] in RunStatus.__members__ and isinstance(row["verified_at"], datetime | None)
        ]

    def find_run(self, request_id: str) -> RunRow | None:
        rows = self._rows(select(run_history).where(run_history.c.request_id == request_id))
        return whole_run(rows[0]) if rows else None

    def request_of(self, run_id: int) -> RunRequest:
        """The stored request of a run, for its own workflow. Raises ``RowMissing``."""
        r = run_history.c
        rows = self._rows(select(r.run_id, r.request).where(r.run_id == run_id))
        if not rows:
            raise missing(run_id)
        return load_request(rows[0])

    def list_runs(
        self,
        *,
        before_run_id: int | None = None,
        limit: int = 50,
        status: Sequence[str] = (),
        stage: str | None = None,
        crawler: str | None = None,
        trigger: str | None = None,
        outcome: str | None = None,
        flow_id: str | None = None,
        tag: str | None = None,
        created_from: datetime | None = None,
        created_until: datetime | None = None,
    ) -> list[RunRow]:
        """The newest runs first; ``before_run_id`` is the last one of the page before."""
        wanted = {"stage": stage, "crawler": crawler, "trigger": trigger, "outcome": outcome, "flow_id": flow_id}
        filters = RunFilters(
            equal={name: str(value) for name, value in wanted.items() if value is not None},
            statuses=[str(one) for one in status],
            tag=tag,
            before_run_id=before_run_id,
            created_from=created_from,
            created_until=created_until,
        )
        with self._db.reading() as conn:
            return [listed_run(row) for row in newest_runs(conn, filters, limit)]

    def list_tasks(
        self, run_id: int, *, after_task_id: int = 0, limit: int = 500, superseded: bool = False
    ) -> list[TaskRow]:
        """Tasks by id; superseded ones only when asked for."""
        t = task_history.c
        query = select(task_history).where(t.run_id == run_id, t.task_id > after_task_id)
        if not superseded:
            query = query.where(t.superseded_by.is_(None))
        return [task_row(row) for row in self._rows(query.order_by(t.task_id).limit(limit))]

    def resumption(self, run_id: int) -> list[Resumption]:
        """What the run's tasks say about going on with saved state, the commonest first."""
        t = task_history.c
        count = func.count().label("tasks")
        said = current_tasks(run_id, t.resumed, t.resume_note, count).where(t.resume_note.is_not(None))
        rows = self._rows(said.group_by(t.resumed, t.resume_note).order_by(count.desc(), t.resume_note))
        return [Resumption(row["resumed"], row["resume_note"], row["tasks"]) for row in rows[:_NOTES_MAX]]

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

    def places(self, run_id: int) -> list[str]:
        """Where tasks of the run live, or calls on their way may bring them to life, as far as it is on record."""
        t = task_history.c
        alive = or_(t.status.in_(ACTIVE), and_(t.status == TaskStatus.QUEUED, t.offered_until.is_not(None)))
        query = current_tasks(run_id, t.cluster_place).where(alive, t.cluster_place.is_not(None)).distinct()
        return sorted(row["cluster_place"] for row in self._rows(query))

    def count_tasks(self, run_id: int) -> TaskCounts:
        with self._db.reading() as conn:
            return count_tasks(conn, run_id)

    def ended_groups(self, run_id: int) -> list[EndedTasks]:
        with self._db.reading() as conn:
            return ended_groups(conn, run_id)

    def transitions(self, run_id: int, after_seq: int = 0, limit: int = 500) -> list[TransitionRow]:
        s = status_transition.c
        query = select(status_transition).where(s.run_id == run_id, s.seq > after_seq).order_by(s.seq).limit(limit)
        return [transition_row(row) for row in self._rows(query)]

    def cancellations(self, run_id: int) -> list[Mapping[str, object]]:
        return self._of_run(cancellation_log, run_id)

    def exports(self, run_id: int) -> list[Mapping[str, object]]:
        return self._of_run(export_record, run_id)

    def properties(self, run_id: int) -> list[Mapping[str, object]]:
        return self._of_run(history_property, run_id)

    def deliveries(self, run_id: int, *, keyed: bool = False) -> list[Mapping[str, object]]:
        """Every try to deliver an event of the run, and as ``pending`` the events with a key that nobody tried yet.

        An event gets its key because it must be delivered once; the others tell of a change and may go nowhere.
        """
        e, d = outbox_event.c, outbox_delivery.c
        wanted = e.event_key.is_not(None)
        query = (
            select(e.seq, e.type, e.attempt, d.sink, d.status, d.tries, d.error, d.delivered_at)
            .join_from(outbox_event, outbox_delivery, e.seq == d.seq, isouter=True)
            .where(e.run_id == run_id, wanted if keyed else or_(wanted, d.seq.is_not(None)))
            .order_by(e.seq, d.id)
        )
        return [{**row, "status": row["status"] or "pending", "tries": row["tries"] or 0} for row in self._rows(query)]

    def log_tail(self, task_id: int) -> str | None:
        rows = self._rows(select(task_log.c.log_tail).where(task_log.c.task_id == task_id))
        return str(rows[0]["log_tail"]) if rows else None

    def find_event(self, key: str) -> Event | None:
        rows = self._rows(select(outbox_event).where(outbox_event.c.event_key == key))
        return event_row(rows[0]) if rows else None

    def last_event(self, run_id: int, type: str) -> Event | None:
        """The run's newest event of this type."""
        e = outbox_event.c
        newest = select(outbox_event).where(e.run_id == run_id, e.type == type).order_by(e.seq.desc()).limit(1)
        rows = self._rows(newest)
        return event_row(rows[0]) if rows else None

    def get_event(self, seq: int) -> Event | None:
        """The event of this number."""
        rows = self._rows(select(outbox_event).where(outbox_event.c.seq == seq))
        return event_row(rows[0]) if rows else None

    def events_after(self, seq: int, limit: int = 500, run_id: int | None = None) -> list[Event]:
        """Events in order; whoever resumes after the last one it saw misses none."""
        e = outbox_event.c
        query = select(outbox_event).where(e.seq > seq).order_by(e.seq).limit(limit)
        if run_id is not None:
            query = query.where(e.run_id == run_id)
        return [listed_event(row) for row in self._rows(query)]

    def last_event_seq(self) -> int:
        """The number of the newest event."""
        rows = self._rows(select(outbox_counter.c.seq))
        return int(rows[0]["seq"]) if rows else 0

    def unowned_runs(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Runs that were reserved or resumed before ``older_than`` and not claimed since, oldest first."""
        r = run_history.c
        query = (
            select(run_history)
            .where(
                r.owner_run_id.is_(None),
                r.status == RunStatus.INITIALIZING,
                r.created_at < older_than,
                or_(r.attempt_at.is_(None), r.attempt_at < older_than),
            )
            .order_by(r.created_at)
            .limit(limit)
        )
        return [listed_run(row) for row in self._rows(query)]

    def unheard_stops(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Live runs whose stop was recorded before ``older_than`` and not acted on, oldest first."""
        r = run_history.c
        query = (
            select(run_history)
            .where(r.stop_acted_at.is_(None), r.status.in_(_LIVE), r.stop_requested_at < older_than)
            .order_by(r.stop_requested_at)
            .limit(limit)
        )
        return [listed_run(row) for row in self._rows(query)]
