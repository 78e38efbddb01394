"""The parts of retention: owners of rows, the tables from which rows are removed, and the rules of
a feature.
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

#: The key of a row. The second number is 0 when the key has only one column.
Place = tuple[int, int]

PRIMARY = "FORCE INDEX (PRIMARY)"


@dataclass(frozen=True, slots=True, eq=False)
class Owner:
    """A kind of owner of rows. The rows may be removed long after the end of their owner."""

    table: Table
    state: str = "status"
    """The column with its state, one of ``words``."""
    words: type[StrEnum] = RunStatus
    over: Sequence[str] = tuple(OVER_RUNS)
    """The states after its end."""
    ended: str = "ended_at"
    """The column with the time of its end."""
    key: Column[Any] | None = None
    """The column whose value is in the subjects of its events; ``None``: events have a column with
    its id, or it has no events."""
    subject: str = ""
    """The prefix of these subjects."""
    mark: str | None = None
    """The column with the time when its rows were last removed. Such an owner also has the column
    ``pruned_through`` for the last removed event."""

    @property
    def id(self) -> Column[int]:
        """The column with its number."""
        [found] = self.table.primary_key
        return found

    @property
    def facts(self) -> list[Label[Any]]:
        """The columns that decide whether its rows may be removed."""
        c = self.table.c
        ended = c[self.ended].label("its_end")
        return [
            self.id.label("its_id"),
            c[self.state].label("its_state"),
            ended,
            c.updated_at.label("its_change"),
        ]

    def stays(self, row: Row, before: datetime) -> Stays | None:
        """Return the reason why its rows stay; ``None``: they may be removed.

        ``row`` has the columns ``facts``.
        """
        return stays(
            row["its_state"], self.words, self.over, (row["its_end"], row["its_change"]), before
        )


#: An owner, and its id.
Ref = tuple[Owner, int]


@dataclass(frozen=True, slots=True)
class Source:
    """A table from which rows are removed."""

    table: Table
    owner: Owner | None = None
    columns: Sequence[ColumnElement[Any]] = ()
    """The columns that decide about a row in addition to its owner."""
    rule: Callable[[Row, Stays | None, datetime], Stays | None] = lambda row, owner, before: owner
    """Returns the reason why a row stays. It gets the row, the reason of its owner, and the age
    limit.
    """
    still: Callable[[datetime], Sequence[ColumnElement[bool]]] | None = None
    """Returns conditions that a row must still meet at its removal. Some rows change while their
    owner is not locked."""
    leading: Sequence[ColumnElement[bool]] = ()
    """Conditions that only the first one meets of the rows that have the same ``keys``."""
    marks: bool = True
    """True when the owner must record that its rows were removed."""

    @property
    def keys(self) -> tuple[Column[Any], ...]:
        """The first two columns of the primary key.

        Rows that have both in common are removed together.
        """
        return tuple(self.table.primary_key)[:2]

    def rows(self, conn: Connection, after: Place, limit: int) -> Sequence[Row]:
        """Return the rows of the next chunk. A hint makes the database read this table first."""
        (first, *more) = self.keys
        # With conditions in this form every database starts to read at this key.
        behind = (
            [first >= after[0], (first > after[0]) | (more[0] > after[1])]
            if more
            else [first > after[0]]
        )
        query = select(*self.keys, *self.columns).select_from(self.table)
        if self.owner is not None:
            of = self.table.c.get(self.owner.id.name)
            if of is None:  # the rows belong to tasks, and the tasks to runs
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
        """Return the owner of a row, and the reason why the row stays; ``None``: it may be
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
        for one, two in keys:
            below.setdefault(one, []).append(two)
        return sum(
            delete_rows(conn, more[0], "PRIMARY", rest, of={first.name: id})
            for id, rest in below.items()
        )


@dataclass(frozen=True, slots=True)
class FeatureRetention:
    """The rows of one feature that are removed."""

    owners: Sequence[Owner] = ()
    """In the order in which they are locked."""
    sources: Sequence[Source] = ()
    """In the order in which they are pruned."""
    sinks: tuple[str, ...] = ()
    """Prefixes of sinks whose failed deliveries keep no event, because such a sink may fail for
    months.
    """
    check_deletion: Callable[[Unit], None] = lambda unit: None
    """Raises ``NotInThisState`` while the feature may still need the data of the run."""
    delete_texts: Callable[[Unit], None] = lambda unit: None
    """Removes texts of persons and of crawlers from the rows of the feature about the run."""


def feature_retentions() -> list[FeatureRetention]:
    """Return the rules of all features, in the order of the features.

    Their modules import this one.
    """
    return [feature.load(feature.retain) for feature in FEATURES if feature.retain]


def known_outcome(outcome: Column[Any]) -> Any:
    """Return the outcome if it is a standard one, else null.

    A crawler may report any text as its outcome.
    """
    return case((outcome.in_(OUTCOMES), outcome), else_=None)
