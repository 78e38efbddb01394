"""The tables of the entries of the catalogue and of their versions."""

from sqlalchemy import Column, Index, Integer, String, UniqueConstraint

from crawler_lifecycle.store.columns import (
    Json,
    UtcTime,
    Words,
    counted_key,
    new_table,
    project_column,
    required,
)

catalogue_entry = new_table(
    "catalogue_entry",
    counted_key("entry_id"),
    required("name", String(63)),
    project_column(),
    # The version in use, whose document is in the other table.
    required("number", Integer),
    # The older version that was in use before.
    Column("former", Integer),
    # The package whose deployment made the entry; null if a person did.
    Column("package", String(63)),
    required("changed_at", UtcTime),
    Column("changed_by", Words(255)),
    UniqueConstraint("name"),
    Index(None, "project", "name"),
    Index(None, "package"),
    # What the access log calls an entry.
    info={"kind": "crawler"},
)

catalogue_change = new_table(
    "catalogue_change",
    # Rows are never changed or removed: runs name the version that they execute.
    counted_key("change_id"),
    required("name", String(63)),
    project_column(),
    required("number", Integer),
    required("document", Json),
    required("changed_at", UtcTime),
    Column("changed_by", Words(255)),
    Column("note", Words(200)),
    UniqueConstraint("name", "number"),
)
