"""Bulk inserts: many rows in one statement, without a cost per value in Python.

SQLAlchemy prepares every value of every row by itself, and PyMySQL then escapes each of them character by character:
for 10,000 rows that takes several times as long as the database needs to insert them. Here values are prepared by the
column and written into statements of many rows. SQLite's driver takes plain rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import JSON, Boolean, Column, Connection, Integer, Table, bindparam, insert, text, update

from crawler_lifecycle.store.columns import UtcTime, Words, json_text, storable

CHUNK = 500

T = TypeVar("T")

STATEMENT_CHARACTERS = 1024 * 1024
"""Far below what a server takes in one statement (16 MiB at least), also when every character has four bytes."""


def insert_mappings(conn: Connection, table: Table, rows: Sequence[Mapping[str, Any]], **same: Any) -> None:
    """Insert rows that all have the same columns, in any order; ``same`` are columns with one value for every row.

    Raises ``ValueError`` or ``KeyError`` for a row with other columns than the first.
    """
    if not rows:
        return
    names = tuple(rows[0])
    if odd := next((row for row in rows if len(row) != len(names)), None):
        raise ValueError(f"a row has the columns {', '.join(odd)}; expected were {', '.join(names)}")
    values = [(*same.values(), *(row[name] for name in names)) for row in rows]
    insert_rows(conn, table, (*same, *names), values)


def insert_rows(conn: Connection, table: Table, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows of values in the order of ``names``. Columns without any value are left to be null."""
    if not rows:
        return
    columns: list[Column[Any]] = []
    values: list[Sequence[Any]] = []
    for name, found in zip(names, zip(*rows, strict=True), strict=True):
        if any(value is not None for value in found):
            columns.append(table.c[name])
            values.append(_prepared(table.c[name], found))
    quote = conn.dialect.identifier_preparer.quote
    insert = f"INSERT INTO {quote(table.name)} ({', '.join(quote(column.name) for column in columns)}) VALUES "  # noqa: S608
    if conn.dialect.name == "sqlite":
        places = ", ".join("?" * len(columns))
        conn.exec_driver_sql(f"{insert}({places})", list(zip(*values, strict=True)))
        return
    written = [_written(column, found) for column, found in zip(columns, values, strict=True)]
    for part in _parts([f"({','.join(row)})" for row in zip(*written, strict=True)]):
        # Without parameters the driver does not interpret a percent sign.
        conn.exec_driver_sql(insert + part, execution_options={"no_parameters": True})


def _prepared(column: Column[Any], values: Sequence[Any]) -> Sequence[Any]:
    prepare = _preparation(column)
    if prepare is None:
        return values
    if isinstance(column.type, JSON):
        return [None if value is None else prepare(value) for value in values]
    return _mapped(values, lambda value: None if value is None else prepare(value))


def _mapped(values: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
    """Apply ``function`` to every value, once for repeated ones (statuses, causes, nodes)."""
    distinct = set(values)
    if len(distinct) > len(values) // 2:
        return [function(value) for value in values]
    known = {value: function(value) for value in distinct}
    return [known[value] for value in values]


def _preparation(column: Column[Any]) -> Callable[[Any], Any] | None:
    """The conversion that SQLAlchemy would apply to values of this column; ``None``: none."""
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
            raise ValueError("a time without a zone cannot be stored")
        value = value.astimezone(UTC)
    return value.replace(tzinfo=None).isoformat(" ", "microseconds")


def _written(column: Column[Any], values: Sequence[Any]) -> list[str]:
    """The values as MySQL and MariaDB read them in a statement."""
    if isinstance(column.type, Integer | Boolean):
        return ["NULL" if value is None else str(int(value)) for value in values]
    return _mapped(values, _quoted)


def _quoted(text: str | bytes | None) -> str:
    """A literal. Every connection of ours has an sql_mode with backslashes, and utf8mb4 hides no quote."""
    if isinstance(text, bytes):
        return f"x'{text.hex()}'"
    return "NULL" if text is None else "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _parts(rows: Sequence[str]) -> Iterator[str]:
    """The rows in pieces that are small enough for one statement."""
    part: list[str] = []
    size = 0
    for row in rows:
        if part and size + len(row) > STATEMENT_CHARACTERS:
            yield ",".join(part)
            part, size = [], 0
        part.append(row)
        size += len(row)
    yield ",".join(part)


def chunks(items: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """``items`` in pieces that fit into one ``IN``."""
    return (items[start : start + size] for start in range(0, len(items), size))


def delete_rows(
    conn: Connection, column: Column[int], index: str, values: Sequence[int], *, of: Mapping[str, int] | None = None
) -> int:
    """Delete the rows whose ``column``, the first one of ``index``, has one of these values; how many there were.

    With ``of`` (a column and its value) only those, and ``column`` is the one behind it in ``index``.
    """
    table, name, gone = column.table.name, column.name, 0
    only = "".join(f"x.{one} = :{one} AND " for one in of or ())
    for chunk in chunks(values):
        hint = f"x FROM {table} AS x FORCE INDEX ({index})" if conn.dialect.name == "mysql" else f"FROM {table} AS x"
        statement = text(f"DELETE {hint} WHERE {only}x.{name} IN :chosen")
        statement = statement.bindparams(bindparam("chosen", expanding=True))
        gone += conn.execute(statement, {"chosen": list(chunk), **(of or {})}).rowcount
    return gone


def put_row(conn: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Give the row of this key these values, or insert it. The caller holds a row, so that nobody else inserts it."""
    here = [table.c[name] == value for name, value in key.items()]
    if not conn.execute(update(table).where(*here).values(**values)).rowcount:
        conn.execute(insert(table).values(**key, **values))
