"""Tables of runs and their tasks."""

from __future__ import annotations

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

from crawler_lifecycle.domain.code import NOTE_MAX, VERSION_MAX
from crawler_lifecycle.domain.last_words import ERROR_MAX
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.search_words import WORD_MAX
from crawler_lifecycle.store.columns import (
    Bytes,
    Json,
    Key,
    Long,
    UtcTime,
    Words,
    counted_key,
    given_key,
    life_columns,
    list_indexes,
    new_table,
    owner_columns,
    owner_key,
    project_column,
    required,
    same_columns,
    stop_columns,
)

LIVE_RUNS = [status.value for status in RunStatus if not status.terminal]
OVER_RUNS = [status.value for status in RunStatus if status.terminal]


def _run_id() -> Column[int]:
    return required("run_id", Key, ForeignKey("run_history.run_id"))


def _counters() -> list[Column[int]]:
    return [Column(name, BigInteger) for name in ("pages", "items", "errors", "bytes")]


def _code_words() -> list[Column[str]]:
    return [
        Column("code_version", Words(VERSION_MAX)),
        Column("code_commit", String(64)),
        Column("code_note", Words(NOTE_MAX)),
    ]


run_history = new_table(
    "run_history",
    counted_key("run_id"),
    # The uid identifies the run. A restored database may assign its number again.
    required("run_uid", String(32)),
    project_column(),
    required("request_id", String(120)),
    required("request_hash", String(32)),
    # work_hash: the fingerprint of the work, excluding the requester and the time. schedule: the
    # schedule that requested the run. Both are used to find a later successful run of the same work
    # or schedule.
    Column("work_hash", String(32)),
    Column("schedule", String(80)),
    required("crawler", String(63)),
    required("pool", String(63)),
    required("trigger", String(20)),
    required("status", String(20)),
    required("stage", String(20)),
    Column("outcome", Words(200)),
    Column("cause", Long),
    *owner_columns(),
    # Facts about the claim of this attempt, so that a second claim by the same owner gets the same
    # answer.
    required("claim_resumed", Boolean),
    required("claim_rerun", Boolean),
    required("claim_repair", Boolean),
    # The time when this attempt was accepted; null for the first attempt, for which it is
    # created_at.
    Column("attempt_at", UtcTime),
    # The last attempt in which ended tasks were queued again.
    required("requeued_attempt", Integer),
    required("request", Json),
    Column("requested_by", Words(255)),
    # The project and name of the token that started the run; null for a run that no token started.
    Column("caller", String(128)),
    required("multi", Boolean),
    Column("flow_id", String(255)),
    Column("parent", String(255)),
    *stop_columns(),
    Column("stop_acted_at", UtcTime),
    Column("waiting_for", Long),
    Column("waiting_since", UtcTime),
    Column("look_error", Long),
    Column("look_error_since", UtcTime),
    Column("verified_at", UtcTime),
    # The time when Temporal ordered the last recorded poll. Polls that were ordered earlier are
    # refused.
    Column("look_ordered_at", UtcTime),
    Column("next_look_at", UtcTime),
    Column("last_progress_at", UtcTime),
    # Milliseconds for which polls have seen the run execute without progress (domain/stall.py).
    Column("quiet_ms", BigInteger),
    *_counters(),
    # The number of items that fill each field (domain/coverage.py). The verdict sets this column.
    Column("fields", Json),
    *life_columns(),
    # Deletion of the run's data: the time of the request, the time of its end, and its report.
    Column("deleted_at", UtcTime),
    Column("deletion_ended_at", UtcTime),
    Column("deletion", Json),
    # What ended the run (domain/ended_by.py); null if it is live, or if a build before migration
    # 0006 ended it.
    Column("ended_by", String(20)),
    # What is missing from the expected results (domain/run.py, Verdict).
    Column("lacks", String(20)),
    # Counts recorded polls, stops and changes of tasks. A poll that read an older number is
    # refused.
    Column("look_revision", Integer),
    # Milliseconds between the last poll that the workflow ordered and the next one.
    Column("look_gap_ms", BigInteger),
    UniqueConstraint("request_id"),
    Index(None, "run_uid", unique=True),
    *list_indexes(
        "run_id",
        "status",
        "stage",
        "trigger",
        "outcome",
        "ended_by",
        "pool",
        "crawler",
        "crawler status",
        "flow_id",
        "flow_id status",
        "parent",
        "parent status",
        "parent ended_at",
        "work_hash status",
        "schedule status",
        # For finding the few resumed runs of a manager.
        "parent attempt",
        # Callers of one project use the same filters, which must not read the rows of all other
        # projects.
        "project",
        "project status",
        "project stage",
        "project trigger",
        "project outcome",
        "project ended_by",
        "project crawler",
        "project crawler status",
        # For quotas.
        "pool status",
        "caller status",
    ),
    Index(None, "pool", "created_at"),
    Index(None, "caller", "created_at"),
    Index(None, "project", "created_at"),
    Index(None, "created_at"),
    # For audits, which compare recently ended runs.
    *list_indexes("run_id", "ended_at"),
    # Only live runs have a next poll. Live runs without a next poll are found by the time when
    # their rows last changed.
    Index("ix_run_history_overdue", "next_look_at", "status", "updated_at"),
    Index("ix_run_history_unowned", "owner_run_id", "status", "created_at"),
    Index(None, "deletion_ended_at", "deleted_at"),
    Index("ix_run_history_unheard", "stop_acted_at", "status", "stop_requested_at"),
)

