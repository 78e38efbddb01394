"""Lists by a part of a text, and in another order than that of the number: of runs, managers and
graphs.

No index finds a part of a text, and few columns have an index that gives their order. So both read
a window: the newest rows that meet the other filters, and no more of them than ``WINDOW``. Upper
and lower case are the same.

A search that finds too few there continues among all older rows, but only by what has an index.
Columns with few different values are compared first, and then the rows of each fitting value are
read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    Subquery,
    Text,
    and_,
    case,
    func,
    select,
    type_coerce,
)
from sqlalchemy import union_all as joined

from crawler_lifecycle.domain import projects
from crawler_lifecycle.domain.bounds import whole
from crawler_lifecycle.domain.status_words import MANAGER_WORDS
from crawler_lifecycle.store.columns import json_text

from .rows import Row, seen, wanted

#: The most rows whose texts are read, and the most characters of a JSON document that are read for
#: it.
WINDOW = 2_000
DOCUMENT_MAX = 8_000
#: The most different values of a column that are compared, and the most of them whose older rows
#: are listed.
VALUES_MAX = 1_000
FITTING_MAX = 20


@dataclass(slots=True)
class Reach:
    """The reach of a search or an order."""

    window: int
    whole: bool
    """True if the window contained every row that meets the other filters."""
    fits: int
    """The number of rows in the window that contain the text."""
    left: list[str] = field(default_factory=list)
    """What was searched only in the window: ``arguments``, ``tags`` …"""


def in_statuses(
    status: ColumnElement[Any], words: Sequence[str], fields: Mapping[str, ColumnElement[Any]]
) -> list[ColumnElement[bool]]:
    """Return a condition for each status that lists show by one of these words.

    A row meets only one of them, so that no list has it twice. ``fields``: the columns of
    ``MANAGER_WORDS``.
    """
    kinds = [status == word for word in dict.fromkeys(words) if word not in MANAGER_WORDS]
    for word, (statuses, name, value) in MANAGER_WORDS.items():
        if word in words:
            kinds += [
                and_(status == own, fields[name] == value) for own in statuses if own not in words
            ]
    return kinds


def united(queries: Sequence[Select[Any]]) -> Subquery:
    """Return one subquery for all of these."""
    if len(queries) == 1:
        return queries[0].subquery("page")
    parts = [query.subquery(f"page_{n}") for n, query in enumerate(queries)]
    return joined(*(select(part) for part in parts)).subquery("page")


def newest(
    key: Column[int], queries: Sequence[Select[Any]], limit: int, *columns: Any
) -> Select[Any]:
    """Return a query of the rows with the ids of these queries, the newest first: these columns of
    them, or all.
    """
    page = united(queries)
    query = select(*(columns or [key.table])).join(page, page.c[key.name] == key)
    return query.order_by(key.desc()).limit(limit)


def counted(conn: Connection, queries: Sequence[Select[Any]], most: int) -> int:
    """Return the number of rows that these queries find, at most ``most``."""
    return min(conn.execute(select(func.count()).select_from(united(queries))).scalar_one(), most)


def ids_among(
    conn: Connection, key: Column[int], queries: Sequence[Select[Any]], limit: int
) -> Sequence[int]:
    """Return the ids that these queries find, each once, the largest first."""
    if not queries:
        return ()
    among = united(queries).c[key.name]
    return (
        conn.execute(select(among).distinct().order_by(among.desc()).limit(limit)).scalars().all()
    )


def document(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a JSON column as text for ``has``; null for a large document."""
    return type_coerce(case((func.length(column) <= DOCUMENT_MAX, column)), Text).label(column.key)


def has(
    row: Row,
    text: str,
    names: Iterable[str],
    documents: Mapping[str, Callable[[Any], Iterable[Any]]],
) -> bool:
    """Return whether a row contains a text: in a column of ``names``, or in what a document's
    function returns.

    A document is decoded only if its written form contains the text. One that somebody edited may
    have none.
    """
    if any(text in str(row[name]).casefold() for name in names if row[name]):
        return True
    written = json_text(text)[1:-1]
    return any(
        written in (row[name] or "").casefold() and _said(row[name], text, of)
        for name, of in documents.items()
    )


def _said(stored: str, text: str, of: Callable[[Any], Iterable[Any]]) -> bool:
    try:
        return text in "\n".join(map(str, of(json.loads(stored)))).casefold()
    except (ValueError, AttributeError, TypeError):
        return False


def found(
    window: Sequence[Row],
    key: str,
    search: str | None,
    sort: str | None,
    page: tuple[int, int],
    now: datetime,
    fits: Callable[[Row, str], bool],
    older: Callable[[int, str, int, list[str]], Sequence[int]],
    left: Sequence[str],
) -> tuple[list[int], Reach]:
    """Return the ids of the rows that contain the text, in this order.

    ``page``: the first position and the number.

    ``older`` returns ids below one that contain the text, and adds to the list what it did not
    search. ``left`` is what it never searches.
    """
    offset, limit = page
    rows = window if search is None else [row for row in window if fits(row, search.casefold())]
    reach = Reach(WINDOW, len(window) < WINDOW, len(rows))
    if sort is not None:
        return [row[key] for row in _in_order(rows, sort, now)][offset : offset + limit], reach
    ids = [row[key] for row in rows[:limit]]
    if search is not None and not reach.whole:
        reach.left = list(left)
        if (more := limit - len(ids)) > 0:
            ids += older(window[-1][key], search, more, reach.left)
    return ids, reach


