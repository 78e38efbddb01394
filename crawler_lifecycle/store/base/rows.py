"""Rows: the values that are made of them, and the one error for an unreadable row.

The database refuses impossible values (``checks.py``). Other errors are found when a row is read, reported with a cure,
and never overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, Table, select

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import RowUnreadable, RunNotFound
from crawler_lifecycle.store.columns import json_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = Mapping[Any, Any]
R = TypeVar("R")
T = TypeVar("T", bound="DataclassInstance")

_SHOWN_MAX = 80


def made(kind: type[T], row: Row, /, **given: Any) -> T:
    """A value whose fields are the columns of the same names, except the given fields."""
    columns = (name for name in kind.__dataclass_fields__ if name in row and name not in given)
    return kind(**{name: row[name] for name in columns}, **given)


def wanted(*pairs: tuple[ColumnElement[Any], Any]) -> list[ColumnElement[bool]]:
    """Filters: each column with its value; a filter without a value is left out."""
    return [column == value for column, value in pairs if value is not None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One impossible value of a row, and its cure."""

    column: str
    value: object
    cure: str
    document: bool = False
    """True when it is JSON, which may hold arguments of crawlers: only its length is shown."""

    def __str__(self) -> str:
        shown = "NULL" if self.value is None else repr(self.value)
        if self.document and self.value is not None:
            shown = f"a text of {len(shown)} characters"
        return f"{self.column} is {shown[:_SHOWN_MAX]}, which cannot be; {self.cure}"


def unreadable(table: Table, row: Row, fault: Fault) -> RowUnreadable:
    """The error for a defect of a row; the text begins with table and key."""
    return RowUnreadable(f"{where(table, row)}: {fault}")


def where(table: Table, row: Row) -> str:
    """Table and key of a row, and the run that it belongs to."""
    names = [column.name for column in table.primary_key]
    if "run_id" in row and "run_id" not in names:
        names.append("run_id")
    return f"{table.name} {', '.join(f'{name} {row[name]}' for name in names if name in row)}"


def validated(read: Callable[[Any], R], table: Table, row: Row, column: str, what: str, cure: str) -> R:
    """A document of a row, as ``read`` has it. Raises ``RowUnreadable``, with the first thing that is wrong in it."""
    try:
        return read(row[column])
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole"
        cure = f"{field} of the {what}: {first['msg'].removeprefix('Value error, ')}; {cure}"
        raise unreadable(table, row, Fault(column, json_text(row[column]), cure, document=True)) from None


# --- rows that people name and define, and that stay when they are deleted: schedules and webhooks -----------------


def definition_of(table: Table, row: Row, read: Callable[[Mapping[str, Any]], R]) -> R:
    """The definition of a row, as ``read`` has it. Raises ``RowUnreadable``."""
    try:
        return read(row["definition"])
    except ValueError as error:
        cure = f"{error}; give the {table.name} its definition anew (crawlctl {table.name} update)"
        raise unreadable(table, row, Fault("definition", json.dumps(row["definition"]), cure, True)) from None


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
