"""Tables of schedules and their firings."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, UniqueConstraint

from crawler_lifecycle.store.columns import Json, Key, Long, UtcTime, Words, new_table

schedule = new_table(
    "schedule",
    Column("schedule_id", Key, primary_key=True, autoincrement=True),
    Column("name", String(80), nullable=False),
    # Counts up with each definition.
    Column("revision", Integer, nullable=False),
    Column("definition", Json, nullable=False),
    # The revision that Temporal has.
    Column("told", Integer),
    Column("requested_by", Words(255)),
    Column("paused_at", UtcTime),
    Column("pause_reason", Long),
    # Failures of firings up to this one no longer pause it.
    Column("failures_after", BigInteger, nullable=False),
    # Each due time before has its firing.
    Column("checked_until", UtcTime, nullable=False),
    Column("trouble", Long),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    # Since when there are no further due times.
    Column("ended_at", UtcTime),
    Column("deleted_at", UtcTime),
    UniqueConstraint("name"),
)

schedule_due = new_table(
    "schedule_due",
    # One row for each due time. Only its end is changed later: its target, and, where it had none, that a person
    # requested it after all.
    Column("due_id", Key, primary_key=True, autoincrement=True),
    Column("schedule_id", Key, ForeignKey("schedule.schedule_id"), nullable=False),
    # Of the definition by which it was decided.
    Column("revision", Integer, nullable=False),
    Column("due_at", UtcTime, nullable=False),
    Column("decision", String(20), nullable=False),
    Column("reason", Long),
    Column("asked_by", Words(255)),
    # Of the request for it, so that this sent again asks for no other one.
    Column("request_key", String(120)),
    Column("lateness_ms", BigInteger, nullable=False),
    Column("decided_at", UtcTime, nullable=False),
    # The row whose target must have its verdict first.
    Column("after_id", BigInteger),
    # No foreign key: a run, a manager or a graph.
    Column("target_kind", String(20), nullable=False),
    Column("target_id", BigInteger),
    Column("begun_at", UtcTime),
    UniqueConstraint("schedule_id", "due_at"),
    UniqueConstraint("schedule_id", "request_key"),
    Index(None, "schedule_id", "decision", "decided_at"),
    # Firings whose target is still to be begun.
    Index(None, "decision", "target_id", "due_id"),
)
