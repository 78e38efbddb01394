"""The table of canaries."""

from sqlalchemy import BigInteger, Column, Float, Integer, String, UniqueConstraint

from crawler_lifecycle.store.columns import (
    Json,
    Long,
    UtcTime,
    Words,
    counted_key,
    list_indexes,
    new_table,
    project_column,
    required,
)

canary = new_table(
    "canary",
    counted_key("canary_id"),
    required("canary_uid", String(32)),
    # The package or, if the digests are empty, the entry of the catalogue.
    required("package", String(63)),
    project_column(),
    # The current version and the one that is tried, each with the digest of its contents.
    required("old_version", String(64)),
    required("old_digest", String(71)),
    required("new_version", String(64)),
    required("new_digest", String(71)),
    required("share", Float(53)),
    required("runs", Integer),
    required("judge", Json),
    required("state", String(10)),
    # The package, or the uid of an entry's canary, while it is open, or while people do not know
    # yet that it was rejected; otherwise null. So a package has only one open canary. An entry has
    # only one, too, because a canary begins under the lock of the entry.
    Column("holder", String(63)),
    # How many runs named no version, and how many of them got the new one.
    required("asked", Integer),
    required("given", Integer),
    # The last run before it. A later run with the new digest is judged.
    required("after_run_id", BigInteger),
    required("created_at", UtcTime),
    Column("created_by", Words(255)),
    Column("ended_at", UtcTime),
    # "judge", or the person who ended it.
    Column("ended_by", Words(255)),
    Column("result", Long),
    UniqueConstraint("holder"),
    *list_indexes("canary_id", "state", "package", "project"),
)