run_tag = new_table(
    "run_tag",
    Column("tag", Words(200), primary_key=True),
    owner_key("run_history.run_id"),
    project_column(),
    Index(None, "run_id"),
    Index(None, "project", "tag", "run_id"),
)

run_code = new_table(
    "run_code",
    # The codes of the run's tasks that have a digest. The key finds the newest runs with a digest,
    # and the index the codes of a run.
    Column("code_digest", String(71), primary_key=True),
    owner_key("run_history.run_id"),
    project_column(),
    *_code_words(),
    Index(None, "run_id"),
    Index(None, "project", "code_digest", "run_id"),
)

run_word = new_table(
    "run_word",
    # The words by which a search finds the run (domain/search_words.py). The index finds the newest
    # runs with a word, and the key the words of a run.
    owner_key("run_history.run_id"),
    Column("word", String(WORD_MAX), primary_key=True),
    Index(None, "word", "run_id"),
    sqlite_with_rowid=False,  # a third less space
)

history_property = new_table(
    "history_property",
    counted_key("id"),
    _run_id(),
    required("attempt", Integer),
    required("name", String(100)),
    required("value", Words(1000)),
    UniqueConstraint("run_id", "attempt", "name"),
)

task_history = new_table(
    "task_history",
    counted_key("task_id"),
    _run_id(),
    # Counts the tries of this index over all attempts of the run. This count is part of the task's
    # name on the cluster.
    required("attempt", Integer),
    # The attempt of the run to which the try belongs.
    required("run_attempt", Integer),
    required("task_index", Integer),
    # There is no foreign key, because it would need a second index, and single tasks are never
    # deleted.
    Column("superseded_by", BigInteger),
    required("status", String(20)),
    required("status_since", UtcTime),
    Column("outcome", Words(200)),
    Column("cause", Long),
    # The line from the log or from the runner that explains why the crawler failed.
    Column("error", Words(ERROR_MAX)),
    required("args", Json),
    Column("cluster", Words(100)),
    Column("cluster_name", Words(255)),
    Column("cluster_uid", Words(100)),
    # The namespace of the task. On Kubernetes, this is its name, its uid and the uid of the
    # cluster.
    Column("cluster_place", Words(200)),
    # The time when a forced stop last killed the task.
    Column("killed_at", UtcTime),
    Column("node", Words(255)),
    Column("reason", Long),
    Column("exit_code", Integer),
    Column("exit_signal", Integer),
    *_counters(),
    Column("peak_memory", BigInteger),
    Column("fields", Json),
    # True if the task continued from saved state; null if its runner did not report this.
    Column("resumed", Boolean),
    Column("resume_note", Words(200)),
    Column("offered_until", UtcTime),
    # The number of earlier retries by the policy in this attempt of the run. The next columns show
    # when a retry may begin, with how much memory, and which node it should avoid.
    required("retry", Integer, server_default="0"),
    Column("not_before", UtcTime),
    Column("memory", String(20)),
    Column("avoid_node", Words(255)),
    # The reason why no further try follows; null if this is not decided, or if a try follows.
    Column("retry_note", Words(200)),
    # The pool and the priority with which the task was offered; null without pools.
    Column("pool", String(63)),
    Column("priority", Integer),
    required("ever_seen", Boolean),
    # The last time at which a poll saw the task if later polls do not find it. This alone proves
    # nothing.
    Column("absent_since", UtcTime),
    # The time of the first poll that did not find the task, if no later poll found it. A second
    # such poll after a long time proves that the task is gone.
    Column("missed_at", UtcTime),
    Column("last_progress_at", UtcTime),
    Column("deployed_at", UtcTime),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    # The same as in run_history.
    Column("ended_by", String(20)),
    # The code that the task executed (domain/code.py).
    Column("code_digest", String(71)),
    *_code_words(),
    UniqueConstraint("run_id", "task_index", "attempt"),
    # For pages of the tasks of a run, which are ordered by id.
    Index(None, "run_id", "task_id"),
    # Counts need only the first three columns. Offers and pages of one status are also ordered by
    # the fourth.
    Index("ix_task_history_current", "run_id", "superseded_by", "status", "task_index"),
    # The used slots of pools are counted from this index alone.
    Index("ix_task_history_places", "status", "offered_until", "pool", "priority"),
)

