"""The table of incidents."""

from sqlalchemy import BigInteger, Column, Integer, String, UniqueConstraint

from crawler_lifecycle.store.columns import (
    UtcTime,
    Words,
    counted_key,
    list_indexes,
    new_table,
    project_column,
    required,
)

#: The maximum numbers of characters in the cause, the fix and the comment, and in a name.
TEXT_MAX = 1000
NAME_MAX = 100

incident = new_table(
    "incident",
    counted_key("incident_id"),
    required("incident_uid", String(32)),
    required("kind", String(30)),
    # The path of its page: crawlers/shop-437, schedules/nightly.
    required("subject", Words(220)),
    project_column(),
    # bad or warn; the alphabetical order is the order of lists.
    required("level", String(10)),
    required("state", String(10)),
    required("fingerprint", String(32)),
    # The hash of kind, subject, project and fingerprint while the incident is open, otherwise null.
    # So each cause of a subject is open only once.
    Column("open_key", String(32)),
    required("cause", Words(TEXT_MAX)),
    Column("fix", Words(TEXT_MAX)),
    required("count", Integer),
    Column("first_run_id", BigInteger),
    Column("last_run_id", BigInteger),
    required("opened_at", UtcTime),
    required("last_at", UtcTime),
    Column("closed_at", UtcTime),
    # "recovered", or the name of the person who closed it.
    Column("closed_by", Words(NAME_MAX)),
    required("reopened", Integer),
    # The count in the last event; 0: no event reported it.
    required("notified_count", Integer),
    # How many events reported it since its last end: its opening, and that it grew.
    required("notices", Integer),
    Column("muted_until", UtcTime),
    Column("assignee", Words(NAME_MAX)),
    Column("comment", Words(TEXT_MAX)),
    UniqueConstraint("open_key"),
    *list_indexes("incident_id", "state", "subject", "project", "project state"),
)
