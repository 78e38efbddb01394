"""What the ledger of truth needs: since when looks fail, how long a run made no progress, and what an audit found.

Each run gets a uid, and its events carry it. From here on a database also says which older builds still work on it
(``schema_compatibility``): a build that meets a newer schema asks there instead of refusing.
"""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Written out instead of imported: a migration must go on meaning what it meant when it was released.
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")
#: The oldest schema whose builds still work on this one; every migration says it. Builds before this one refuse a newer
#: schema in any case: this one is the first that asks.
WORKS_FROM = "0003"


def upgrade() -> None:
    _create(
        "audit_finding",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("task_id", sa.BigInteger),
        sa.Column("workflow_id", sa.String(1000)),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.Column("first_seen", _TIME, nullable=False),
        sa.Column("last_seen", _TIME, nullable=False),
        sa.Column("repair", sa.Text),
        sa.Column("repaired_at", _TIME),
        sa.UniqueConstraint("subject", name="uq_audit_finding_subject"),
        sqlite_autoincrement=True,
    )
    _create(
        "audit_report",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("audit_id", sa.String(200), nullable=False),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME, nullable=False),
        sa.Column("report", sa.JSON, nullable=False),
        sa.UniqueConstraint("audit_id", name="uq_audit_report_audit_id"),
        sqlite_autoincrement=True,
    )
    _create(
        "schema_compatibility",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("works_from", sa.String(32), nullable=False),
    )
    _works_from()
    _uids()
    _column("run_history", sa.Column("look_error_since", _TIME))
    _column("run_history", sa.Column("quiet_ms", sa.BigInteger))
    _column("run_history", sa.Column("waiting_since", _TIME))
    _column("task_history", sa.Column("absent_since", _TIME))
    _column("task_change", sa.Column("absent_since", _TIME))
    for table in ("task_history", "task_change"):
        _column(table, sa.Column("missed_at", _TIME))
    _column("task_history", sa.Column("cluster_place", sa.String(200)))
    _column("task_history", sa.Column("killed_at", _TIME))
    _column("task_finding", sa.Column("vouched_at", _TIME))
    _column("run_history", sa.Column("look_ordered_at", _TIME))
    _column("run_history", sa.Column("claim_repair", sa.Boolean))
    _column("run_history", sa.Column("attempt_at", _TIME))
    for table in ("task_history", "task_change"):
        _column(table, sa.Column("resumed", sa.Boolean))
        _column(table, sa.Column("resume_note", sa.String(200)))
    _index("ix_run_history_ended_at_run_id", "run_history", ["ended_at", "run_id"])
    _index("ix_run_history_overdue", "run_history", ["next_look_at", "status", "updated_at"])
    _index("ix_audit_finding_status_last_seen", "audit_finding", ["status", "last_seen"])
    _index("ix_correction_kind_id", "correction", ["kind", "id"])
    _index("ix_correction_summary", "correction", ["created_at", "kind", "lag_ms"])


def downgrade() -> None:
    op.drop_index("ix_correction_summary", "correction")
    op.drop_index("ix_correction_kind_id", "correction")
    for table in ("task_change", "task_history"):
        op.drop_column(table, "resume_note")
        op.drop_column(table, "resumed")
    op.drop_column("outbox_event", "run_uid")
    op.drop_index("ix_run_history_run_uid", "run_history")
    op.drop_column("run_history", "run_uid")
    op.drop_column("run_history", "attempt_at")
    op.drop_column("run_history", "claim_repair")
    op.drop_column("run_history", "look_ordered_at")
    op.drop_column("task_finding", "vouched_at")
    op.drop_column("task_history", "killed_at")
    op.drop_column("task_history", "cluster_place")
    for table in ("task_change", "task_history"):
        op.drop_column(table, "missed_at")
    op.drop_column("task_change", "absent_since")
    op.drop_column("task_history", "absent_since")
    op.drop_column("run_history", "waiting_since")
    op.drop_column("run_history", "quiet_ms")
    op.drop_column("run_history", "look_error_since")
    op.drop_index("ix_run_history_overdue", "run_history")
    op.drop_index("ix_run_history_ended_at_run_id", "run_history")
    op.drop_table("schema_compatibility")
    op.drop_table("audit_report")
    op.drop_table("audit_finding")


def _uids() -> None:
    """Each run gets its uid, and its events carry it. SQLite adds no column without a default that may not be null."""
    for name in ("run_history", "outbox_event"):
        _column(name, sa.Column("run_uid", sa.String(32), nullable=False, server_default=""))
    connection = op.get_bind()
    runs, events = (
        sa.table(name, sa.Column("run_id", sa.BigInteger), sa.Column("run_uid", sa.String(32)))
        for name in ("run_history", "outbox_event")
    )
    for run_id in connection.execute(sa.select(runs.c.run_id).where(runs.c.run_uid == "")).scalars().all():
        connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(run_uid=uuid.uuid4().hex))
    uid = sa.select(runs.c.run_uid).where(runs.c.run_id == events.c.run_id).scalar_subquery()
    connection.execute(sa.update(events).where(events.c.run_uid == "").values(run_uid=uid))
    _index("ix_run_history_run_uid", "run_history", ["run_uid"], unique=True)


def _create(name: str, *parts: Any, **options: Any) -> None:
    # A start on MySQL that was cut off leaves the tables it had made: DDL is not undone there.
    op.create_table(
        name,
        *parts,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        if_not_exists=True,
        **options,
    )


def _works_from() -> None:
    table = sa.table("schema_compatibility", sa.column("id"), sa.column("works_from"))
    connection = op.get_bind()
    if connection.execute(sa.select(table.c.id)).first() is None:
        connection.execute(sa.insert(table).values(id=1, works_from=WORKS_FROM))


def _index(name: str, table: str, columns: list[str], *, unique: bool = False) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns, unique=unique)


def _column(table: str, column: sa.Column[Any]) -> None:
    if column.name not in {known["name"] for known in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)
