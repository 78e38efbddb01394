"""The tables of packages and of their versions."""

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

from ..domain.version import NOTE_MAX

package = new_table(
    "package",
    counted_key("package_id"),
    required("name", String(63)),
    project_column(),
    # The version that runs use which name none.
    required("current", String(64)),
    # The older version that was current before.
    Column("former", String(64)),
    required("changed_at", UtcTime),
    Column("changed_by", Words(255)),
    UniqueConstraint("name"),
    Index(None, "project", "name"),
)

package_version = new_table(
    "package_version",
    counted_key("version_id"),
    required("package", String(63)),
    required("version", String(64)),
    # The digest of the contents (runner/package.py).
    required("digest", String(71)),
    required("size", Integer),
    required("files", Integer),
    Column("commit_id", String(64)),
    # The spiders with their arguments, sorted by name.
    required("spiders", Json),
    # The reason why the spiders are unknown.
    Column("note", Words(NOTE_MAX)),
    required("created_at", UtcTime),
    Column("created_by", Words(255)),
    UniqueConstraint("package", "version"),
    Index(None, "digest"),
)
