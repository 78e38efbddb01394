"""Rows that people name and define, and that stay when they are deleted: schedules and webhooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, select

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import RunNotFound, StoreUnavailable
from crawler_lifecycle.store.engine import Database, KeyTaken

from .rows import Fault, Row, unreadable

T = TypeVar("T")
_ROUNDS = 3


def definition_of(table: Table, row: Row, read: Callable[[Mapping[str, Any]], T]) -> T:
    """The definition of a row, as ``read`` has it. Raises ``RowUnreadable``."""
    try:
        return read(row["definition"])
    except ValueError as error:
        cure = f"{error}; give the {table.name} its definition anew (crawlctl {table.name} update)"
        raise unreadable(table, row, Fault("definition", json.dumps(row["definition"]), cure, True)) from None


def put_row(database: Database, table: Table, name: str, put: Callable[[Connection], T]) -> T:
    """Call ``put``, which makes the row or changes it, and return its answer."""
    for _ in range(_ROUNDS):
        try:
            with database.writing() as conn:
                return put(conn)
        except KeyTaken:  # another one made it at the same time: it is there now
            continue
    raise StoreUnavailable(f"The {table.name} {name!r} was made and removed at the same time")


def locked_row(conn: Connection, table: Table, name: str, *, deleted: bool = False) -> dict[Any, Any] | None:
    """The row of this name, locked; ``deleted``: also one that was deleted."""
    row = conn.execute(select(table).where(table.c.name == name).with_for_update()).mappings().one_or_none()
    if row is None or (row["deleted_at"] is not None and not deleted):
        return None
    if row["name"] != name:
        raise refusal("name", name, "leave the spaces at its end out")
    return dict(row)


def needed_row(conn: Connection, table: Table, name: str) -> dict[Any, Any]:
    """The same of one that must be there. Raises ``RunNotFound``."""
    row = locked_row(conn, table, name)
    if row is None:
        cure = f"the list of {table.name}s shows what there is (crawlctl {table.name} list)"
        raise RunNotFound(f"{table.name} {name!r} does not exist; {cure}")
    return row
