"""Conversion of rows to values, and the error for an unreadable row.

The database refuses impossible values (``checks.py``). Other faults are found when a row is read.
Such faults are reported with a fix, and the row stays unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, FromClause, Table, func, update

from crawler_lifecycle.domain import projects
from crawler_lifecycle.domain.errors import DuplicateRequest, RowUnreadable
from crawler_lifecycle.store.columns import json_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = Mapping[Any, Any]
R = TypeVar("R")
T = TypeVar("T", bound="DataclassInstance")

_SHOWN_MAX = 80


def made(kind: type[T], row: Row, /, **given: Any) -> T:
    """Return an instance of this class.

    A field gets its value from ``given`` or, otherwise, from the row's column with the same name.
    """
    columns = (name for name in kind.__dataclass_fields__ if name in row and name not in given)
    return kind(**{name: row[name] for name in columns}, **given)


def wanted(*pairs: tuple[ColumnElement[Any], Any]) -> list[ColumnElement[bool]]:
    """Return one condition for each pair of a column and a value.

    Pairs with the value ``None`` are skipped.
    """
    return [column == value for column, value in pairs if value is not None]


def seen(table: FromClause, *, leads: bool = False) -> list[ColumnElement[bool]]:
    """Return the condition that a row belongs to the caller's project; no condition for a caller
    with access to all projects.

    If ``leads`` is true, the database can use an index whose first column is the project. Otherwise
    such an index is excluded, because all rows may belong to one project, and the other conditions
    have a better index.
    """
    project = projects.only()
    if project is None:
        return []
    column = table.c.project if leads else func.coalesce(table.c.project, "")
    return [column == project]


def check_free(there: str, wanted: str | None, what: str) -> None:
    """Raise ``DuplicateRequest`` if a name belongs to a row of another project.

    The error text does not reveal the other project. ``there`` is the project of the row.
    ``wanted`` is the project that the caller requests; ``None`` for the caller's own project or any
    project.
    """
    if there != projects.chosen(wanted, there):
        where = "" if projects.only() is not None else f" in project {there!r}"
        raise DuplicateRequest(f"{what} is already taken{where}; choose another one")


def change_row(conn: Connection, table: Table, row: Row, values: Mapping[str, Any]) -> None:
    """Change columns of the row with the number of ``row``."""
    [key] = table.primary_key
    conn.execute(update(table).where(key == row[key.name]).values(**values))


@dataclass(frozen=True, slots=True)
class Fault:
    """An invalid value of a row, and how to fix it."""

    column: str
    value: object
    fix: str
    document: bool = False
    """True if the value is JSON. The text then shows only its length, because JSON may contain
    arguments of crawlers.
    """

    def __str__(self) -> str:
        shown = "NULL" if self.value is None else repr(self.value)
        if self.document and self.value is not None:
            shown = f"a text of {len(shown)} characters"
        return f"{self.column} is {shown[:_SHOWN_MAX]}, which is not allowed; {self.fix}"


def unreadable(table: Table, row: Row, fault: Fault) -> RowUnreadable:
    """Return the error for a fault in a row. The error text starts with the table and the key."""
    return RowUnreadable(f"{where(table, row)}: {fault}")


def where(table: Table, row: Row) -> str:
    """Return a phrase with the table, the key and the run of a row."""
    names = [column.name for column in table.primary_key]
    if "run_id" in row and "run_id" not in names:
        names.append("run_id")
    return f"{table.name} {', '.join(f'{name} {row[name]}' for name in names if name in row)}"


def validated(
    read: Callable[[Any], R], table: Table, row: Row, column: str, what: str, fix: str
) -> R:
    """Convert the JSON value of a row with ``read`` and return the result.

    ``what`` names the value in the error text. Raises ``RowUnreadable`` with the first fault and
    its fix.
    """
    try:
        return read(row[column])
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise unreadable(
            table,
            row,
            Fault(
                column,
                json_text(row[column]),
                f"{field} of the {what}: {first['msg'].removeprefix('Value error, ')}; {fix}",
                document=True,
            ),
        ) from None


# --- schedules and webhooks, whose rows are kept after a deletion ---------------------------------


def definition_of(table: Table, row: Row, read: Callable[[Mapping[str, Any]], R]) -> R:
    """Convert the definition in a row with ``read`` and return the result. Raises
    ``RowUnreadable``.
    """
    try:
        return read(row["definition"])
    except ValueError as error:
        raise unreadable(
            table,
            row,
            Fault(
                "definition",
                json.dumps(row["definition"]),
                f"{error}; set the definition of the {table.name} again (crawlctl {table.name} "
                "update)",
                True,
            ),
        ) from None
