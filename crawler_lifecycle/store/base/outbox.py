"""The outbox: events, and the state of their deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    String,
    UniqueConstraint,
    insert,
    select,
    update,
)

from crawler_lifecycle.ports.runs import Event
from crawler_lifecycle.store.columns import (
    Json,
    Key,
    Long,
    UtcTime,
    counted_key,
    given_key,
    new_table,
    required,
)

from .rows import Row, change_row, made

#: A description of the sequence numbers of events.
Said = Mapping[int, str | None]

outbox_counter = new_table(
    "outbox_counter",
    given_key("id", Integer),
    required("seq", BigInteger),
)

outbox_event = new_table(
    "outbox_event",
    given_key("seq", Key),
    # The subject: runs/7, managers/3, graphs/nightly. A number or key may be used again later; the
    # uid is unique.
    required("subject", String(220)),
    required("subject_uid", String(32)),
    # Null if the event is not about a run.
    Column("run_id", Key, ForeignKey("run_history.run_id")),
    required("attempt", Integer),
    required("type", String(50)),
    # An event that must exist only once has a key built from its subject, attempt and type. Other
    # events have null here.
    Column("event_key", String(200)),
    required("body", Json),
    required("created_at", UtcTime),
    UniqueConstraint("event_key"),
    Index(None, "run_id", "seq"),
    Index(None, "subject", "seq"),
)

outbox_delivery = new_table(
    "outbox_delivery",
    counted_key("id"),
    required("seq", Key, ForeignKey("outbox_event.seq")),
    required("sink", String(100)),
    required("status", String(20)),
    required("tries", Integer),
    Column("error", Long),
    Column("delivered_at", UtcTime),
    UniqueConstraint("seq", "sink"),
    Index(None, "sink", "seq"),
)


def insert_event(
    conn: Connection,
    at: datetime,
    type: str,
    subject: str,
    uid: str,
    body: Mapping[str, Any],
    **more: Any,
) -> Event:
    """Append an event. This must be the last statement in the transaction. ``more`` contains
    further columns.

    The number of the event comes from a counter row, which stays locked until the commit. Events
    therefore become visible in the order of their numbers: after a reader has seen event N, no
    event with a smaller number appears. An autoincrement column does not guarantee this. All
    writers share the counter row, so it is locked as late as possible.
    """
    conn.execute(update(outbox_counter).values(seq=outbox_counter.c.seq + 1))
    seq = conn.execute(select(outbox_counter.c.seq)).scalar_one()
    about = {
        "subject": subject,
        "subject_uid": uid,
        "run_id": None,
        "attempt": 1,
        "event_key": None,
        **more,
    }
    whole = {"seq": seq, "type": type, "body": body, "created_at": at, **about}
    conn.execute(insert(outbox_event), whole)
    return made(Event, whole)


def append_events(conn: Connection, events: Sequence[Row]) -> None:
    """Append these events, and skip empty entries.

    This must be the last call in the transaction.
    """
    for event in events:
        if event:
            insert_event(conn, **event)


def facts(row: Row, *names: str) -> dict[str, Any]:
    """Return columns of a row for the body of an event, with times as strings."""
    return {name: at.isoformat() if isinstance(at := row[name], datetime) else at for name in names}


def record_tries(
    conn: Connection, sink: str, tried: Said, now: datetime, answers: Said | None = None
) -> bool:
    """Record one try to deliver each of these events to ``sink``.

    ``tried`` maps the number of each event to the error of the try, or to ``None`` if the try
    succeeded. A delivered event stays delivered. Removed events are skipped. ``answers`` contains
    messages from receivers, which are stored with delivered events. Returns whether all events
    exist.
    """
    d = outbox_delivery.c
    new = []
    # The events are locked, so that the pruner removes them either before this transaction or after
    # it.
    locked = (
        select(outbox_event.c.seq)
        .where(outbox_event.c.seq.in_(sorted(tried)))
        .order_by(outbox_event.c.seq)
    )
    there = conn.execute(locked.with_for_update()).scalars().all()
    known = select(outbox_delivery).where(d.seq.in_(there), d.sink == sink)
    before = {row["seq"]: row for row in conn.execute(known).mappings()}
    for seq in there:
        row = before.get(seq)
        values: dict[str, object] = {"status": "failed", "error": tried[seq], "delivered_at": None}
        delivered_at = row["delivered_at"] if row is not None else None
        if tried[seq] is None or delivered_at is not None:
            values = {
                "status": "delivered",
                "error": (answers or {}).get(seq),
                "delivered_at": delivered_at or now,
            }
        if row is None:
            new.append({"seq": seq, "sink": sink, "tries": 1, **values})
        else:
            change_row(conn, outbox_delivery, row, {"tries": row["tries"] + 1, **values})
    if new:
        conn.execute(insert(outbox_delivery), new)
    return len(there) == len(tried)
