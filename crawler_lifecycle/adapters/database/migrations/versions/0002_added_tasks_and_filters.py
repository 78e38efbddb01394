"""Tasks that are added to a live run, tags that can be asked for, and an index for every filter of the list of runs.

Only tables, indexes and columns that may be null are added: a worker of the schema before goes on working on this one.
Runs that it creates meanwhile have no rows in ``run_tag``, so they are not found by their tags; everything else about
them is the same.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Written out instead of imported: a migration must go on meaning what it meant when it was released.
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")
_PAGE = 1000

_RUN_INDEXES = {
    "ix_run_history_stage_run_id": ["stage", "run_id"],
    "ix_run_history_crawler_status_run_id": ["crawler", "status", "run_id"],
    "ix_run_history_trigger_run_id": ["trigger", "run_id"],
    "ix_run_history_outcome_run_id": ["outcome", "run_id"],
    "ix_run_history_flow_id_status_run_id": ["flow_id", "status", "run_id"],
    "ix_run_history_created_at": ["created_at"],
}


def upgrade() -> None:
    _create(
        "task_addition",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("run_id", _KEY, sa.ForeignKey("run_history.run_id"), nullable=False),
        sa.Column("request_key", sa.String(120), nullable=False),
        sa.Column("args_hash", sa.String(32), nullable=False),
        sa.Column("first_index", sa.Integer, nullable=False),
        sa.Column("tasks", sa.Integer, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.UniqueConstraint("run_id", "request_key", name="uq_task_addition_run_id_request_key"),
        sqlite_autoincrement=True,
    )
    _create(
        "run_tag",
        sa.Column("tag", sa.String(200), primary_key=True),
        sa.Column("run_id", _KEY, sa.ForeignKey("run_history.run_id"), primary_key=True, autoincrement=False),
    )
    _create(
        "task_finding",
        sa.Column("run_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("task_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("believed", sa.String(20), nullable=False),
        sa.Column("terminal", sa.Boolean, nullable=False),
        sa.Column("cluster_time", _TIME),
        sa.Column("correction", sa.String(30)),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.Column("status", sa.String(20)),
        sa.Column("outcome", sa.String(200)),
        sa.Column("cause", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("started_at", _TIME),
        sa.Column("deployed_at", _TIME),
        sa.Column("cluster_name", sa.String(255)),
        sa.Column("cluster_uid", sa.String(100)),
        sa.Column("node", sa.String(255)),
        sa.Column("exit_code", sa.Integer),
        sa.Column("exit_signal", sa.Integer),
    )
    # Rows of this worktable live within one transaction, so there are none whose values would be missing.
    _column("task_change", sa.Column("cluster_time", _TIME))
    _column("task_change", sa.Column("lag_ms", sa.BigInteger))
    _column("task_change", sa.Column("correction", sa.String(30)))
    _column("task_change", sa.Column("evidence", sa.JSON))
    _index("ix_run_tag_run_id", "run_tag", ["run_id"])
    for name, columns in _RUN_INDEXES.items():
        _index(name, "run_history", columns)
    _index("ix_task_history_run_id_task_id", "task_history", ["run_id", "task_id"])
    _tag_runs()


def downgrade() -> None:
    for name in _RUN_INDEXES:
        op.drop_index(name, "run_history")
    op.drop_index("ix_task_history_run_id_task_id", "task_history")
    for name in ("cluster_time", "lag_ms", "correction", "evidence"):
        op.drop_column("task_change", name)
    op.drop_table("task_finding")
    op.drop_table("run_tag")
    op.drop_table("task_addition")


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


def _index(name: str, table: str, columns: list[str]) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns)


def _column(table: str, column: sa.Column[Any]) -> None:
    if column.name not in {known["name"] for known in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def _tag_runs() -> None:
    """Copy the tags out of the stored requests, in pages; what is there already stays."""
    connection, last = op.get_bind(), 0
    runs = sa.table("run_history", sa.column("run_id"), sa.column("request", sa.Text))
    tags = sa.table("run_tag", sa.column("tag"), sa.column("run_id"))
    while True:
        query = sa.select(runs.c.run_id, runs.c.request).where(runs.c.run_id > last)
        page = connection.execute(query.order_by(runs.c.run_id).limit(_PAGE)).all()
        if not page:
            return
        last = page[-1].run_id
        wanted = {(_stored(tag), run.run_id) for run in page for tag in json.loads(run.request).get("tags") or []}
        between = tags.c.run_id.between(page[0].run_id, last)
        there = {(row.tag, row.run_id) for row in connection.execute(sa.select(tags).where(between))}
        rows = [{"tag": tag, "run_id": run_id} for tag, run_id in sorted(wanted - there)]
        if rows:
            connection.execute(sa.insert(tags), rows)


def _stored(tag: str) -> str:
    # MySQL ignores spaces at the end when it compares, and no database takes half a surrogate pair.
    return tag.encode("utf-8", "replace").decode("utf-8").rstrip(" ")
