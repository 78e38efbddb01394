"""Column types whose values all databases store and return unchanged, and columns that several
tables share.
"""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
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
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.types import TypeDecorator, TypeEngine

from crawler_lifecycle.domain.projects import DEFAULT

#: The maximum number of bytes of a decompressed text. A few manually edited bytes could expand to
#: gigabytes.
TEXT_MAX = 1024 * 1024
CAUSE_MAX = 4000
"""The maximum number of characters that are stored for a string from a cluster, a crawler or a
person.
"""


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime in UTC with microseconds. The databases store it without a time zone."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "mysql":
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sqlite.DATETIME())  # type: ignore[no-untyped-call]

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"the time {value} has no time zone; give an aware datetime")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def storable(text: str, length: int | None = None) -> str:
    """Return ``text`` without lone surrogates and cut to ``length`` characters, so that every
    database accepts it.
    """
    clean = text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
    return clean if length is None or len(clean) <= length else clean[: length - 1] + "…"


class JsonText(str):
    """A string that is already JSON, and is stored unchanged."""

    __slots__ = ()


def json_text(value: object) -> str:
    """Return ``value`` as JSON that every database accepts."""
    if isinstance(value, JsonText):
        return value
    return storable(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


def compressed(text: str) -> bytes:
    """Compress a long text in the format of ``COMPRESS`` of MySQL and MariaDB, so that people can
    read it with ``UNCOMPRESS``.
    """
    data = text.encode()
    return len(data).to_bytes(4, "little") + zlib.compress(data)


def uncompressed(data: bytes | None) -> str:
    """Return the text of ``compressed``, or an empty string.

    Raises ``zlib.error`` for more than ``TEXT_MAX`` bytes.
    """
    text = zlib.decompressobj().decompress(data[4:], TEXT_MAX) if data else b""
    if data and len(text) != int.from_bytes(data[:4], "little"):
        raise zlib.error("the text is incomplete or too long")
    return text.decode()


class Words(TypeDecorator[str]):
    """A string from outside, converted to a storable form and cut to the length of its column.

    Long strings are cut because a status must be recorded even if its explanation is too long.
    """

    impl = String
    cache_ok = True

    def __init__(self, length: int, *, long: bool = False) -> None:
        super().__init__(length)
        self.length = length
        self.long = long

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if self.long else String(self.length))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(str(value), self.length)


Key = BigInteger().with_variant(Integer, "sqlite")

Long = Words(CAUSE_MAX, long=True)

Json = JSON(none_as_null=True)

Bytes = LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)


def required(name: str, *more: Any, **options: Any) -> Column[Any]:
    """Return a column that is not nullable, unlike a plain ``Column``."""
    return Column(name, *more, nullable=False, **options)


def new_table(name: str, *parts: Column[Any] | Index | UniqueConstraint, **options: Any) -> Table:
    """Return a table with the options that all tables share, and with these."""
    numbered = any(isinstance(part, Column) and part.autoincrement is True for part in parts)
    return Table(
        name,
        metadata,
        *parts,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        # Without this option, SQLite reuses the id of a deleted last row for the next new row.
        sqlite_autoincrement=numbered,
        **options,
    )


def same_columns(table: Table, *names: str) -> list[Column[Any]]:
    """Return columns for a worktable, with the same names and types as in ``table``."""
    return [Column(name, table.c[name].type) for name in names]


def counted_key(name: str) -> Column[int]:
    """Return the column with the number that the database assigns to each new row."""
    return Column(name, Key, primary_key=True, autoincrement=True)


def given_key(name: str, kind: Any) -> Column[int]:
    """Return a column of the primary key whose numbers the program assigns."""
    return Column(name, kind, primary_key=True, autoincrement=False)


def owner_key(target: str) -> Column[int]:
    """Return a column of the primary key that refers to a row of another table.

    ``target`` is ``table.column``.
    """
    return Column(
        target.partition(".")[2], Key, ForeignKey(target), primary_key=True, autoincrement=False
    )


def project_column() -> Column[str]:
    """Return the column with the project of a row."""
    return required("project", String(63), server_default=DEFAULT)


def owner_columns() -> list[Column[Any]]:
    """Return the columns with the attempt of a row and the workflow that owns the row."""
    return [
        required("attempt", Integer),
        Column("owner_workflow_id", String(1000)),
        Column("owner_run_id", String(64)),
    ]


def list_indexes(key: str, *filters: str) -> list[Index]:
    """Return the indexes for lists that are read newest first.

    Each index has the columns of a filter, followed by ``key``. A filter with several columns
    separates their names by spaces.
    """
    return [Index(None, *names.split(), key) for names in filters]


def life_columns() -> list[Column[Any]]:
    """Return the time columns of a row that has a start and an end."""
    return [
        required("created_at", UtcTime),
        required("updated_at", UtcTime),
        Column("started_at", UtcTime),
        Column("ended_at", UtcTime),
    ]


def stop_columns() -> list[Column[Any]]:
    """Return the columns that store the stop intent of a row (``base.unit.stop_of``)."""
    return [
        Column("stop_requested_at", UtcTime),
        required("stop_force", Boolean),
        Column("stop_requested_by", Words(255)),
        Column("stop_reason", Long),
        Column("stop_limit", Words(200)),
        required("stop_escalated", Boolean),
    ]
