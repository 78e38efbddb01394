"""Tables of audits, and the table that says which builds work with this schema."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, String, UniqueConstraint

from crawler_lifecycle.store.columns import Json, Long, UtcTime, Words, counted_key, given_key, new_table

audit_finding = new_table(
    "audit_finding",
    # One row for each subject of a finding ("task/7/0/1", "run/7", "workflow/…").
    counted_key("id"),
    Column("subject", Words(200), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("status", String(20), nullable=False),
    # There are no foreign keys, because a subject may have no row.
    Column("run_id", BigInteger),
    Column("task_id", BigInteger),
    Column("workflow_id", String(1000)),
    Column("detail", Long, nullable=False),
    Column("evidence", Json, nullable=False),
    Column("first_seen", UtcTime, nullable=False),
    Column("last_seen", UtcTime, nullable=False),
    Column("repair", Long),
    Column("repaired_at", UtcTime),
    # The number of unsuccessful take-overs in a row.
    Column("tries", Integer, nullable=False),
    UniqueConstraint("subject"),
    Index(None, "status", "last_seen"),
    Index(None, "run_id"),
)

audit_report = new_table(
    "audit_report",
    counted_key("id"),
    Column("audit_id", String(200), nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime, nullable=False),
    Column("report", Json, nullable=False),
    UniqueConstraint("audit_id"),
)

schema_compatibility = new_table(
    "schema_compatibility",
    # The only row. ``works_from`` is the oldest schema version whose builds still work on this database.
    given_key("id", Integer),
    Column("works_from", String(32), nullable=False),
    # The fingerprint of the tables, by the build that made them (the FINGERPRINT of its newest migration).
    Column("fingerprint", String(16)),
)