def _in_order(rows: Sequence[Row], sort: str, now: datetime) -> list[Row]:
    """Return the rows in this order.

    Those without a value are last, and among equal ones the newest is first.
    """
    by = sort.removeprefix("-")

    def value(row: Row) -> Any:
        return (
            row["started_at"] and (row["ended_at"] or now) - row["started_at"]
            if by == "took"
            else row[by]
        )

    known = [row for row in rows if value(row) is not None]
    known.sort(key=value, reverse=sort.startswith("-"))
    return known + [row for row in rows if value(row) is None]


def numbers(search: str, below: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the numbers below ``below`` that begin with this one."""
    low = whole(search) or 0
    many = 1
    while 0 < low < below and not search.startswith("0"):
        yield low, min(low + many - 1, below)
        low, many = low * 10, many * 10


def distinct(conn: Connection, column: Column[Any], most: int) -> list[str]:
    """Return different values of a column, at most ``most``."""
    own = seen(column.table, leads=True)
    # With the project among the columns, MariaDB and MySQL jump in its index from one value to the
    # next.
    columns = [column.table.c.project, column] if own else [column]
    values = select(*columns).distinct().where(column.is_not(None), *own).limit(most)
    return [row[-1] for row in conn.execute(values)]


def fitting(values: Sequence[str], search: str, plural: str, left: list[str]) -> list[str]:
    """Return those of the values that contain the text, and add to ``left`` if they are not all."""
    those = [value for value in values if search.casefold() in value.casefold()]
    if len(values) > VALUES_MAX or len(those) > FITTING_MAX:
        left.append(f"some {plural}")
    return those[:FITTING_MAX]


@dataclass(frozen=True, slots=True)
class ListColumns:
    """The columns that are read of managers or graphs for a search, and for each order."""

    key: Column[int]
    name: Column[Any]
    texts: Sequence[str]
    """Columns that are searched. If the key is among them, older rows are also found by the
    beginning of it.
    """
    documents: Mapping[str, Callable[[Any], Iterable[Any]]]
    """JSON columns that are searched: what each contains."""
    sorts: Mapping[str, Sequence[ColumnElement[Any]]]
    """What is read for an order, under its name."""
    left: Sequence[str]
    """What is not searched in older rows, for people."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of managers or graphs, the newest first.

    Each of ``kinds`` has its own query, so that an index gives the order."""

    of: ListColumns
    given: str | None
    """The name that the rows must have, if only those are wanted."""
    kinds: Sequence[ColumnElement[bool]] = ()
    before: int | None = None

    def page(self, limit: int, *more: ColumnElement[bool]) -> list[Select[Any]]:
        """Return queries of the ids of the page: one, or one for each kind."""
        key = self.of.key
        conditions = [*more, *([] if self.before is None else [key < self.before])]
        conditions += [
            *wanted((self.of.name, self.given)),
            *seen(key.table, leads=self.given is None),
        ]
        query = select(key).where(*conditions).order_by(key.desc()).limit(limit)
        return [query.where(kind) for kind in self.kinds] or [query]

    def rows(self, limit: int, *columns: Any) -> Select[Any]:
        """Return a query of the newest rows: these columns of them, or all."""
        return newest(self.of.key, self.page(limit), limit, *columns)

    def search(
        self,
        conn: Connection,
        search: str | None,
        sort: str | None,
        page: tuple[int, int],
        now: datetime,
    ) -> tuple[list[int], Reach]:
        """Return the ids of the rows that contain the text, in this order.

        ``page``: the first position and the number.
        """
        of = self.of
        table = self.of.key.table.c
        columns: dict[str, Any] = {of.key.name: of.key}
        if search is not None:
            columns |= {name: table[name] for name in of.texts} | {
                name: document(table[name]) for name in of.documents
            }
        columns |= {one.name: one for one in of.sorts.get((sort or "").removeprefix("-"), ())}
        window = conn.execute(self.rows(WINDOW, *columns.values())).mappings().all()
        fits = partial(has, names=of.texts, documents=of.documents)
        older = partial(self._older, conn)
        return found(window, of.key.name, search, sort, page, now, fits, older, of.left)

    def _older(
        self, conn: Connection, before: int, search: str, limit: int, left: list[str]
    ) -> Sequence[int]:
        """Return the ids of rows that have the text in their name, or that begin with this
        number.
        """
        older = replace(self, before=before)
        queries = list[Select[Any]]()
        of = self.of
        if projects.only() is None:
            values = distinct(conn, of.name, VALUES_MAX + 1) if self.given is None else [self.given]
            for value in fitting(values, search, "names", left):
                queries += replace(older, given=value).page(limit)
        else:  # names have no index of one project, and what other projects have must not show
            left.append("names")
        for low, high in numbers(search, before) if of.key.name in of.texts else ():
            queries += older.page(limit, of.key.between(low, high))
        return ids_among(conn, of.key, queries, limit)
