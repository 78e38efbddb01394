"""What a database plans to do for a statement, and which parts of that would not stay fast."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

PAGE = 1000
"""Rows that may be scanned or sorted: what a page of a list reads, and no more."""
MANY = 10**9
"""Rows where nobody knows how many."""
OFTEN = 10
"""Times that a statement of one method is explained: in a loop it is sent a thousand times, and
planned alike.
"""
SMALL = ("outbox_counter", "pool_gate", "alembic_version")
"""Tables of one row."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A statement that reads or sorts more than a page, and where it does so."""

    kind: str
    table: str
    rows: int
    statement: str


@dataclass
class Plans:
    """The plans of everything that was sent while ``watching``; ``doing`` names the sender."""

    database: str
    faults: dict[tuple[str, str, str], Fault] = field(default_factory=dict)
    indexes: set[str] = field(default_factory=set)
    """Those that a statement was answered out of; their names are unique."""
    statements: set[str] = field(default_factory=set)
    explained: Counter[tuple[str, str]] = field(default_factory=Counter)
    doing: str = ""

    @contextmanager
    def watching(self, engine: sa.Engine) -> Iterator[None]:
        """Explain every statement just before it is sent, in its own transaction and with its own
        parameters, at most ``OFTEN`` times for each method.
        """
        explain = _of_sqlite if engine.dialect.name == "sqlite" else _of_mysql

        def note(
            conn: sa.Connection,
            _cursor: object,
            statement: str,
            parameters: Any,
            _: object,
            many: bool,
        ) -> None:
            if statement.startswith(("BEGIN", "PRAGMA", "DESCRIBE")):
                return
            self.statements.add(statement)
            self.explained[self.doing, statement] += 1
            if self.explained[self.doing, statement] > OFTEN:
                return
            faults, indexes = explain(conn, statement, parameters[0] if many else parameters)
            self.indexes |= indexes
            for fault in faults:
                if fault.table not in SMALL:
                    self.faults.setdefault((self.doing, fault.kind, fault.table), fault)

        sa.event.listen(engine, "before_cursor_execute", note)
        try:
            yield
        finally:
            sa.event.remove(engine, "before_cursor_execute", note)


def _of_mysql(conn: sa.Connection, statement: str, parameters: Any) -> tuple[list[Fault], set[str]]:
    with conn.connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN FORMAT=JSON {statement}", parameters)
        text = cursor.fetchone()[0]
    # MariaDB does not escape the quotes of a path into JSON.
    text = re.sub(r'\$\."(\w+)"', r"$.\1", text)
    faults = [
        Fault(kind, table, rows, statement)
        for kind, table, rows in _walk(json.loads(text))
        if rows > PAGE
    ]
    return faults, set(_KEY.findall(text))


_KEY = re.compile(r'"key": "(\w+)"')


_ROWS = "rows_examined_per_scan"
"""What MySQL calls the rows that MariaDB calls ``rows``."""


def _walk(node: object, around: str | None = None) -> Iterator[tuple[str, str, int]]:
    """Return full scans with their expected rows, and sorts and temporary tables with the rows in
    them.
    """
    if isinstance(node, list):
        for one in node:
            yield from _walk(one, around)
    if not isinstance(node, dict):
        return
    # MySQL lists this next to the tables, MariaDB puts them inside. A subquery's own result does
    # not count, because it ends with its page.
    if "query_block" not in node:
        around = (
            "temporary"
            if node.get("using_temporary_table")
            else "sort"
            if node.get("using_filesort")
            else around
        )
    for name, value in node.items():
        if name == "table" and isinstance(value, dict):
            table, rows = (
                str(value.get("table_name", "?")),
                int(value.get(_ROWS) or value.get("rows") or 0),
            )
            if value.get("access_type") in ("ALL", "index"):
                yield "scan", table, rows
            if around is not None:
                yield around, table, rows
            yield from _walk({k: v for k, v in value.items() if isinstance(v, dict | list)})
        elif name in ("filesort", "read_sorted_file", "temporary_table"):
            # MariaDB answers an ORDER BY of a GROUP BY from the temporary table; the sort is the
            # smaller part.
            yield from _walk(value, "temporary" if name == "temporary_table" else "sort")
        else:
            yield from _walk(value, around)


def _of_sqlite(
    conn: sa.Connection, statement: str, parameters: Any
) -> tuple[list[Fault], set[str]]:
    """SQLite gives no numbers, so every scan counts as one of very many rows; sorts are checked on
    the others.
    """
    if statement.startswith("INSERT") and "SELECT" not in statement:
        return [], set()
    cursor = conn.connection.cursor()
    try:
        told = [
            row[3]
            for row in cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
        ]
    finally:
        cursor.close()
    # Names that begin with "page" belong to subqueries that end with their page, and CONSTANT is
    # one row without a table.
    scanned = [
        words[1]
        for words in map(str.split, told)
        if words[0] == "SCAN" and not words[1].startswith(("page", "CONSTANT"))
    ]
    indexes = {name for line in told for name in re.findall(r"INDEX (\w+)", line)}
    return [Fault("scan", table, MANY, statement) for table in scanned], indexes
