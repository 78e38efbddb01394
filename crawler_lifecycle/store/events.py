"""The outbox: events, and their deliveries."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import and_, insert, or_, select, update

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.webhooks.definition import WEBHOOK_SINKS
from crawler_lifecycle.ports.runs import Event, Fence
from crawler_lifecycle.store.base.outbox import outbox_counter, outbox_delivery, outbox_event
from crawler_lifecycle.store.base.rows import made
from crawler_lifecycle.store.runs.unit import RunPart


class EventStore(RunPart):
    """Events and their deliveries."""

    def append_event(self, fence: Fence, type: str, key: str, body: Mapping[str, object]) -> Event:
        """Append one event; the same ``key`` again answers the event already there."""
        with self._unit(fence.run_id, fence) as unit:
            e = outbox_event.c
            row = unit.conn.execute(select(outbox_event).where(e.event_key == key)).mappings().one_or_none()
            return made(Event, row) if row is not None else unit.append_event(type, key, body)

    def record_delivery(self, seq: int, sink: str, error: str | None) -> None:
        """Count one try of a delivery; ``error`` None means delivered."""
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

    def delivered_by(self, seq: int) -> set[str]:
        """The sinks that have delivered this event."""
        d = outbox_delivery.c
        rows = self._rows(select(d.sink).where(d.seq == seq, d.status == "delivered"))
        return {row["sink"] for row in rows}

    def find_event(self, key: str) -> Event | None:
        rows = self._rows(select(outbox_event).where(outbox_event.c.event_key == key))
        return made(Event, rows[0]) if rows else None

    def last_event(self, run_id: int, type: str) -> Event | None:
        """The run's newest event of this type."""
        e = outbox_event.c
        newest = select(outbox_event).where(e.run_id == run_id, e.type == type).order_by(e.seq.desc()).limit(1)
        rows = self._rows(newest)
        return made(Event, rows[0]) if rows else None

    def get_event(self, seq: int) -> Event | None:
        """The event of this number."""
        rows = self._rows(select(outbox_event).where(outbox_event.c.seq == seq))
        return made(Event, rows[0]) if rows else None

    def events_after(
        self, seq: int, limit: int = 500, run_id: int | None = None, subject: str | None = None
    ) -> list[Event]:
        """Events with a greater number, in order, of everything, of one run, or about one ``subject``. None with a
        smaller one appears later."""
        e = outbox_event.c
        query = select(outbox_event).where(e.seq > seq).order_by(e.seq).limit(limit)
        if run_id is not None:
            query = query.where(e.run_id == run_id)
        if subject is not None:
            query = query.where(e.subject == subject)
        return [made(Event, row) for row in self._rows(query)]

    def last_event_seq(self) -> int:
        """The number of the newest event; 0 when there was none yet."""
        rows = self._rows(select(outbox_counter.c.seq))
        return int(rows[0]["seq"]) if rows else 0

    def deliveries(self, run_id: int, *, keyed: bool = False) -> list[Mapping[str, object]]:
        """Every delivery of the run's events that was tried: seq, type, attempt, sink, status, tries, error, when.

        With ``keyed`` only of events that have a key, because they must be delivered once; the others, of which a long
        run has thousands, tell of a change and may go nowhere. What webhooks were told is theirs (``WebhookStore``).
        """
        e, d = outbox_event.c, outbox_delivery.c
        wanted = e.event_key.is_not(None)
        query = (
            select(e.seq, e.type, e.attempt, d.sink, d.status, d.tries, d.error, d.delivered_at)
            .join_from(outbox_event, outbox_delivery, and_(e.seq == d.seq, ~d.sink.like(WEBHOOK_SINKS)), isouter=True)
            .where(e.run_id == run_id, wanted if keyed else or_(wanted, d.seq.is_not(None)))
            .order_by(e.seq, d.id)
        )
        return [{**row, "status": row["status"] or "pending", "tries": row["tries"] or 0} for row in self._rows(query)]
