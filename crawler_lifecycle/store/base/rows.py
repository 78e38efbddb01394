"""Rows: values that are made of them, and the one error for a row that cannot be read.

The database refuses what cannot be (``checks.py``). What no constraint can say is found by whoever needs it, reported
with a cure, and never overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Table

from crawler_lifecycle.domain.errors import RowUnreadable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = Mapping[Any, Any]
T = TypeVar("T", bound="DataclassInstance")

_SHOWN_MAX = 80


def made(kind: type[T], row: Row, /, **given: Any) -> T:
    """A value whose fields are the columns of the same names, but those that are given."""
    columns = (name for name in kind.__dataclass_fields__ if name in row and name not in given)
    return kind(**{name: row[name] for name in columns}, **given)


@dataclass(frozen=True, slots=True)
class Fault:
    """One value of a row that cannot be, and what to do about it."""

    column: str
    value: object
    cure: str
    document: bool = False
    """True when it is JSON, in which arguments of crawlers stand: its length is told, and nothing of it."""

    def __str__(self) -> str:
        shown = "NULL" if self.value is None else repr(self.value)
        if self.document and self.value is not None:
            shown = f"a text of {len(shown)} characters"
        return f"{self.column} is {shown[:_SHOWN_MAX]}, which cannot be; {self.cure}"


def unreadable(table: Table, row: Row, fault: Fault) -> RowUnreadable:
    """The error for a fault of a row; the text begins with table and key."""
    return RowUnreadable(f"{where(table, row)}: {fault}")


def where(table: Table, row: Row) -> str:
    """Table and key of a row, and the run that it belongs to."""
    names = [column.name for column in table.primary_key]
    if "run_id" in row and "run_id" not in names:
        names.append("run_id")
    return f"{table.name} {', '.join(f'{name} {row[name]}' for name in names if name in row)}"
