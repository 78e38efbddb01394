"""The tables of audits, and the table that records which builds work with this schema."""

from sqlalchemy import BigInteger, Column, Index, Integer, String, UniqueConstraint

from crawler_lifecycle.store.columns import (
    Json,
    Long,
    UtcTime,
    Words,
    counted_key,
    given_key,
    new_table,
    required,
)

audit_finding = new_table(
    "audit_finding",
    # One row per subject of a finding ("task/7/0/1", "run/7", "workflow/…").
    counted_key("id"),
    required("subject", Words(200)),
    required("kind", String(40)),
    required("status", String(20)),
    # There are no foreign keys, because some subjects have no row.
    Column("run_id", BigInteger),
    Column("task_id", BigInteger),
    Column("workflow_id", String(1000)),
    required("detail", Long),
    required("evidence", Json),
    required("first_seen", UtcTime),
    required("last_seen", UtcTime),
    Column("repair", Long),
    Column("repaired_at", UtcTime),
    # The number of consecutive unsuccessful takeovers.
    required("tries", Integer),
    UniqueConstraint("subject"),
    Index(None, "status", "last_seen"),
    Index(None, "run_id"),
)

audit_report = new_table(
    "audit_report",
    counted_key("id"),
    required("audit_id", String(200)),
    required("started_at", UtcTime),
    required("ended_at", UtcTime),
    required("report", Json),
    UniqueConstraint("audit_id"),
)

schema_compatibility = new_table(
    "schema_compatibility",
    # A single row. ``works_from`` is the oldest schema version whose builds still work with this
    # database.
    given_key("id", Integer),
    required("works_from", String(32)),
    # The fingerprint of the tables: the FINGERPRINT of the newest migration of the build that
    # created them.
    Column("fingerprint", String(16)),
)
