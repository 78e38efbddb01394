"""The tables, one schema for SQLite and for MySQL 8 / MariaDB.

Table and column names are a contract: people build reports on them. The migrations in ``migrations/`` create exactly
this; a test compares the two on both databases.

All texts compare by code point on every database (``utf8mb4_bin``): the collation that MySQL would choose takes
``Run-1`` and ``run-1`` for one request id.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql

from crawler_lifecycle.domain.manager import JobState

from .columns import CAUSE_MAX, UtcTime, Words

_Key = BigInteger().with_variant(Integer, "sqlite")
_Long = Words(CAUSE_MAX, long=True)
_Json = JSON(none_as_null=True)
_Bytes = LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql")
_options: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    # Without it SQLite would give the id of a deleted last row to the next one.
    "sqlite_autoincrement": True,
}

#: What a manager counts beside its jobs by state.
MANAGER_COUNTERS = ("yields", "duplicates", "scheduled", "retried", "good", "bad")

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "uq": "uq_%(table_name)s_%(column_0_N_name)s"}
)


def _run_id() -> Column[int]:
    return Column("run_id", _Key, ForeignKey("run_history.run_id"), nullable=False)


def _counters() -> list[Column[int]]:
    return [Column(name, BigInteger) for name in ("pages", "items", "errors", "bytes")]


run_history = Table(
    "run_history",
    metadata,
    Column("run_id", _Key, primary_key=True, autoincrement=True),
    # Who the run is: a number comes again where a database was restored or made anew.
    Column("run_uid", String(32), nullable=False),
    Column("request_id", String(120), nullable=False),
    Column("request_hash", String(32), nullable=False),
    Column("crawler", String(63), nullable=False),
    Column("trigger", String(20), nullable=False),
    Column("status", String(20), nullable=False),
    Column("stage", String(20), nullable=False),
    Column("outcome", Words(200)),
    Column("cause", _Long),
    Column("attempt", Integer, nullable=False),
    Column("owner_workflow_id", String(1000)),
    Column("owner_run_id", String(64)),
    # How the owner came by this attempt, so that its second claim is answered like its first.
    Column("claim_resumed", Boolean, nullable=False),
    Column("claim_rerun", Boolean, nullable=False),
    Column("claim_repair", Boolean, nullable=False),
    # When this attempt was accepted; null for the first one, which was when the run was created.
    Column("attempt_at", UtcTime),
    # The last attempt whose ended tasks were queued again.
    Column("requeued_attempt", Integer, nullable=False),
    Column("request", _Json, nullable=False),
    Column("requested_by", Words(255)),
    Column("multi", Boolean, nullable=False),
    Column("flow_id", String(200)),
    Column("parent", String(255)),
    Column("stop_requested_at", UtcTime),
    Column("stop_force", Boolean, nullable=False),
    Column("stop_requested_by", Words(255)),
    Column("stop_reason", _Long),
    Column("stop_limit", Words(200)),
    Column("stop_escalated", Boolean, nullable=False),
    Column("stop_acted_at", UtcTime),
    Column("waiting_for", _Long),
    Column("waiting_since", UtcTime),
    Column("look_error", _Long),
    Column("look_error_since", UtcTime),
    Column("verified_at", UtcTime),
    # When Temporal ordered the look that was recorded last: one that was ordered earlier comes too late.
    Column("look_ordered_at", UtcTime),
    Column("next_look_at", UtcTime),
    Column("last_progress_at", UtcTime),
    # How long looks have seen the run execute without any progress (domain/stall.py).
    Column("quiet_ms", BigInteger),
    *_counters(),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    UniqueConstraint("request_id"),
    Index(None, "run_uid", unique=True),
    # Lists are read newest first, so every index for a filter goes on in the order of the id.
    Index(None, "status", "run_id"),
    Index(None, "stage", "run_id"),
    Index(None, "crawler", "run_id"),
    Index(None, "crawler", "status", "run_id"),
    Index(None, "trigger", "run_id"),
    Index(None, "outcome", "run_id"),
    Index(None, "flow_id", "run_id"),
    Index(None, "flow_id", "status", "run_id"),
    Index(None, "parent", "run_id"),
    Index(None, "parent", "status", "run_id"),
    Index(None, "parent", "ended_at", "run_id"),
    # Runs of a manager that were resumed are few among all of them.
    Index(None, "parent", "attempt", "run_id"),
    Index(None, "created_at"),
    # What is open, and what ended lately, is what audits compare.
    Index(None, "ended_at", "run_id"),
    # Only live runs have a next look; those without one are read by the last change of their rows.
    Index("ix_run_history_overdue", "next_look_at", "status", "updated_at"),
    Index("ix_run_history_unowned", "owner_run_id", "status", "created_at"),
    Index("ix_run_history_unheard", "stop_acted_at", "status", "stop_requested_at"),
    **_options,
)

run_tag = Table(
    "run_tag",
    metadata,
    Column("tag", Words(200), primary_key=True),
    Column("run_id", _Key, ForeignKey("run_history.run_id"), primary_key=True, autoincrement=False),
    Index(None, "run_id"),
    **{**_options, "sqlite_autoincrement": False},
)

history_property = Table(
    "history_property",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    _run_id(),
    Column("attempt", Integer, nullable=False),
    Column("name", String(100), nullable=False),
    Column("value", Words(1000), nullable=False),
    UniqueConstraint("run_id", "attempt", "name"),
    **_options,
)

task_history = Table(
    "task_history",
    metadata,
    Column("task_id", _Key, primary_key=True, autoincrement=True),
    _run_id(),
    Column("attempt", Integer, nullable=False),
    Column("task_index", Integer, nullable=False),
    # No foreign key: it would cost a second index on every task, and nobody deletes single tasks.
    Column("superseded_by", BigInteger),
    Column("status", String(20), nullable=False),
    Column("status_since", UtcTime, nullable=False),
    Column("outcome", Words(200)),
    Column("cause", _Long),
    Column("args", _Json, nullable=False),
    Column("cluster", Words(100)),
    Column("cluster_name", Words(255)),
    Column("cluster_uid", Words(100)),
    # Where it was put: of Kubernetes the namespace, its uid and that of its cluster.
    Column("cluster_place", Words(200)),
    # When it was last killed by a forced stop.
    Column("killed_at", UtcTime),
    Column("node", Words(255)),
    Column("reason", _Long),
    Column("exit_code", Integer),
    Column("exit_signal", Integer),
    *_counters(),
    Column("peak_memory", BigInteger),
    # Whether a task of a later attempt went on with saved state, as far as its runner said.
    Column("resumed", Boolean),
    Column("resume_note", Words(200)),
    Column("offered_until", UtcTime),
    Column("ever_seen", Boolean, nullable=False),
    # Since when looks no longer find it although one had seen it, which proves nothing yet.
    Column("absent_since", UtcTime),
    # When the first of the looks in a row was made that could not find it: with a second one, much later, it is proved.
    Column("missed_at", UtcTime),
    Column("last_progress_at", UtcTime),
    Column("deployed_at", UtcTime),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    UniqueConstraint("run_id", "task_index", "attempt"),
    # Pages of the tasks of a run are in the order of the id.
    Index(None, "run_id", "task_id"),
    # Counting covers the first three; offers and pages of one status also read in the order of the fourth.
    Index("ix_task_history_current", "run_id", "superseded_by", "status", "task_index"),
    **_options,
)

task_addition = Table(
    "task_addition",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    _run_id(),
    Column("request_key", String(120), nullable=False),
    Column("args_hash", String(32), nullable=False),
    Column("first_index", Integer, nullable=False),
    Column("tasks", Integer, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("run_id", "request_key"),
    **_options,
)

task_observation = Table(
    "task_observation",
    metadata,
    Column("task_id", _Key, primary_key=True, autoincrement=False),
    Column("run_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("task_index", Integer, nullable=False),
    Column("finding", _Json),
    Column("details", _Json),
    Index(None, "run_id", "task_index"),
    **{**_options, "sqlite_autoincrement": False},
)

_FOUND = (
    "status",
    "outcome",
    "cause",
    "reason",
    "started_at",
    "deployed_at",
    "cluster_name",
    "cluster_uid",
    "node",
    "exit_code",
    "exit_signal",
)

task_finding = Table(
    "task_finding",
    metadata,
    # What the staged findings will change, ready for one UPDATE (see bulk.py): the columns that it shares with
    # task_history have the same names and types.
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("task_id", BigInteger, primary_key=True, autoincrement=False),
    Column("believed", String(20), nullable=False),
    Column("terminal", Boolean, nullable=False),
    Column("cluster_time", UtcTime),
    # When a look last saw that what was believed was true.
    Column("vouched_at", UtcTime),
    Column("correction", String(30)),
    Column("evidence", _Json, nullable=False),
    *(Column(name, task_history.c[name].type) for name in _FOUND),
    **{**_options, "sqlite_autoincrement": False},
)

task_change = Table(
    "task_change",
    metadata,
    # A worktable: rows live inside one transaction only (see bulk.py). The columns that it shares with task_history
    # have the same names and types.
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("task_id", BigInteger, primary_key=True, autoincrement=False),
    Column("believed", String(20)),
    Column("cluster_time", UtcTime),
    Column("lag_ms", BigInteger),
    Column("correction", String(30)),
    Column("evidence", _Json),
    *(
        Column(name, task_history.c[name].type)
        for name in (
            "superseded_by",
            "status",
            "status_since",
            "outcome",
            "cause",
            "cluster",
            "cluster_name",
            "cluster_uid",
            "node",
            "reason",
            "exit_code",
            "exit_signal",
            "pages",
            "items",
            "errors",
            "bytes",
            "peak_memory",
            "resumed",
            "resume_note",
            "ever_seen",
            "absent_since",
            "missed_at",
            "last_progress_at",
            "deployed_at",
            "started_at",
            "ended_at",
        )
    ),
    **{**_options, "sqlite_autoincrement": False},
)

task_log = Table(
    "task_log",
    metadata,
    Column("task_id", _Key, ForeignKey("task_history.task_id"), primary_key=True, autoincrement=False),
    Column("log_tail", Text, nullable=False),
    **{**_options, "sqlite_autoincrement": False},
)

task_stats = Table(
    "task_stats",
    metadata,
    # What a crawler counted by itself, told at its end: name -> number.
    Column("task_id", _Key, ForeignKey("task_history.task_id"), primary_key=True, autoincrement=False),
    Column("stats", _Json, nullable=False),
    **{**_options, "sqlite_autoincrement": False},
)

status_transition = Table(
    "status_transition",
    metadata,
    Column("seq", _Key, primary_key=True, autoincrement=True),
    _run_id(),
    Column("task_id", BigInteger),
    Column("attempt", Integer, nullable=False),
    Column("from_status", String(20)),
    Column("to_status", String(20), nullable=False),
    Column("cluster_time", UtcTime),
    Column("committed_at", UtcTime, nullable=False),
    Column("lag_ms", BigInteger),
    Column("source", String(20), nullable=False),
    Column("evidence", _Json, nullable=False),
    Index(None, "run_id", "seq"),
    **_options,
)

correction = Table(
    "correction",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    _run_id(),
    Column("task_id", BigInteger),
    Column("attempt", Integer, nullable=False),
    Column("kind", String(30), nullable=False),
    Column("believed", String(20), nullable=False),
    Column("believed_since", UtcTime),
    Column("truth", String(20), nullable=False),
    Column("truth_since", UtcTime),
    Column("found_by", String(20), nullable=False),
    Column("lag_ms", BigInteger),
    Column("evidence", _Json, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Index(None, "run_id", "id"),
    Index(None, "kind", "id"),
    # The summary of a week reads this index and nothing else.
    Index("ix_correction_summary", "created_at", "kind", "lag_ms"),
    **_options,
)

cancellation_log = Table(
    "cancellation_log",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    _run_id(),
    Column("attempt", Integer, nullable=False),
    Column("request_id", Words(120), nullable=False),
    Column("requested_by", Words(255)),
    Column("reason", _Long),
    Column("force", Boolean, nullable=False),
    Column("requested_at", UtcTime, nullable=False),
    Column("acted_at", UtcTime),
    UniqueConstraint("run_id", "attempt", "request_id"),
    **_options,
)

export_record = Table(
    "export_record",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    _run_id(),
    Column("attempt", Integer, nullable=False),
    Column("status", String(20), nullable=False),
    Column("url", Words(2000)),
    Column("bytes", BigInteger),
    Column("files", Integer),
    Column("sha256", String(64)),
    Column("error", _Long),
    Column("at", UtcTime, nullable=False),
    UniqueConstraint("run_id", "attempt"),
    **_options,
)

manager = Table(
    "manager",
    metadata,
    Column("manager_id", _Key, primary_key=True, autoincrement=True),
    # Who the manager is: a number comes again where a database was restored or made anew.
    Column("manager_uid", String(32), nullable=False),
    Column("name", String(63), nullable=False),
    Column("flow_id", String(120), nullable=False),
    Column("plan", String(200), nullable=False),
    Column("options", _Json, nullable=False),
    # Fingerprint of plan and options, so that a repeated start is known from another one.
    Column("request_hash", String(32), nullable=False),
    Column("status", String(20), nullable=False),
    Column("outcome", Words(200)),
    Column("cause", _Long),
    Column("attempt", Integer, nullable=False),
    Column("owner_workflow_id", String(1000)),
    Column("owner_run_id", String(64)),
    # Owners from which it was taken: a late claim of theirs is refused.
    Column("former_owners", _Json, nullable=False),
    # Of the process that holds the class; whatever an older one writes is refused.
    Column("generation", Integer, nullable=False),
    Column("fingerprint", String(100)),
    Column("position", BigInteger, nullable=False),
    Column("exhausted", Boolean, nullable=False),
    Column("source_error", _Long),
    Column("last_pick_at", UtcTime),
    # Whether its class wants no further cycle.
    Column("is_over", Boolean, nullable=False),
    Column("sealed", Boolean, nullable=False),
    Column("next_seq", BigInteger, nullable=False),
    Column("cap", Integer),
    Column("paused", Boolean, nullable=False),
    Column("leave_runs", Boolean, nullable=False),
    Column("stop_requested_at", UtcTime),
    Column("stop_force", Boolean, nullable=False),
    Column("stop_requested_by", Words(255)),
    Column("stop_reason", _Long),
    Column("stop_limit", Words(200)),
    Column("stop_escalated", Boolean, nullable=False),
    Column("state", _Json, nullable=False),
    Column("stats", _Json, nullable=False),
    Column("tags", _Json, nullable=False),
    Column("flow_tags", _Json, nullable=False),
    Column("close_reason", Words(200)),
    Column("waiting_for", _Long),
    Column("error", _Long),
    Column("requested_by", Words(255)),
    Column("parent", String(255)),
    # Kept in the transaction of each change, so that nobody counts a million items to show a manager.
    *(Column(f"jobs_{state.value}", BigInteger, nullable=False) for state in JobState),
    *(Column(name, BigInteger, nullable=False) for name in MANAGER_COUNTERS),
    # Its events up to this number may be gone, and its jobs, since then.
    Column("pruned_through", BigInteger),
    Column("jobs_pruned_at", UtcTime),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    UniqueConstraint("name", "flow_id"),
    Index(None, "status", "manager_id"),
    Index(None, "ended_at", "manager_id"),
    Index(None, "name", "manager_id"),
    **_options,
)

manager_item = Table(
    "manager_item",
    metadata,
    Column("item_id", _Key, primary_key=True, autoincrement=True),
    Column("manager_id", _Key, ForeignKey("manager.manager_id"), nullable=False),
    # Null for jobs that are made however often they are asked for.
    Column("identity", String(64)),
    Column("position", BigInteger),
    Column("state", String(20), nullable=False),
    Column("seq", BigInteger),
    Column("retry", Integer, nullable=False),
    Column("retry_of", Words(120)),
    Column("spider", Words(255)),
    Column("cap_key", Words(255)),
    # The job; null for a yield that cannot be one.
    Column("params", _Json),
    Column("not_before", UtcTime),
    # No foreign key: it would be one more index to keep.
    Column("run_id", BigInteger),
    # The last attempt of its run whose hooks ran; 0: none.
    Column("handled_attempt", Integer, nullable=False),
    Column("outcome", Words(200)),
    Column("error", _Long),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    UniqueConstraint("manager_id", "identity"),
    # One run for each number and retry; those without a number do not count.
    UniqueConstraint("manager_id", "seq", "retry"),
    Index(None, "manager_id", "state", "item_id"),
    Index(None, "run_id"),
    **_options,
)

manager_addition = Table(
    "manager_addition",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("manager_id", _Key, ForeignKey("manager.manager_id"), nullable=False),
    Column("request_key", String(120), nullable=False),
    Column("jobs_hash", String(32), nullable=False),
    Column("jobs", Integer, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("manager_id", "request_key"),
    **_options,
)

manager_log = Table(
    "manager_log",
    metadata,
    # Not in the manager's row, which every cycle locks and every list reads.
    Column("manager_id", _Key, ForeignKey("manager.manager_id"), primary_key=True, autoincrement=False),
    Column("log_tail", Text, nullable=False),
    **{**_options, "sqlite_autoincrement": False},
)

plan = Table(
    "plan",
    metadata,
    # The name of a class is compared as it is written, on every database.
    Column("plan", String(200), primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("name", Words(63)),
    Column("description", _Long, nullable=False),
    Column("fingerprint", String(100), nullable=False),
    Column("options", _Json, nullable=False),
    Column("error", _Long),
    # The worker that said so last, and when.
    Column("worker", Words(200), nullable=False),
    Column("seen_at", UtcTime),
    **{**_options, "sqlite_autoincrement": False},
)

graph = Table(
    "graph",
    metadata,
    Column("graph_id", _Key, primary_key=True, autoincrement=True),
    # Who the graph is: a number comes again where a database was restored or made anew.
    Column("graph_uid", String(32), nullable=False),
    Column("graph_key", String(200), nullable=False),
    Column("name", Words(200)),
    # Of the whole spec, so that a repeated start is known from another one.
    Column("fingerprint", String(64), nullable=False),
    Column("pages", Integer, nullable=False),
    Column("options", _Json, nullable=False),
    Column("context", _Json),
    Column("state", String(20), nullable=False),
    # Of its steps by state, at the last change of the graph.
    Column("counts", _Json),
    Column("cause", _Long),
    Column("attempt", Integer, nullable=False),
    Column("owner_workflow_id", String(1000)),
    Column("owner_run_id", String(64)),
    # Owners from which it was taken: a late claim of theirs is refused.
    Column("former_owners", _Json, nullable=False),
    Column("next_batch", BigInteger, nullable=False),
    # What people asked for lately, with the answers: [[request id, answer], ...].
    Column("commands", _Json, nullable=False),
    Column("stop_requested_at", UtcTime),
    Column("stop_force", Boolean, nullable=False),
    Column("stop_requested_by", Words(255)),
    Column("stop_reason", _Long),
    Column("stop_limit", Words(200)),
    Column("stop_escalated", Boolean, nullable=False),
    Column("tags", _Json, nullable=False),
    Column("waiting_for", _Long),
    Column("requested_by", Words(255)),
    Column("parent", String(255)),
    # Its events up to this number may be gone, and its steps, since then.
    Column("pruned_through", BigInteger),
    Column("pruned_at", UtcTime),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    UniqueConstraint("graph_key"),
    Index(None, "state", "graph_id"),
    Index(None, "ended_at", "graph_id"),
    Index(None, "name", "graph_id"),
    **_options,
)


def _graph_id() -> Column[int]:
    return Column("graph_id", _Key, ForeignKey("graph.graph_id"), primary_key=True, autoincrement=False)


def _number() -> Column[int]:
    return Column("number", Integer, primary_key=True, autoincrement=False)


graph_page = Table(
    "graph_page",
    metadata,
    # What was sent of a draft, until it is made whole.
    _graph_id(),
    Column("page", Integer, primary_key=True, autoincrement=False),
    Column("data", _Bytes, nullable=False),
    **{**_options, "sqlite_autoincrement": False},
)

graph_step = Table(
    "graph_step",
    metadata,
    _graph_id(),
    # Its place in the order in which steps were added, from 0.
    _number(),
    Column("path", Text, nullable=False),
    Column("path_hash", String(32), nullable=False),
    Column("kind", String(20), nullable=False),
    # The number of the graph, or the grafter, that it is in.
    Column("parent", Integer),
    # All else that does not change while it runs, as far as it was said: what it depends on, what it may take.
    Column("shape", _Json),
    Column("job", _Json, nullable=False),
    Column("state", String(20), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("snoozed", Integer, nullable=False),
    Column("not_before", UtcTime),
    # The call that it was given to, while that has not answered.
    Column("batch", BigInteger),
    # Which of its alternatives of resources it holds.
    Column("alternative", Integer),
    # The run of a crawl, or the manager; the attempt of that whose end was taken in last; and the step's own attempt
    # for which it was begun.
    Column("run_id", BigInteger),
    Column("run_attempt", Integer, nullable=False),
    Column("begun_attempt", Integer, nullable=False),
    Column("ending", Boolean, nullable=False),
    Column("outcome", Words(200)),
    Column("reason", _Long),
    Column("errors", _Json),
    Column("result_bytes", BigInteger),
    # The attempt that grafted, and what.
    Column("graft_attempt", Integer),
    Column("graft_digest", String(64)),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    UniqueConstraint("graph_id", "path_hash"),
    Index(None, "graph_id", "parent"),
    Index(None, "graph_id", "batch"),
    # Counting reads this index and nothing else; so are crawls found that execute or end.
    Index("ix_graph_step_states", "graph_id", "kind", "state", "ending"),
    **{**_options, "sqlite_autoincrement": False},
)

graph_change = Table(
    "graph_change",
    metadata,
    # A worktable: rows live inside one transaction only (see graph_steps.py). The columns that it shares with
    # graph_step have the same names and types.
    _graph_id(),
    _number(),
    *(
        Column(name, graph_step.c[name].type)
        for name in (
            *("shape", "state", "attempt", "tries", "not_before", "batch", "alternative", "run_id", "run_attempt"),
            *("ending", "outcome", "reason", "errors", "started_at", "ended_at"),
        )
    ),
    **{**_options, "sqlite_autoincrement": False},
)

graph_result = Table(
    "graph_result",
    metadata,
    # What a step gave, compressed, in parts.
    _graph_id(),
    _number(),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("data", _Bytes, nullable=False),
    **{**_options, "sqlite_autoincrement": False},
)

graph_log = Table(
    "graph_log",
    metadata,
    _graph_id(),
    Column("log_tail", Text, nullable=False),
    **{**_options, "sqlite_autoincrement": False},
)

outbox_counter = Table(
    "outbox_counter",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    **{**_options, "sqlite_autoincrement": False},
)

outbox_event = Table(
    "outbox_event",
    metadata,
    Column("seq", _Key, primary_key=True, autoincrement=False),
    # What it is about: runs/7, managers/3, graphs/nightly. Whose number or key that is, says the uid.
    Column("subject", String(220), nullable=False),
    Column("subject_uid", String(32), nullable=False),
    # Null where it is about no run.
    Column("run_id", _Key, ForeignKey("run_history.run_id")),
    Column("attempt", Integer, nullable=False),
    Column("type", String(50), nullable=False),
    # Null for events that may repeat; what must happen once has a key of subject, attempt and type.
    Column("event_key", String(200)),
    Column("body", _Json, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("event_key"),
    Index(None, "run_id", "seq"),
    Index(None, "subject", "seq"),
    **{**_options, "sqlite_autoincrement": False},
)

outbox_delivery = Table(
    "outbox_delivery",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("seq", _Key, ForeignKey("outbox_event.seq"), nullable=False),
    Column("sink", String(100), nullable=False),
    Column("status", String(20), nullable=False),
    Column("tries", Integer, nullable=False),
    Column("error", _Long),
    Column("delivered_at", UtcTime),
    UniqueConstraint("seq", "sink"),
    **_options,
)

audit_finding = Table(
    "audit_finding",
    metadata,
    # What an audit found and still finds: one row for each subject ("task/7/0/1", "run/7", "workflow/…").
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("subject", Words(200), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("status", String(20), nullable=False),
    # No foreign keys: what is found may belong to no row at all.
    Column("run_id", BigInteger),
    Column("task_id", BigInteger),
    Column("workflow_id", String(1000)),
    Column("detail", _Long, nullable=False),
    Column("evidence", _Json, nullable=False),
    Column("first_seen", UtcTime, nullable=False),
    Column("last_seen", UtcTime, nullable=False),
    Column("repair", _Long),
    Column("repaired_at", UtcTime),
    UniqueConstraint("subject"),
    Index(None, "status", "last_seen"),
    **_options,
)

audit_report = Table(
    "audit_report",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("audit_id", String(200), nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime, nullable=False),
    Column("report", _Json, nullable=False),
    UniqueConstraint("audit_id"),
    **_options,
)

schema_compatibility = Table(
    "schema_compatibility",
    metadata,
    # One row: the oldest schema version whose builds still work on this database.
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("works_from", String(32), nullable=False),
    **{**_options, "sqlite_autoincrement": False},
)
