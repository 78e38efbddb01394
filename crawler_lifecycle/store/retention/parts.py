"""Building blocks of retention: owners of rows, the tables from which rows are removed, and the
rules of a feature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Label, Table, case, select

from crawler_lifecycle.domain.retention import Stays, stays
from crawler_lifecycle.domain.run import OUTCOMES, RunStatus
from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.store.base.bulk import delete_rows
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.runs.tables import OVER_RUNS, task_history
from crawler_lifecycle.store.runs.unit import Unit

#: The key of a row. The second number is 0 if the key has only one column.
Place = tuple[int, int]

PRIMARY = "FORCE INDEX (PRIMARY)"


@dataclass(frozen=True, slots=True, eq=False)
class Owner:
    """A kind of owner of rows. The rows are removable a long time after the owner has ended."""

    table: Table
    state: str = "status"
    """The column with the state of the owner, which is one of ``words``."""
    words: type[StrEnum] = RunStatus
    over: Sequence[str] = tuple(OVER_RUNS)
    """The states after the end of the owner."""
    ended: str = "ended_at"
    """The column with the end time of the owner."""
    key: Column[Any] | None = None
    """The column whose value is part of the subjects of its events; ``None`` if events have a
    column with its id, or if it has no events.
    """
    subject: str = ""
    """The prefix of these subjects."""
    mark: str | None = None
    """The column with the time when its rows were last removed. Such an owner also has the column
    ``pruned_through`` with the last removed event.
    """

    @property
    def id(self) -> Column[int]:
        """The column with the number of the owner."""
        [found] = self.table.primary_key
        return found

    @property
    def facts(self) -> list[Label[Any]]:
        """The columns that determine whether its rows may be removed."""
        c = self.table.c
        ended = c[self.ended].label("its_end")
        return [
            self.id.label("its_id"),
            c[self.state].label("its_state"),
            ended,
            c.updated_at.label("its_change"),
        ]

    def stays(self, row: Row, before: datetime) -> Stays | None:
        """Return the reason why the owner's rows are kept; ``None`` if they may be removed.

        ``row`` has the columns ``facts``.
        """
        return stays(
            row["its_state"], self.words, self.over, (row["its_end"], row["its_change"]), before
        )


#: The kind of an owner, and its id.
Ref = tuple[Owner, int]


@dataclass(frozen=True, slots=True)
class Source:
    """A table from which rows are removed."""

    table: Table
    owner: Owner | None = None
    columns: Sequence[ColumnElement[Any]] = ()
    """The columns that determine, in addition to the owner, whether a row is kept."""
    rule: Callable[[Row, Stays | None, datetime], Stays | None] = lambda row, owner, before: owner
    """Return the reason why a row is kept. The arguments are the row, the reason of its owner, and
    the age limit.
    """
    still: Callable[[datetime], Sequence[ColumnElement[bool]]] | None = None
    """Return conditions that a row must still meet when it is removed. Some rows change while their
    owner is not locked.
    """
    leading: Sequence[ColumnElement[bool]] = ()
    """Conditions that only the first of the rows with the same ``keys`` meets."""
    marks: bool = True
    """True if the owner must record that its rows were removed."""

    @property
    def keys(self) -> tuple[Column[Any], ...]:
        """The first two columns of the primary key.

        Rows with the same values in both are removed together.
        """
        return tuple(self.table.primary_key)[:2]

    def rows(self, conn: Connection, after: Place, limit: int) -> Sequence[Row]:
        """Return the rows of the next chunk. A hint makes the database read this table first."""
        (first, *more) = self.keys
        # With this form of the conditions, every database starts reading at this key.
        behind = (
            [first >= after[0], (first > after[0]) | (more[0] > after[1])]
            if more
            else [first > after[0]]
        )
        query = select(*self.keys, *self.columns).select_from(self.table)
        if self.owner is not None:
            of = self.table.c.get(self.owner.id.name)
            if of is None:  # the rows belong to tasks, which belong to runs
                query = query.outerjoin(task_history, task_history.c.task_id == first)
                of = task_history.c.run_id
            query = query.add_columns(*self.owner.facts).outerjoin(
                self.owner.table, self.owner.id == of
            )
        query = query.where(*behind, *self.leading).order_by(*self.keys).limit(limit)
        return conn.execute(query.with_hint(self.table, PRIMARY, "mysql")).mappings().all()

    def place(self, row: Row) -> Place:
        """Return the key of a row."""
        return row[self.keys[0]], row[self.keys[1]] if len(self.keys) > 1 else 0

    def judge(self, row: Row, before: datetime) -> tuple[Ref | None, Stays | None]:
        """Return the owner of a row, and the reason why the row is kept; ``None`` if it may be
        removed.
        """
        if self.owner is None:
            return None, self.rule(row, None, before)
        ref = None if row["its_id"] is None else (self.owner, row["its_id"])
        return ref, self.rule(row, self.owner.stays(row, before), before)

    def delete(self, conn: Connection, keys: Sequence[Place]) -> int:
        """Delete the rows with these keys. Returns their number."""
        first, *more = self.keys
        if not more:
            return delete_rows(conn, first, "PRIMARY", [key[0] for key in keys])
        below: dict[int, list[int]] = {}
        for upper, lower in keys:
            below.setdefault(upper, []).append(lower)
        return sum(
            delete_rows(conn, more[0], "PRIMARY", rest, of={first.name: id})
            for id, rest in below.items()
        )


@dataclass(frozen=True, slots=True)
class FeatureRetention:
    """The removable rows of a feature."""

    owners: Sequence[Owner] = ()
    """The owners, in the order in which they are locked."""
    sources: Sequence[Source] = ()
    """The tables, in the order in which they are pruned."""
    sinks: tuple[str, ...] = ()
    """Prefixes of sinks whose failed deliveries do not keep an event, because such a sink may fail
    for months.
    """
    check_deletion: Callable[[Unit], None] = lambda unit: None
    """Raise ``NotInThisState`` while the feature may still need the data of the run."""
    delete_texts: Callable[[Unit], None] = lambda unit: None
    """Remove strings from people and crawlers from the rows of the feature about the run."""


def feature_retentions() -> list[FeatureRetention]:
    """Return the rules of all features, in their order.

    The rules are imported inside this function because their modules import this module.
    """
    return [feature.load(feature.retain) for feature in FEATURES if feature.retain]


def known_outcome(outcome: Column[Any]) -> Any:
    """Return the outcome if it is a standard outcome, otherwise null.

    A crawler can report any string as its outcome.
    """
    return case((outcome.in_(OUTCOMES), outcome), else_=None)