pool_gate = new_table(
    "pool_gate",
    # A single row, which is locked to assign slots, so that pools never exceed their caps
    # (domain/pools.py).
    given_key("id", Integer),
    required("state", Json),
)

pool_ticket = new_table(
    "pool_ticket",
    # A run that is waiting for slots in its pool.
    owner_key("run_history.run_id"),
    required("pool", String(63)),
    required("priority", Integer),
    # The position in the line depends on the age of the run. The wait began when the run last got a
    # slot.
    required("since", UtcTime),
    required("waits_since", UtcTime),
    required("wanted", Integer),
    # The time when the workflow was called to request slots.
    Column("called_at", UtcTime),
    Index(None, "pool", "priority", "since", "run_id"),
    # Few runs are called and do not respond.
    Index(None, "called_at"),
)

crawler_memory = new_table(
    "crawler_memory",
    # The memory that a try needed after "oom", if the retry policy sets ``remember``.
    Column("project", String(63), primary_key=True),
    Column("crawler", String(63), primary_key=True),
    required("memory", String(20)),
    required("run_id", BigInteger),
)

task_addition = new_table(
    "task_addition",
    counted_key("id"),
    _run_id(),
    required("request_key", String(120)),
    required("args_hash", String(32)),
    required("first_index", Integer),
    required("tasks", Integer),
    required("created_at", UtcTime),
    UniqueConstraint("run_id", "request_key"),
)

task_observation = new_table(
    "task_observation",
    given_key("task_id", Key),
    required("run_id", BigInteger),
    required("attempt", Integer),
    required("task_index", Integer),
    Column("finding", Json),
    Column("details", Json),
    Index(None, "run_id", "task_index"),
)

