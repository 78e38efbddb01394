"""The outbox: events, their deliveries, and reports of problems that no status of a run shows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Select, and_, or_, select

from crawler_lifecycle.domain.audits.audit import LiveRun
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import EVENT_RUN_BLOCKED, EVENT_RUN_STALE, request_of_workflow
from crawler_lifecycle.features.webhooks.domain.definition import WEBHOOK_SINKS
from crawler_lifecycle.ports.runs import Event, Fence
from crawler_lifecycle.store.base.outbox import (
    facts,
    outbox_counter,
    outbox_delivery,
    outbox_event,
    record_tries,
)
from crawler_lifecycle.store.base.rows import made, wanted
from crawler_lifecycle.store.runs.tables import LIVE_RUNS, run_history
from crawler_lifecycle.store.runs.unit import RunPart, Unit


class EventStore(RunPart):
    """Events and their deliveries."""

    def append_event(self, fence: Fence, type: str, key: str, body: Mapping[str, object]) -> Event:
        """Append an event. If an event with this ``key`` already exists, return that event
        instead.
        """
        with self._unit(fence) as unit:
            e = outbox_event.c
            row = (
                unit.conn.execute(select(outbox_event).where(e.event_key == key))
                .mappings()
                .one_or_none()
            )
            return made(Event, row) if row is not None else unit.append_event(type, key, body)

    def record_delivery(self, seq: int, sink: str, error: str | None) -> None:
        """Record a try to deliver an event to ``sink``.

        ``error`` is ``None`` if the try succeeded.

        Raises ``InvalidRequest`` if no event has the number ``seq``.
        """
        with self._db.writing() as conn:
            if not record_tries(conn, sink, {seq: error}, self._clock()):
                raise InvalidRequest(f"seq: {seq} is not allowed; there is no such event")

    def delivered_by(self, seq: int) -> set[str]:
        """Return the names of the sinks to which this event was delivered."""
        d = outbox_delivery.c
        rows = self._rows(select(d.sink).where(d.seq == seq, d.status == "delivered"))
        return {row["sink"] for row in rows}

    def find_event(self, key: str) -> Event | None:
        return self._event(select(outbox_event).where(outbox_event.c.event_key == key))

    def last_event(self, run_id: int, type: str) -> Event | None:
        """Return the newest event of this type for the run."""
        e = outbox_event.c
        mine = select(outbox_event).where(e.run_id == run_id, e.type == type)
        return self._event(mine.order_by(e.seq.desc()).limit(1))

    def newest_events(self, run_id: int, limit: int) -> list[Event]:
        """Return the latest events of the run, newest first."""
        e = outbox_event.c
        query = select(outbox_event).where(e.run_id == run_id).order_by(e.seq.desc()).limit(limit)
        return self._made(Event, query)

    def get_event(self, seq: int) -> Event | None:
        """Return the event with this number."""
        return self._event(select(outbox_event).where(outbox_event.c.seq == seq))

    def _event(self, query: Select[Any]) -> Event | None:
        rows = self._rows(query)
        return made(Event, rows[0]) if rows else None

    def events_after(
        self, seq: int, limit: int = 500, run_id: int | None = None, subject: str | None = None
    ) -> list[Event]:
        """Return events with a number above ``seq``, in the order of their numbers.

        ``run_id`` and ``subject`` limit the list to one run or subject. After a reader has seen an
        event, no event with a smaller number appears.
        """
        e = outbox_event.c
        given = wanted((e.run_id, run_id), (e.subject, subject))
        query = select(outbox_event).where(e.seq > seq, *given).order_by(e.seq).limit(limit)
        return self._made(Event, query)

    def last_event_seq(self) -> int:
        """Return the number of the newest event; 0 if there are no events yet."""
        rows = self._rows(select(outbox_counter.c.seq))
        return int(rows[0]["seq"]) if rows else 0

    def deliveries(self, run_id: int, *, keyed: bool = False) -> list[Mapping[str, object]]:
        """Return the deliveries of the run's events: seq, type, attempt, sink, status, tries,
        error, delivered_at.

        An event with a key has the status ``pending`` until its first delivery is tried. If
        ``keyed`` is true, only events with a key are returned, which must be delivered once. Events
        without a key only report a change, and a long run has thousands of such events. Deliveries
        to webhooks are not included (``WebhookStore``).
        """
        e = outbox_event.c
        d = outbox_delivery.c
        once = e.event_key.is_not(None)
        query = (
            select(e.seq, e.type, e.attempt, d.sink, d.status, d.tries, d.error, d.delivered_at)
            .join_from(
                outbox_event,
                outbox_delivery,
                and_(e.seq == d.seq, ~d.sink.like(WEBHOOK_SINKS)),
                isouter=True,
            )
            .where(e.run_id == run_id, once if keyed else or_(once, d.seq.is_not(None)))
            .order_by(e.seq, d.id)
        )
        return [
            {**row, "status": row["status"] or "pending", "tries": row["tries"] or 0}
            for row in self._rows(query)
        ]


class RunReportStore(RunPart):
    """Reports of problems that no status of a run shows.

    Each problem is reported once, by the event ``run.stale`` or ``run.blocked``.
    """

    def note_stale(self, run: LiveRun) -> bool:
        """Report that the poll due at ``run.due_at`` is overdue.

        Returns true if it is overdue and was not reported before.
        """
        if run.due_at is None or not run.planned:
            return False
        with self._unit(run.run_id) as unit:
            still = (
                not unit.status.terminal
                and unit.run["next_look_at"] == run.due_at
                and run.ref == unit.ref
            )
            polled_at = unit.run["verified_at"]
            # Another worker has polled the run in the meantime.
            if not still or (polled_at is not None and polled_at > run.due_at):
                return False
            more = facts(unit.run, "look_error", "verified_at")
            return _append_once(unit, EVENT_RUN_STALE, {"due_at": run.due_at.isoformat()}, more)

    def note_blocked(self, workflow_id: str, run_id: int | None, why: str, since: datetime) -> bool:
        """Report that the workflow of a live run cannot continue.

        If ``run_id`` is ``None``, the workflow id identifies the run. Returns true if the run is
        live, belongs to the workflow, and was not reported before.
        """
        if run_id is None:
            # A workflow that owns its run may have any id. Before the claim, only ids that we
            # assign identify the run.
            request_id = request_of_workflow(workflow_id)
            r = run_history.c
            mine = [
                (r.status.in_(LIVE_RUNS), r.owner_workflow_id == workflow_id),
                (r.request_id == request_id,),
            ]
            found = [
                row["run_id"]
                for where in mine
                for row in self._rows(select(r.run_id).where(*where).limit(1))
            ]
            if not found:
                return False
            run_id = int(found[0])
        with self._unit(run_id) as unit:
            if unit.status.terminal or unit.run["owner_workflow_id"] not in (None, workflow_id):
                return False
            return _append_once(unit, EVENT_RUN_BLOCKED, {"since": since.isoformat()}, {"why": why})


def _append_once(
    unit: Unit, type: str, once: Mapping[str, object], more: Mapping[str, object]
) -> bool:
    """Append the event unless the newest event of its type has the same attempt and the same values
    in ``once``.

    Returns whether it was appended. ``more`` contains further values for its body.
    """
    e = outbox_event.c
    newest = (
        select(e.attempt, e.body)
        .where(e.run_id == unit.run_id, e.type == type)
        .order_by(e.seq.desc())
        .limit(1)
    )
    before = unit.conn.execute(newest).one_or_none()
    if (
        before is not None
        and before.attempt == unit.attempt
        and once.items() <= before.body.items()
    ):
        return False
    names = ("attempt", "crawler", "trigger", "flow_id", "status", "stage")
    unit.append_event(type, None, {**{name: unit.run[name] for name in names}, **once, **more})
    return True
