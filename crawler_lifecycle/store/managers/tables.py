"""Tables of crawl managers, and of the classes that workers know."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Text, UniqueConstraint

from crawler_lifecycle.domain.managers.manager import JobState
from crawler_lifecycle.store.columns import Json, Key, Long, UtcTime, Words, life_columns, new_table, stop_columns

#: A manager's counters in addition to its jobs by state.
MANAGER_COUNTERS = ("yields", "duplicates", "scheduled", "retried", "good", "bad")

manager = new_table(
    "manager",
    Column("manager_id", Key, primary_key=True, autoincrement=True),
    # The uid of the manager: a number is given out again after a restore of the database.
    Column("manager_uid", String(32), nullable=False),
    Column("name", String(63), nullable=False),
    Column("flow_id", String(120), nullable=False),
    Column("plan", String(200), nullable=False),
    Column("options", Json, nullable=False),
    # Fingerprint of plan and options, so that a repeated start is recognised.
    Column("request_hash", String(32), nullable=False),
    Column("status", String(20), nullable=False),
    Column("outcome", Words(200)),
    Column("cause", Long),
    Column("attempt", Integer, nullable=False),
    Column("owner_workflow_id", String(1000)),
    Column("owner_run_id", String(64)),
    # Owners from which it was taken: a late claim of theirs is refused.
    Column("former_owners", Json, nullable=False),
    # The generation of the process that holds the class; writes of an older one are refused.
    Column("generation", Integer, nullable=False),
    Column("fingerprint", String(100)),
    Column("position", BigInteger, nullable=False),
    Column("exhausted", Boolean, nullable=False),
    Column("source_error", Long),
    Column("last_pick_at", UtcTime),
    # Whether its class wants no further cycle.
    Column("is_over", Boolean, nullable=False),
    Column("sealed", Boolean, nullable=False),
    Column("next_seq", BigInteger, nullable=False),
    Column("cap", Integer),
    Column("paused", Boolean, nullable=False),
    Column("leave_runs", Boolean, nullable=False),
    *stop_columns(),
    # Cycles in a row that its class could not do; hooks of this attempt that failed for good.
    Column("tries", Integer, nullable=False),
    Column("hook_errors", Integer, nullable=False),
    Column("state", Json, nullable=False),
    Column("stats", Json, nullable=False),
    Column("tags", Json, nullable=False),
    Column("flow_tags", Json, nullable=False),
    Column("close_reason", Words(200)),
    Column("waiting_for", Long),
    Column("error", Long),
    Column("requested_by", Words(255)),
    Column("parent", String(255)),
    # Updated in the transaction of each change, so that nobody has to count a million items to show a manager.
    *(Column(f"jobs_{state.value}", BigInteger, nullable=False) for state in JobState),
    *(Column(name, BigInteger, nullable=False) for name in MANAGER_COUNTERS),
    # Its events up to this number may be gone, and its jobs, since then.
    Column("pruned_through", BigInteger),
    Column("jobs_pruned_at", UtcTime),
    *life_columns(),
    UniqueConstraint("flow_id", "name"),
    Index(None, "status", "manager_id"),
    Index(None, "name", "manager_id"),
)

manager_item = new_table(
    "manager_item",
    Column("item_id", Key, primary_key=True, autoincrement=True),
    Column("manager_id", Key, ForeignKey("manager.manager_id"), nullable=False),
    # Null for jobs that are made at every request.
    Column("identity", String(64)),
    Column("position", BigInteger),
    Column("state", String(20), nullable=False),
    Column("seq", BigInteger),
    Column("retry", Integer, nullable=False),
    Column("retry_of", Words(120)),
    Column("spider", Words(255)),
    Column("cap_key", Words(255)),
    # The job; null for a yield that cannot be one.
    Column("params", Json),
    Column("not_before", UtcTime),
    # No foreign key: it would be one more index to keep.
    Column("run_id", BigInteger),
    # The last attempt of its run whose hooks ran; 0: none.
    Column("handled_attempt", Integer, nullable=False),
    # Number of failures of its hooks since hooks last succeeded.
    Column("hook_tries", Integer, nullable=False),
    Column("outcome", Words(200)),
    Column("error", Long),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    UniqueConstraint("manager_id", "identity"),
    # One run for each number and retry; jobs without a number are not included.
    UniqueConstraint("manager_id", "seq", "retry"),
    Index(None, "manager_id", "state", "item_id"),
    Index(None, "run_id"),
)

manager_addition = new_table(
    "manager_addition",
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("manager_id", Key, ForeignKey("manager.manager_id"), nullable=False),
    Column("request_key", String(120), nullable=False),
    Column("jobs_hash", String(32), nullable=False),
    Column("jobs", Integer, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("manager_id", "request_key"),
)

manager_log = new_table(
    "manager_log",
    # Not in the manager's row, which every cycle locks and every list reads.
    Column("manager_id", Key, ForeignKey("manager.manager_id"), primary_key=True, autoincrement=False),
    Column("log_tail", Text, nullable=False),
)

plan = new_table(
    "plan",
    # Names of classes are compared case-sensitively, on every database.
    Column("plan", String(200), primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("name", Words(63)),
    Column("description", Long, nullable=False),
    Column("fingerprint", String(100), nullable=False),
    Column("options", Json, nullable=False),
    Column("error", Long),
    # The pool of workers that has it; null: all of them, or the common one.
    Column("queue", Words(50)),
    # The worker that says so; since when it says exactly this, and when it said it last (null: no longer).
    Column("worker", Words(200), primary_key=True),
    Column("since", UtcTime, nullable=False),
    Column("seen_at", UtcTime),
)
