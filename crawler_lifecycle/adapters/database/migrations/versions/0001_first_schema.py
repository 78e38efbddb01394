"""The first schema: runs, tasks, what is known about them, the outbox, managers, and what audits find."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

#: The oldest schema whose builds still work on this one; every migration says it.
WORKS_FROM = "0001"

# Written out instead of imported: a migration must go on meaning what it meant when it was released.
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")
_LONG = sa.Text()
_JSON = sa.JSON()


def upgrade() -> None:
    _runs()
    _tasks()
    _worktables()
    _records()
    _outbox()
    _managers()
    _audits()
    _compatibility()


def downgrade() -> None:
    for name in (
        "manager_item",
        "manager_addition",
        "manager",
        "plan",
        "task_log",
        "task_stats",
        "outbox_delivery",
        "task_history",
        "task_addition",
        "status_transition",
        "run_tag",
        "outbox_event",
        "history_property",
        "export_record",
        "correction",
        "cancellation_log",
        "task_observation",
        "task_finding",
        "task_change",
        "schema_compatibility",
        "run_history",
        "outbox_counter",
        "audit_report",
        "audit_finding",
    ):
        op.drop_table(name)


def _runs() -> None:
    _create(
        "run_history",
        sa.Column("run_id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("run_uid", sa.String(32), nullable=False),
        sa.Column("request_id", sa.String(120), nullable=False),
        sa.Column("request_hash", sa.String(32), nullable=False),
        sa.Column("crawler", sa.String(63), nullable=False),
        sa.Column("trigger", sa.String(20), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("stage", sa.String(20), nullable=False),
        sa.Column("outcome", sa.String(200)),
        sa.Column("cause", _LONG),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("owner_workflow_id", sa.String(1000)),
        sa.Column("owner_run_id", sa.String(64)),
        sa.Column("claim_resumed", sa.Boolean, nullable=False),
        sa.Column("claim_rerun", sa.Boolean, nullable=False),
        sa.Column("claim_repair", sa.Boolean, nullable=False),
        sa.Column("attempt_at", _TIME),
        sa.Column("requeued_attempt", sa.Integer, nullable=False),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("requested_by", sa.String(255)),
        sa.Column("multi", sa.Boolean, nullable=False),
        sa.Column("flow_id", sa.String(200)),
        sa.Column("parent", sa.String(255)),
        sa.Column("stop_requested_at", _TIME),
        sa.Column("stop_force", sa.Boolean, nullable=False),
        sa.Column("stop_requested_by", sa.String(255)),
        sa.Column("stop_reason", _LONG),
        sa.Column("stop_limit", sa.String(200)),
        sa.Column("stop_escalated", sa.Boolean, nullable=False),
        sa.Column("stop_acted_at", _TIME),
        sa.Column("waiting_for", _LONG),
        sa.Column("waiting_since", _TIME),
        sa.Column("look_error", _LONG),
        sa.Column("look_error_since", _TIME),
        sa.Column("verified_at", _TIME),
        sa.Column("look_ordered_at", _TIME),
        sa.Column("next_look_at", _TIME),
        sa.Column("last_progress_at", _TIME),
        sa.Column("quiet_ms", sa.BigInteger),
        sa.Column("pages", sa.BigInteger),
        sa.Column("items", sa.BigInteger),
        sa.Column("errors", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("started_at", _TIME),
        sa.Column("ended_at", _TIME),
        sa.UniqueConstraint("request_id", name="uq_run_history_request_id"),
        sqlite_autoincrement=True,
    )
    _index("ix_run_history_crawler_run_id", "run_history", ["crawler", "run_id"])
    _index("ix_run_history_crawler_status_run_id", "run_history", ["crawler", "status", "run_id"])
    _index("ix_run_history_created_at", "run_history", ["created_at"])
    _index("ix_run_history_ended_at_run_id", "run_history", ["ended_at", "run_id"])
    _index("ix_run_history_flow_id_run_id", "run_history", ["flow_id", "run_id"])
    _index("ix_run_history_flow_id_status_run_id", "run_history", ["flow_id", "status", "run_id"])
    _index("ix_run_history_outcome_run_id", "run_history", ["outcome", "run_id"])
    _index("ix_run_history_parent_attempt_run_id", "run_history", ["parent", "attempt", "run_id"])
    _index("ix_run_history_parent_ended_at_run_id", "run_history", ["parent", "ended_at", "run_id"])
    _index("ix_run_history_parent_run_id", "run_history", ["parent", "run_id"])
    _index("ix_run_history_parent_status_run_id", "run_history", ["parent", "status", "run_id"])
    _index("ix_run_history_overdue", "run_history", ["next_look_at", "status", "updated_at"])
    _index("ix_run_history_run_uid", "run_history", ["run_uid"], unique=True)
    _index("ix_run_history_stage_run_id", "run_history", ["stage", "run_id"])
    _index("ix_run_history_status_run_id", "run_history", ["status", "run_id"])
    _index("ix_run_history_trigger_run_id", "run_history", ["trigger", "run_id"])
    _index("ix_run_history_unheard", "run_history", ["stop_acted_at", "status", "stop_requested_at"])
    _index("ix_run_history_unowned", "run_history", ["owner_run_id", "status", "created_at"])
    _create(
        "run_tag",
        sa.Column("tag", sa.String(200), primary_key=True),
        sa.Column("run_id", _KEY, sa.ForeignKey("run_history.run_id"), primary_key=True, autoincrement=False),
    )
    _index("ix_run_tag_run_id", "run_tag", ["run_id"])
    _create(
        "history_property",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("run_id", _KEY, sa.ForeignKey("run_history.run_id"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("value", sa.String(1000), nullable=False),
        sa.UniqueConstraint("run_id", "attempt", "name", name="uq_history_property_run_id_attempt_name"),
        sqlite_autoincrement=True,
    )


def _tasks() -> None:
    _create(
        "task_history",
        sa.Column("task_id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("run_id", _KEY, sa.ForeignKey("run_history.run_id"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("task_index", sa.Integer, nullable=False),
        sa.Column("superseded_by", sa.BigInteger),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("status_since", _TIME, nullable=False),
        sa.Column("outcome", sa.String(200)),
        sa.Column("cause", _LONG),
        sa.Column("args", _JSON, nullable=False),
        sa.Column("cluster", sa.String(100)),
        sa.Column("cluster_name", sa.String(255)),
        sa.Column("cluster_uid", sa.String(100)),
        sa.Column("cluster_place", sa.String(200)),
        sa.Column("killed_at", _TIME),
        sa.Column("node", sa.String(255)),
        sa.Column("reason", _LONG),
        sa.Column("exit_code", sa.Integer),
        sa.Column("exit_signal", sa.Integer),
        sa.Column("pages", sa.BigInteger),
        sa.Column("items", sa.BigInteger),
        sa.Column("errors", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("peak_memory", sa.BigInteger),
        sa.Column("resumed", sa.Boolean),
        sa.Column("resume_note", sa.String(200)),
        sa.Column("offered_until", _TIME),
        sa.Column("ever_seen", sa.Boolean, nullable=False),
        sa.Column("absent_since", _TIME),
        sa.Column("missed_at", _TIME),
        sa.Column("last_progress_at", _TIME),
        sa.Column("deployed_at", _TIME),
        sa.Column("started_at", _TIME),
        sa.Column("ended_at", _TIME),
        sa.UniqueConstraint("run_id", "task_index", "attempt", name="uq_task_history_run_id_task_index_attempt"),
        sqlite_autoincrement=True,
    )
    _index("ix_task_history_current", "task_history", ["run_id", "superseded_by", "status", "task_index"])
    _index("ix_task_history_run_id_task_id", "task_history", ["run_id", "task_id"])
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
        "task_log",
        sa.Column("task_id", _KEY, sa.ForeignKey("task_history.task_id"), primary_key=True, autoincrement=False),
        sa.Column("log_tail", sa.Text, nullable=False),
    )
    _create(
        "task_stats",
        sa.Column("task_id", _KEY, sa.ForeignKey("task_history.task_id"), primary_key=True, autoincrement=False),
        sa.Column("stats", _JSON, nullable=False),
    )


def _worktables() -> None:
    _create(
        "task_observation",
        sa.Column("task_id", _KEY, primary_key=True, autoincrement=False),
        sa.Column("run_id", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("task_index", sa.Integer, nullable=False),
        sa.Column("finding", _JSON),
        sa.Column("details", _JSON),
    )
    _index("ix_task_observation_run_id_task_index", "task_observation", ["run_id", "task_index"])
    _create(
        "task_finding",
        sa.Column("run_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("task_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("believed", sa.String(20), nullable=False),
        sa.Column("terminal", sa.Boolean, nullable=False),
        sa.Column("cluster_time", _TIME),
        sa.Column("vouched_at", _TIME),
        sa.Column("correction", sa.String(30)),
        sa.Column("evidence", _JSON, nullable=False),
        sa.Column("status", sa.String(20)),
        sa.Column("outcome", sa.String(200)),
        sa.Column("cause", _LONG),
        sa.Column("reason", _LONG),
        sa.Column("started_at", _TIME),
        sa.Column("deployed_at", _TIME),
        sa.Column("cluster_name", sa.String(255)),
        sa.Column("cluster_uid", sa.String(100)),
        sa.Column("node", sa.String(255)),
        sa.Column("exit_code", sa.Integer),
        sa.Column("exit_signal", sa.Integer),
    )
    _create(
        "task_change",
        sa.Column("run_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("task_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("believed", sa.String(20)),
        sa.Column("cluster_time", _TIME),
        sa.Column("lag_ms", sa.BigInteger),
        sa.Column("correction", sa.String(30)),
        sa.Column("evidence", _JSON),
        sa.Column("superseded_by", sa.BigInteger),
        sa.Column("status", sa.String(20)),
        sa.Column("status_since", _TIME),
        sa.Column("outcome", sa.String(200)),
        sa.Column("cause", _LONG),
        sa.Column("cluster", sa.String(100)),
        sa.Column("cluster_name", sa.String(255)),
        sa.Column("cluster_uid", sa.String(100)),
        sa.Column("node", sa.String(255)),
        sa.Column("reason", _LONG),
        sa.Column("exit_code", sa.Integer),
        sa.Column("exit_signal", sa.Integer),
        sa.Column("pages", sa.BigInteger),
        sa.Column("items", sa.BigInteger),
        sa.Column("errors", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("peak_memory", sa.BigInteger),
        sa.Column("resumed", sa.Boolean),
        sa.Column("resume_note", sa.String(200)),
        sa.Column("ever_seen", sa.Boolean),
        sa.Column("absent_since", _TIME),
        sa.Column("missed_at", _TIME),
        sa.Column("last_progress_at", _TIME),
        sa.Column("deployed_at", _TIME),
        sa.Column("started_at", _TIME),
        sa.Column("ended_at", _TIME),
    )


def _records() -> None:
    _create(
        "status_transition",
        sa.Column("seq", _KEY, primary_key=True, autoincrement=True),
        sa.Column("run_id", _KEY, sa.ForeignKey("run_history.run_id"), nullable=False),
        sa.Column("task_id", sa.BigInteger),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("from_status", sa.String(20)),
        sa.Column("to_status", sa.String(20), nullable=False),
        sa.Column("cluster_time", _TIME),
        sa.Column("committed_at", _TIME, nullable=False),
        sa.Column("lag_ms", sa.BigInteger),
        sa.Column("source", sa.String(20), nullable=False),
        sa.Column("evidence", _JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    _index("ix_status_transition_run_id_seq", "status_transition", ["run_id", "seq"])
    _create(
        "correction",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("run_id", _KEY, sa.ForeignKey("run_history.run_id"), nullable=False),
        sa.Column("task_id", sa.BigInteger),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("believed", sa.String(20), nullable=False),
        sa.Column("believed_since", _TIME),
        sa.Column("truth", sa.String(20), nullable=False),
        sa.Column("truth_since", _TIME),
        sa.Column("found_by", sa.String(20), nullable=False),
        sa.Column("lag_ms", sa.BigInteger),
        sa.Column("evidence", _JSON, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sqlite_autoincrement=True,
    )
    _index("ix_correction_kind_id", "correction", ["kind", "id"])
    _index("ix_correction_run_id_id", "correction", ["run_id", "id"])
    _index("ix_correction_summary", "correction", ["created_at", "kind", "lag_ms"])
    _create(
        "cancellation_log",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("run_id", _KEY, sa.ForeignKey("run_history.run_id"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("request_id", sa.String(120), nullable=False),
        sa.Column("requested_by", sa.String(255)),
        sa.Column("reason", _LONG),
        sa.Column("force", sa.Boolean, nullable=False),
        sa.Column("requested_at", _TIME, nullable=False),
        sa.Column("acted_at", _TIME),
        sa.UniqueConstraint("run_id", "attempt", "request_id", name="uq_cancellation_log_run_id_attempt_request_id"),
        sqlite_autoincrement=True,
    )
    _create(
        "export_record",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("run_id", _KEY, sa.ForeignKey("run_history.run_id"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("url", sa.String(2000)),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("files", sa.Integer),
        sa.Column("sha256", sa.String(64)),
        sa.Column("error", _LONG),
        sa.Column("at", _TIME, nullable=False),
        sa.UniqueConstraint("run_id", "attempt", name="uq_export_record_run_id_attempt"),
        sqlite_autoincrement=True,
    )


def _outbox() -> None:
    _create(
        "outbox_counter",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
    )
    _create(
        "outbox_event",
        sa.Column("seq", _KEY, primary_key=True, autoincrement=False),
        sa.Column("subject", sa.String(100), nullable=False),
        sa.Column("subject_uid", sa.String(32), nullable=False),
        sa.Column("run_id", _KEY, sa.ForeignKey("run_history.run_id")),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("type", sa.String(50), nullable=False),
        sa.Column("event_key", sa.String(200)),
        sa.Column("body", _JSON, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.UniqueConstraint("event_key", name="uq_outbox_event_event_key"),
    )
    _index("ix_outbox_event_run_id_seq", "outbox_event", ["run_id", "seq"])
    _index("ix_outbox_event_subject_seq", "outbox_event", ["subject", "seq"])
    _create(
        "outbox_delivery",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("seq", _KEY, sa.ForeignKey("outbox_event.seq"), nullable=False),
        sa.Column("sink", sa.String(100), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("error", _LONG),
        sa.Column("delivered_at", _TIME),
        sa.UniqueConstraint("seq", "sink", name="uq_outbox_delivery_seq_sink"),
        sqlite_autoincrement=True,
    )
    _first_row("outbox_counter", id=1, seq=0)


def _managers() -> None:
    _create(
        "manager",
        sa.Column("manager_id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("manager_uid", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("flow_id", sa.String(120), nullable=False),
        sa.Column("plan", sa.String(200), nullable=False),
        sa.Column("options", _JSON, nullable=False),
        sa.Column("request_hash", sa.String(32), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("outcome", sa.String(200)),
        sa.Column("cause", _LONG),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("owner_workflow_id", sa.String(1000)),
        sa.Column("owner_run_id", sa.String(64)),
        sa.Column("former_owners", _JSON, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("fingerprint", sa.String(100)),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("exhausted", sa.Boolean, nullable=False),
        sa.Column("source_error", _LONG),
        sa.Column("last_pick_at", _TIME),
        sa.Column("is_over", sa.Boolean, nullable=False),
        sa.Column("sealed", sa.Boolean, nullable=False),
        sa.Column("next_seq", sa.BigInteger, nullable=False),
        sa.Column("cap", sa.Integer),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("leave_runs", sa.Boolean, nullable=False),
        sa.Column("stop_requested_at", _TIME),
        sa.Column("stop_force", sa.Boolean, nullable=False),
        sa.Column("stop_requested_by", sa.String(255)),
        sa.Column("stop_reason", _LONG),
        sa.Column("stop_limit", sa.String(200)),
        sa.Column("stop_escalated", sa.Boolean, nullable=False),
        sa.Column("state", _JSON, nullable=False),
        sa.Column("stats", _JSON, nullable=False),
        sa.Column("tags", _JSON, nullable=False),
        sa.Column("flow_tags", _JSON, nullable=False),
        sa.Column("close_reason", sa.String(200)),
        sa.Column("waiting_for", _LONG),
        sa.Column("error", _LONG),
        sa.Column("requested_by", sa.String(255)),
        sa.Column("parent", sa.String(255)),
        sa.Column("jobs_buffered", sa.BigInteger, nullable=False),
        sa.Column("jobs_delayed", sa.BigInteger, nullable=False),
        sa.Column("jobs_queued", sa.BigInteger, nullable=False),
        sa.Column("jobs_starting", sa.BigInteger, nullable=False),
        sa.Column("jobs_started", sa.BigInteger, nullable=False),
        sa.Column("jobs_ended", sa.BigInteger, nullable=False),
        sa.Column("jobs_skipped", sa.BigInteger, nullable=False),
        sa.Column("yields", sa.BigInteger, nullable=False),
        sa.Column("duplicates", sa.BigInteger, nullable=False),
        sa.Column("scheduled", sa.BigInteger, nullable=False),
        sa.Column("retried", sa.BigInteger, nullable=False),
        sa.Column("good", sa.BigInteger, nullable=False),
        sa.Column("bad", sa.BigInteger, nullable=False),
        sa.Column("pruned_through", sa.BigInteger),
        sa.Column("jobs_pruned_at", _TIME),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("started_at", _TIME),
        sa.Column("ended_at", _TIME),
        sa.UniqueConstraint("name", "flow_id", name="uq_manager_name_flow_id"),
        sqlite_autoincrement=True,
    )
    _index("ix_manager_status_manager_id", "manager", ["status", "manager_id"])
    _index("ix_manager_name_manager_id", "manager", ["name", "manager_id"])
    _create(
        "manager_item",
        sa.Column("item_id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("manager_id", _KEY, sa.ForeignKey("manager.manager_id"), nullable=False),
        sa.Column("identity", sa.String(64)),
        sa.Column("position", sa.BigInteger),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("seq", sa.BigInteger),
        sa.Column("retry", sa.Integer, nullable=False),
        sa.Column("retry_of", sa.String(120)),
        sa.Column("spider", sa.String(255)),
        sa.Column("cap_key", sa.String(255)),
        sa.Column("params", _JSON),
        sa.Column("not_before", _TIME),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("handled_attempt", sa.Integer, nullable=False),
        sa.Column("outcome", sa.String(200)),
        sa.Column("error", _LONG),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.UniqueConstraint("manager_id", "identity", name="uq_manager_item_manager_id_identity"),
        sa.UniqueConstraint("manager_id", "seq", "retry", name="uq_manager_item_manager_id_seq_retry"),
        sqlite_autoincrement=True,
    )
    _index("ix_manager_item_manager_id_state_item_id", "manager_item", ["manager_id", "state", "item_id"])
    _index("ix_manager_item_run_id", "manager_item", ["run_id"])
    _create(
        "manager_addition",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("manager_id", _KEY, sa.ForeignKey("manager.manager_id"), nullable=False),
        sa.Column("request_key", sa.String(120), nullable=False),
        sa.Column("jobs_hash", sa.String(32), nullable=False),
        sa.Column("jobs", sa.Integer, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.UniqueConstraint("manager_id", "request_key", name="uq_manager_addition_manager_id_request_key"),
        sqlite_autoincrement=True,
    )
    _create(
        "plan",
        sa.Column("plan", sa.String(200), primary_key=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("name", sa.String(63)),
        sa.Column("description", _LONG, nullable=False),
        sa.Column("fingerprint", sa.String(100), nullable=False),
        sa.Column("options", _JSON, nullable=False),
        sa.Column("error", _LONG),
        sa.Column("worker", sa.String(200), nullable=False),
        sa.Column("seen_at", _TIME),
    )


def _audits() -> None:
    _create(
        "audit_finding",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("task_id", sa.BigInteger),
        sa.Column("workflow_id", sa.String(1000)),
        sa.Column("detail", _LONG, nullable=False),
        sa.Column("evidence", _JSON, nullable=False),
        sa.Column("first_seen", _TIME, nullable=False),
        sa.Column("last_seen", _TIME, nullable=False),
        sa.Column("repair", _LONG),
        sa.Column("repaired_at", _TIME),
        sa.UniqueConstraint("subject", name="uq_audit_finding_subject"),
        sqlite_autoincrement=True,
    )
    _index("ix_audit_finding_status_last_seen", "audit_finding", ["status", "last_seen"])
    _create(
        "audit_report",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        sa.Column("audit_id", sa.String(200), nullable=False),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME, nullable=False),
        sa.Column("report", _JSON, nullable=False),
        sa.UniqueConstraint("audit_id", name="uq_audit_report_audit_id"),
        sqlite_autoincrement=True,
    )


def _compatibility() -> None:
    _create(
        "schema_compatibility",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("works_from", sa.String(32), nullable=False),
    )
    _first_row("schema_compatibility", id=1, works_from=WORKS_FROM)


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


def _index(name: str, table: str, columns: list[str], *, unique: bool = False) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns, unique=unique)


def _first_row(name: str, **values: object) -> None:
    table = sa.table(name, *(sa.column(column) for column in values))
    if op.get_bind().execute(sa.select(table)).first() is None:
        op.execute(table.insert().values(values))
