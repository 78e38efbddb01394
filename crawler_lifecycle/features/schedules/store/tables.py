"""Tables of schedules and their firings."""

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, UniqueConstraint

from crawler_lifecycle.store.columns import (
    Json,
    Key,
    Long,
    UtcTime,
    Words,
    counted_key,
    new_table,
    project_column,
    required,
)

schedule = new_table(
    "schedule",
    counted_key("schedule_id"),
    required("name", String(80)),
    project_column(),
    # Each new definition increases it by 1.
    required("revision", Integer),
    required("definition", Json),
    # The revision that Temporal has.
    Column("told", Integer),
    Column("requested_by", Words(255)),
    Column("paused_at", UtcTime),
    Column("pause_reason", Long),
    # Only failures of firings after this one count for a pause.
    required("failures_after", BigInteger),
    # The end of the last check. Each due time before it has a firing.
    required("checked_until", UtcTime),
    Column("trouble", Long),
    required("created_at", UtcTime),
    required("updated_at", UtcTime),
    # Since when there are no further due times.
    Column("ended_at", UtcTime),
    Column("deleted_at", UtcTime),
    UniqueConstraint("name"),
    Index(None, "project", "schedule_id"),
)

schedule_due = new_table(
    "schedule_due",
    # Each due time has one row, its firing. A row changes later when its target starts or can never
    # start. A firing without a target also changes when a person requests it.
    counted_key("due_id"),
    required("schedule_id", Key, ForeignKey("schedule.schedule_id")),
    # The revision of the definition that was valid when the decision was made.
    required("revision", Integer),
    required("due_at", UtcTime),
    required("decision", String(20)),
    Column("reason", Long),
    Column("asked_by", Words(255)),
    # The key of a person's request. A repeated request with this key finds this row.
    Column("request_key", String(120)),
    required("lateness_ms", BigInteger),
    required("decided_at", UtcTime),
    # The row whose target must end before the target of this row starts.
    Column("after_id", BigInteger),
    # There is no foreign key, because the target can be a run, a manager or a graph.
    required("target_kind", String(20)),
    Column("target_id", BigInteger),
    Column("begun_at", UtcTime),
    UniqueConstraint("schedule_id", "due_at"),
    UniqueConstraint("schedule_id", "request_key"),
    Index(None, "schedule_id", "decision", "decided_at"),
    # An index for the search for firings whose target has not started.
    Index(None, "decision", "target_id", "due_id"),
)
