"""Runs and tasks say who ended them. For older rows, status, outcome and the beginning of the cause tell it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

#: What an older build ends has no value, and a newer one reads that as unknown.
WORKS_FROM = "0001"
FINGERPRINT = "48a870f7c4397499"

_TABLES = ("run_history", "task_history", "task_finding", "task_change")
_INDEXES = {
    "ix_run_history_ended_by_run_id": ("ended_by", "run_id"),
    "ix_run_history_project_ended_by_run_id": ("project", "ended_by", "run_id"),
}
#: The cause of a crawler's own end has these words, also where its outcome is one of ours. INSTR knows upper and lower
#: case on each database, and LIKE does not.
_BY_OUTCOME = """
    WHEN INSTR(cause, 'The crawler') > 0 THEN 'crawler'
    WHEN status = 'LOST' THEN 'cluster'
    WHEN outcome IN ('start_timeout', 'cancelled (stalled)', 'killed by oom') THEN 'limit'
    WHEN outcome = 'timed_out' AND INSTR(cause, 'The cluster') > 0 THEN 'cluster'
    WHEN outcome = 'timed_out' THEN 'limit'
    WHEN outcome = 'diskusage_exceeded' AND INSTR(cause, 'It used more') > 0 THEN 'limit'
    WHEN outcome IN ('evicted', 'interrupted', 'lost') THEN 'cluster'
    WHEN outcome = 'deploy_failed' THEN 'service'
    ELSE 'crawler'
"""
_OF_RUN = f"""CASE
    WHEN outcome = 'coverage' AND INSTR(cause, 'The crawler') = 0 AND INSTR(cause, 'All ') <> 1 THEN 'service'
    WHEN status = 'COMPLETED' AND outcome <> 'partial' THEN 'crawler'
    WHEN status = 'FAILED' AND stop_requested_at IS NOT NULL AND stop_limit IS NULL THEN 'person'
    WHEN status = 'FAILED' AND stop_limit NOT IN ('start_timeout', 'timed_out', 'cancelled (stalled)') THEN 'service'
    {_BY_OUTCOME} END"""
_OF_TASK = f"""CASE
    WHEN status = 'SUCCEEDED' THEN 'crawler'
    WHEN status = 'CANCELLED' AND outcome IN ('cancelled', 'cancel_timeout') THEN 'person'
    WHEN status = 'CANCELLED' AND outcome NOT IN ('start_timeout', 'timed_out', 'cancelled (stalled)') THEN 'service'
    WHEN outcome = 'failed' AND INSTR(cause, 'failed') = 1 THEN 'service'
    {_BY_OUTCOME} END"""


def upgrade() -> None:
    for table in _TABLES:
        check = "" if table in ("task_finding", "task_change") else "ended_by IS NULL OR typeof(ended_by) = 'text'"
        ddl.add_column(table, sa.Column("ended_by", sa.String(20)), sqlite_check=check)
    ddl.fill_column("run_history", "run_id", "ended_by", _OF_RUN, "status IN ('COMPLETED', 'FAILED')")
    over = "status IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'LOST')"
    ddl.fill_column("task_history", "task_id", "ended_by", _OF_TASK, over)
    for name, columns in _INDEXES.items():
        ddl.add_index("run_history", name, *columns)


def downgrade() -> None:
    for name in _INDEXES:
        op.drop_index(name, "run_history")
    for table in _TABLES:
        op.drop_column(table, "ended_by")