task_finding = new_table(
    "task_finding",
    # The changes of the staged findings, prepared for one UPDATE (see moves.py). Columns that have
    # the name of a column of task_history also have its type.
    given_key("run_id", BigInteger),
    given_key("task_id", BigInteger),
    required("believed", String(20)),
    required("terminal", Boolean),
    Column("cluster_time", UtcTime),
    # The time when a poll last confirmed the recorded status.
    Column("vouched_at", UtcTime),
    Column("correction", String(30)),
    required("evidence", Json),
    *same_columns(
        task_history,
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
        "ended_by",
    ),
)

task_change = new_table(
    "task_change",
    # A worktable, whose rows exist only within one transaction (see moves.py). Columns that have
    # the name of a column of task_history also have its type.
    given_key("run_id", BigInteger),
    given_key("task_id", BigInteger),
    Column("believed", String(20)),
    Column("cluster_time", UtcTime),
    Column("lag_ms", BigInteger),
    Column("correction", String(30)),
    Column("evidence", Json),
    *same_columns(
        task_history,
        "superseded_by",
        "status",
        "status_since",
        "outcome",
        "cause",
        "error",
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
        "fields",
        "resumed",
        "resume_note",
        "ever_seen",
        "absent_since",
        "missed_at",
        "last_progress_at",
        "deployed_at",
        "started_at",
        "ended_at",
        "retry_note",
        "ended_by",
        "code_digest",
        "code_version",
        "code_commit",
        "code_note",
    ),
)

task_log = new_table(
    "task_log",
    owner_key("task_history.task_id"),
    # Only rows that older builds wrote contain the text here. In newer rows, this column is empty,
    # and the next column contains the text.
    required("log_tail", Text, default=""),
    # An uncompressed log takes a page of 16 KiB. Compressed (columns.compressed), it takes a fifth
    # of that.
    Column("compressed", Bytes),
)

task_stats = new_table(
    "task_stats",
    # The statistics that the crawler reported at its end, as numbers by name.
    owner_key("task_history.task_id"),
    required("stats", Json),
)

status_transition = new_table(
    "status_transition",
    counted_key("seq"),
    _run_id(),
    Column("task_id", BigInteger),
    required("attempt", Integer),
    Column("from_status", String(20)),
    required("to_status", String(20)),
    Column("cluster_time", UtcTime),
    required("committed_at", UtcTime),
    Column("lag_ms", BigInteger),
    required("source", String(20)),
    required("evidence", Json),
    Index(None, "run_id", "seq"),
)

correction = new_table(
    "correction",
    counted_key("id"),
    _run_id(),
    # The project of the run, so that lists and sums of one project read no rows of other projects.
    project_column(),
    Column("task_id", BigInteger),
    required("attempt", Integer),
    required("kind", String(30)),
    required("believed", String(20)),
    Column("believed_since", UtcTime),
    required("truth", String(20)),
    Column("truth_since", UtcTime),
    required("found_by", String(20)),
    Column("lag_ms", BigInteger),
    required("evidence", Json),
    required("created_at", UtcTime),
    *list_indexes("id", "run_id", "kind", "project", "project kind"),
    # The summary of corrections reads only one of these indexes.
    Index("ix_correction_summary", "created_at", "kind", "lag_ms"),
    Index("ix_correction_summary_of_project", "project", "created_at", "kind", "lag_ms"),
)

cancellation_log = new_table(
    "cancellation_log",
    counted_key("id"),
    _run_id(),
    required("attempt", Integer),
    required("request_id", Words(120)),
    Column("requested_by", Words(255)),
    Column("reason", Long),
    required("force", Boolean),
    required("requested_at", UtcTime),
    Column("acted_at", UtcTime),
    UniqueConstraint("run_id", "attempt", "request_id"),
)

export_record = new_table(
    "export_record",
    counted_key("id"),
    _run_id(),
    required("attempt", Integer),
    required("status", String(20)),
    Column("url", Words(2000)),
    Column("bytes", BigInteger),
    Column("files", Integer),
    Column("sha256", String(64)),
    Column("error", Long),
    required("at", UtcTime),
    UniqueConstraint("run_id", "attempt"),
)
