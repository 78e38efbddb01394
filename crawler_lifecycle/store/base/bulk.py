"""Bulk inserts and deletes: many rows in one statement, with little work in Python.

SQLAlchemy prepares every value separately, and PyMySQL escapes each value character by character.
For 10,000 rows this takes several times as long as the insert in the database. This module prepares
all values of a column together and puts many rows into one statement. On SQLite, the driver
receives the prepared rows as parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Delete,
    Float,
    Integer,
    Select,
    Table,
    Update,
    bindparam,
    insert,
    text,
    update,
)

from crawler_lifecycle.store.columns import UtcTime, Words, json_text, storable

from .rows import Row

CHUNK = 500

T = TypeVar("T")

STATEMENT_CHARACTERS = 1024 * 1024
"""The maximum length of a statement in characters. A server accepts at least 16 MiB, and a
character has at most four bytes.
"""


def insert_mappings(
    conn: Connection, table: Table, rows: Sequence[Mapping[str, Any]], **same: Any
) -> None:
    """Insert rows.

    All rows must have the same columns, in any order. ``same`` contains columns that have one value
    for all rows.

    Raises ``ValueError`` or ``KeyError`` for a row whose columns differ from those of the first
    row.
    """
    if not rows:
        return
    names = tuple(rows[0])
    if odd := next((row for row in rows if len(row) != len(names)), None):
        raise ValueError(
            f"a row has the columns {', '.join(odd)}; give it the columns {', '.join(names)}"
        )
    values = [(*same.values(), *(row[name] for name in names)) for row in rows]
    insert_rows(conn, table, (*same, *names), values)


def insert_rows(
    conn: Connection, table: Table, names: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """Insert rows, each with values in the order of ``names``.

    A column that is ``None`` in every row is left out.
    """
    if not rows:
        return
    columns: list[Column[Any]] = []
    values: list[Sequence[Any]] = []
    for name, found in zip(names, zip(*rows, strict=True), strict=True):
        if any(value is not None for value in found):
            columns.append(table.c[name])
            values.append(_prepared(table.c[name], found))
    quote = conn.dialect.identifier_preparer.quote
    insert = (
        f"INSERT INTO {quote(table.name)} "  # noqa: S608
        f"({', '.join(quote(column.name) for column in columns)}) VALUES "
    )
    if conn.dialect.name == "sqlite":
        places = ", ".join("?" * len(columns))
        conn.exec_driver_sql(f"{insert}({places})", list(zip(*values, strict=True)))
        return
    written = [_written(column, found) for column, found in zip(columns, values, strict=True)]
    for part in _parts([f"({','.join(row)})" for row in zip(*written, strict=True)]):
        # With this option the driver does not interpret percent signs.
        conn.exec_driver_sql(insert + part, execution_options={"no_parameters": True})


def _prepared(column: Column[Any], values: Sequence[Any]) -> Sequence[Any]:
    prepare = _preparation(column)
    if prepare is None:
        return values
    if isinstance(column.type, JSON):
        return [None if value is None else prepare(value) for value in values]
    return _mapped(values, lambda value: None if value is None else prepare(value))


def _mapped(values: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
    """Return the result of ``function`` for every value.

    Repeated values (statuses, causes) are converted once.
    """
    distinct = set(values)
    if len(distinct) > len(values) // 2:
        return [function(value) for value in values]
    known = {value: function(value) for value in distinct}
    return [known[value] for value in values]


def _preparation(column: Column[Any]) -> Callable[[Any], Any] | None:
    """Return the conversion that SQLAlchemy would apply to values of this column; ``None`` if it
    needs none.
    """
    kind = column.type
    if isinstance(kind, UtcTime):
        return _time
    if isinstance(kind, Words):
        length = kind.length
        return lambda value: storable(str(value), length)
    if isinstance(kind, JSON):
        return json_text
    return int if isinstance(kind, Boolean) else None


def _time(value: datetime) -> str:
    if value.tzinfo is not UTC:
        if value.tzinfo is None:
            raise ValueError(f"the time {value} has no time zone; give an aware datetime")
        value = value.astimezone(UTC)
    return value.replace(tzinfo=None).isoformat(" ", "microseconds")


def _written(column: Column[Any], values: Sequence[Any]) -> list[str]:
    """Return the values as literals for MySQL and MariaDB."""
    if isinstance(column.type, Integer | Boolean):
        return ["NULL" if value is None else str(int(value)) for value in values]
    if isinstance(column.type, Float):
        return ["NULL" if value is None else repr(float(value)) for value in values]
    return _mapped(values, _quoted)


def _quoted(text: str | bytes | None) -> str:
    """Return the value as a literal.

    The escaping is safe because our sql_mode allows backslash escapes, and no multi-byte character
    of utf8mb4 contains the byte of a quote.
    """
    if isinstance(text, bytes):
        return f"x'{text.hex()}'"
    return "NULL" if text is None else "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _parts(rows: Sequence[str]) -> Iterator[str]:
    """Return the rows in chunks that each fit into one statement."""
    part: list[str] = []
    size = 0
    for row in rows:
        if part and size + len(row) > STATEMENT_CHARACTERS:
            yield ",".join(part)
            part = []
            size = 0
        part.append(row)
        size += len(row)
    yield ",".join(part)


def chunks(items: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """Return ``items`` in chunks that each fit into one ``IN``."""
    return (items[start : start + size] for start in range(0, len(items), size))


def rows_in(
    conn: Connection,
    query: Select[Any],
    column: Column[Any],
    values: Iterable[Any],
    size: int = CHUNK,
) -> list[Row]:
    """Return the rows of the query whose ``column`` has one of these values."""
    parts = (
        conn.execute(query.where(column.in_(chunk))).mappings()
        for chunk in chunks(sorted(set(values)), size)
    )
    return [row for part in parts for row in part]


def change_in(
    conn: Connection, statement: Update | Delete, column: Column[Any], values: Iterable[Any]
) -> None:
    """Execute the statement for the rows whose ``column`` has one of these values."""
    for chunk in chunks(sorted(set(values))):
        conn.execute(statement.where(column.in_(chunk)))


def delete_rows(
    conn: Connection,
    column: Column[int],
    index: str,
    values: Sequence[int],
    *,
    of: Mapping[str, int] | None = None,
) -> int:
    """Delete the rows whose ``column`` has one of these values. Returns their number.

    ``column`` is the first column of ``index``. If ``of`` (a column and a value) is given, only
    rows with this value are deleted, and ``column`` is the second column of ``index``.
    """
    table = column.table.name
    name = column.name
    gone = 0
    only = "".join(f"x.{column} = :{column} AND " for column in of or ())
    for chunk in chunks(values):
        hint = (
            f"x FROM {table} AS x FORCE INDEX ({index})"
            if conn.dialect.name == "mysql"
            else f"FROM {table} AS x"
        )
        statement = text(f"DELETE {hint} WHERE {only}x.{name} IN :chosen")
        statement = statement.bindparams(bindparam("chosen", expanding=True))
        gone += conn.execute(statement, {"chosen": list(chunk), **(of or {})}).rowcount
    return gone


def put_row(
    conn: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Update the row with this key, or insert it.

    The caller must hold a lock that prevents a concurrent insert of the same key.
    """
    here = [table.c[name] == value for name, value in key.items()]
    if not conn.execute(update(table).where(*here).values(**values)).rowcount:
        conn.execute(insert(table).values(**key, **values))
