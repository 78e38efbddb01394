"""The outbox: events and how far they are delivered."""

from __future__ import annotations

from collections.abc import Mapping
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
from crawler_lifecycle.store.columns import Json, Key, Long, UtcTime, new_table

from .rows import Row, made

outbox_counter = new_table(
    "outbox_counter",
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
)

outbox_event = new_table(
    "outbox_event",
    Column("seq", Key, primary_key=True, autoincrement=False),
    # The subject: runs/7, managers/3, graphs/nightly. The uid says which run or graph had this number or key.
    Column("subject", String(220), nullable=False),
    Column("subject_uid", String(32), nullable=False),
    # Null where it is about no run.
    Column("run_id", Key, ForeignKey("run_history.run_id")),
    Column("attempt", Integer, nullable=False),
    Column("type", String(50), nullable=False),
    # Null for events that may repeat; an event that must happen once has a key of subject, attempt and type.
    Column("event_key", String(200)),
    Column("body", Json, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("event_key"),
    Index(None, "run_id", "seq"),
    Index(None, "subject", "seq"),
)

outbox_delivery = new_table(
    "outbox_delivery",
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("seq", Key, ForeignKey("outbox_event.seq"), nullable=False),
    Column("sink", String(100), nullable=False),
    Column("status", String(20), nullable=False),
    Column("tries", Integer, nullable=False),
    Column("error", Long),
    Column("delivered_at", UtcTime),
    UniqueConstraint("seq", "sink"),
    Index(None, "sink", "seq"),
)


def insert_event(conn: Connection, row: Mapping[str, Any]) -> Event:
    """Append an event with these columns. Nothing may follow it in the transaction.

    The number comes from a row that stays locked until the commit, so numbers become visible in their order: a reader
    that has seen N never finds a smaller one later. An autoincrement column would not do: its numbers are given out
    before the commits. And because everybody shares that row, taking it last keeps the wait short.
    """
    conn.execute(update(outbox_counter).values(seq=outbox_counter.c.seq + 1))
    whole = {"seq": conn.execute(select(outbox_counter.c.seq)).scalar_one(), **row}
    conn.execute(insert(outbox_event).values(**whole))
    return made(Event, whole)


def facts(row: Row, *names: str) -> dict[str, Any]:
    """Columns of a row for the body of an event: times as text."""
    return {name: at.isoformat() if isinstance(at := row[name], datetime) else at for name in names}
