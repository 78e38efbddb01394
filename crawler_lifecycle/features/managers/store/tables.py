"""Tables of crawl managers, of their jobs, and of the user code that workers report."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
)

from crawler_lifecycle.store.columns import (
    Json,
    Key,
    Long,
    UtcTime,
    Words,
    counted_key,
    life_columns,
    list_indexes,
    new_table,
    owner_columns,
    owner_key,
    project_column,
    required,
    stop_columns,
)

from ..domain.manager import JobState

#: Columns with counters of a manager, in addition to the counters of its jobs in each state.
MANAGER_COUNTERS = ("yields", "duplicates", "scheduled", "retried", "good", "bad")

manager = new_table(
    "manager",
    counted_key("manager_id"),
    # The uid identifies the manager. A restored database may assign its number again.
    required("manager_uid", String(32)),
    project_column(),
    required("name", String(63)),
    required("flow_id", String(120)),
    required("plan", String(200)),
    required("options", Json),
    # The fingerprint of class and options, which identifies a repeated start.
    required("request_hash", String(32)),
    required("status", String(20)),
    Column("outcome", Words(200)),
    Column("cause", Long),
    *owner_columns(),
    # Previous owners whose manager was taken over, and whose late claims are refused.
    required("former_owners", Json),
    # The generation of the process that runs the class. Writes of older processes are refused.
    required("generation", Integer),
    Column("fingerprint", String(100)),
    required("position", BigInteger),
    required("exhausted", Boolean),
    Column("source_error", Long),
    Column("last_pick_at", UtcTime),
    # True if a decision of the class ended the manager, so that no further cycle begins.
    required("is_over", Boolean),
    required("sealed", Boolean),
    required("next_seq", BigInteger),
    Column("cap", Integer),
    required("paused", Boolean),
    required("leave_runs", Boolean),
    *stop_columns(),
    # tries is the number of successive failed cycles. hook_errors is the number of hooks of this
    # attempt that failed permanently.
    required("tries", Integer),
    required("hook_errors", Integer),
    required("state", Json),
    required("stats", Json),
    required("tags", Json),
    required("flow_tags", Json),
    Column("close_reason", Words(200)),
    Column("waiting_for", Long),
    Column("error", Long),
    Column("requested_by", Words(255)),
    Column("parent", String(255)),
    # Counters, which each change updates. Without them, a page would have to count up to a million
    # jobs.
    *(required(f"jobs_{state.value}", BigInteger) for state in JobState),
    *(required(name, BigInteger) for name in MANAGER_COUNTERS),
    # Events up to pruned_through may have been removed. Jobs were last removed at jobs_pruned_at.
    Column("pruned_through", BigInteger),
    Column("jobs_pruned_at", UtcTime),
    *life_columns(),
    UniqueConstraint("flow_id", "name"),
    *list_indexes("manager_id", "project", "project status", "status", "name"),
)

manager_item = new_table(
    "manager_item",
    counted_key("item_id"),
    required("manager_id", Key, ForeignKey("manager.manager_id")),
    # Null for jobs that are never recognised as duplicates.
    Column("identity", String(64)),
    Column("position", BigInteger),
    required("state", String(20)),
    Column("seq", BigInteger),
    required("retry", Integer),
    Column("retry_of", Words(120)),
    Column("spider", Words(255)),
    Column("cap_key", Words(255)),
    # The job; null for an invalid yield.
    Column("params", Json),
    Column("not_before", UtcTime),
    # There is no foreign key, because a foreign key would need a further index.
    Column("run_id", BigInteger),
    # The last attempt of its run for whose end hooks were called, or 0.
    required("handled_attempt", Integer),
    # The number of failures of its hooks since their last success.
    required("hook_tries", Integer),
    Column("outcome", Words(200)),
    Column("error", Long),
    required("created_at", UtcTime),
    required("updated_at", UtcTime),
    UniqueConstraint("manager_id", "identity"),
    # Each number and retry has at most one job. There may be many jobs without a number.
    UniqueConstraint("manager_id", "seq", "retry"),
    Index(None, "manager_id", "state", "item_id"),
    Index(None, "run_id"),
)

manager_addition = new_table(
    "manager_addition",
    counted_key("id"),
    required("manager_id", Key, ForeignKey("manager.manager_id")),
    required("request_key", String(120)),
    required("jobs_hash", String(32)),
    required("jobs", Integer),
    required("created_at", UtcTime),
    UniqueConstraint("manager_id", "request_key"),
)

manager_log = new_table(
    "manager_log",
    # The log has its own table, because every cycle locks the row of the manager and every list
    # reads it.
    owner_key("manager.manager_id"),
    required("log_tail", Text),
)

plan = new_table(
    "plan",
    # The names of classes and modules. Every database compares them case-sensitively.
    Column("plan", String(200), primary_key=True),
    required("kind", String(20)),
    Column("name", Words(63)),
    required("description", Long),
    required("fingerprint", String(100)),
    required("options", Json),
    Column("error", Long),
    # The pool of workers that has a module, or null for the common pool. Classes have no pool.
    Column("queue", Words(50)),
    # The worker that reports the class. since is the time of the worker's first report of this
    # code, and seen_at the time of the worker's last report, or null if the worker no longer
    # reports the class.
    Column("worker", Words(200), primary_key=True),
    required("since", UtcTime),
    Column("seen_at", UtcTime),
)
