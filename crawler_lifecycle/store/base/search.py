"""Lists of runs, managers and graphs that are searched for a text or sorted by a column.

No index can find part of a text, and few columns have an index for sorting. Both operations
therefore read a window: the newest ``WINDOW`` rows that match the other filters. Searches ignore
case.

A search that finds too few rows in the window continues among all older rows, but only in indexed
columns. If a column has few distinct values, the search compares these values first, and then reads
the rows of each match.
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

#: The maximum number of rows whose columns are searched, and of characters that are read from a
#: JSON document.
WINDOW = 2_000
DOCUMENT_MAX = 8_000
#: The maximum number of distinct values of a column that are compared, and of those whose older
#: rows are listed.
VALUES_MAX = 1_000
FITTING_MAX = 20


@dataclass(slots=True)
class Reach:
    """The extent of a search or a sort."""

    window: int
    whole: bool
    """True if the window contained every row that matches the other filters."""
    fits: int
    """The number of rows in the window that contain the text."""
    left: list[str] = field(default_factory=list)
    """The fields that were searched only in the window: ``arguments``, ``tags`` …"""
    note: str | None = None
    """A sentence about what a search omitted, other than such fields."""


def in_statuses(
    status: ColumnElement[Any], words: Sequence[str], fields: Mapping[str, ColumnElement[Any]]
) -> list[ColumnElement[bool]]:
    """Return a condition for each status that lists show as one of these words.

    A row meets at most one condition, so no list contains it twice. ``fields`` contains the columns
    of ``MANAGER_WORDS``.
    """
    kinds = [status == word for word in dict.fromkeys(words) if word not in MANAGER_WORDS]
    for word, (statuses, name, value) in MANAGER_WORDS.items():
        if word in words:
            kinds += [
                and_(status == own, fields[name] == value) for own in statuses if own not in words
            ]
    return kinds


def united(queries: Sequence[Select[Any]]) -> Subquery:
    """Return the union of these queries as one subquery."""
    if len(queries) == 1:
        return queries[0].subquery("page")
    parts = [query.subquery(f"page_{n}") for n, query in enumerate(queries)]
    return joined(*(select(part) for part in parts)).subquery("page")


def newest(
    key: Column[int], queries: Sequence[Select[Any]], limit: int, *columns: Any
) -> Select[Any]:
    """Return a query for the rows with the ids that these queries find, newest first. The query
    reads ``columns``; if there are none, all columns.
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
    """Return the distinct ids that these queries find, the largest first."""
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
    """Return whether a row contains a text in a column of ``names``, or in the values that a
    document's function returns.

    A document is decoded only if its JSON contains the text. After a manual edit, the function may
    find no values.
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
    """Return the ids of the rows that contain the text, in the order ``sort``.

    ``page`` is the first position and the number of rows.

    ``older`` returns matching ids below a given id, and adds the fields that it did not search to
    the list that is passed to it. ``left`` contains the fields that ``older`` never searches.
    """
    offset, limit = page
    rows = window if search is None else [row for row in window if fits(row, search.casefold())]
    reach = Reach(WINDOW, len(window) < WINDOW, len(rows))
    if sort is not None:
        return [row[key] for row in in_order(rows, sort, now)][offset : offset + limit], reach
    ids = [row[key] for row in rows[:limit]]
    if search is not None and not reach.whole:
        reach.left = list(left)
        if (more := limit - len(ids)) > 0:
            ids += older(window[-1][key], search, more, reach.left)
    return ids, reach


def in_order(rows: Sequence[Row], sort: str, now: datetime) -> list[Row]:
    """Return the rows in the order ``sort``.

    Rows without a value come last. Among rows with equal values, the newest comes first.
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
    """Yield the ranges of numbers below ``below`` whose digits start with this number."""
    low = whole(search) or 0
    many = 1
    while 0 < low < below and not search.startswith("0"):
        yield low, min(low + many - 1, below)
        low, many = low * 10, many * 10


def distinct(conn: Connection, column: Column[Any], most: int) -> list[str]:
    """Return distinct values of a column, at most ``most``."""
    own = seen(column.table, leads=True)
    # If the project is one of the columns, MariaDB and MySQL skip from value to value in the index
    # of both columns.
    columns = [column.table.c.project, column] if own else [column]
    values = select(*columns).distinct().where(column.is_not(None), *own).limit(most)
    return [row[-1] for row in conn.execute(values)]


def fitting(values: Sequence[str], search: str, plural: str, left: list[str]) -> list[str]:
    """Return the values that contain the text. If the list is incomplete, add the field to
    ``left``.
    """
    those = [value for value in values if search.casefold() in value.casefold()]
    if len(values) > VALUES_MAX or len(those) > FITTING_MAX:
        left.append(f"some {plural}")
    return those[:FITTING_MAX]


@dataclass(frozen=True, slots=True)
class ListColumns:
    """The columns of managers or graphs that are read for searching and for sorting."""

    key: Column[int]
    name: Column[Any]
    texts: Sequence[str]
    """The columns that are searched. If the key is one of these columns, older rows are also found
    by a prefix of the key.
    """
    documents: Mapping[str, Callable[[Any], Iterable[Any]]]
    """The JSON columns that are searched, each with a function that returns its searchable
    values.
    """
    sorts: Mapping[str, Sequence[ColumnElement[Any]]]
    """The value that is read for each sort order, by the name of the order."""
    left: Sequence[str]
    """The fields that are not searched in older rows, as shown to people."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of managers or graphs, newest first.

    Each of ``kinds`` has its own query, so that an index provides the order.
    """

    of: ListColumns
    given: str | None
    """The required name of the rows, if the list is limited to one name."""
    kinds: Sequence[ColumnElement[bool]] = ()
    before: int | None = None

    def page(self, limit: int, *more: ColumnElement[bool]) -> list[Select[Any]]:
        """Return the queries for the ids of the page: a single query, or one for each kind."""
        key = self.of.key
        conditions = [*more, *([] if self.before is None else [key < self.before])]
        conditions += [
            *wanted((self.of.name, self.given)),
            *seen(key.table, leads=self.given is None),
        ]
        query = select(key).where(*conditions).order_by(key.desc()).limit(limit)
        return [query.where(kind) for kind in self.kinds] or [query]

    def rows(self, limit: int, *columns: Any) -> Select[Any]:
        """Return a query for the newest rows. The query reads these columns; if there are none, all
        columns.
        """
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

        ``page`` is the first position and the number of rows.
        """
        of = self.of
        table = self.of.key.table.c
        columns: dict[str, Any] = {of.key.name: of.key}
        if search is not None:
            columns |= {name: table[name] for name in of.texts} | {
                name: document(table[name]) for name in of.documents
            }
        columns |= {
            column.name: column for column in of.sorts.get((sort or "").removeprefix("-"), ())
        }
        window = conn.execute(self.rows(WINDOW, *columns.values())).mappings().all()
        fits = partial(has, names=of.texts, documents=of.documents)
        older = partial(self._older, conn)
        return found(window, of.key.name, search, sort, page, now, fits, older, of.left)

    def _older(
        self, conn: Connection, before: int, search: str, limit: int, left: list[str]
    ) -> Sequence[int]:
        """Return the ids of rows whose name contains the text, or whose number starts with the
        text.
        """
        older = replace(self, before=before)
        queries = list[Select[Any]]()
        of = self.of
        if projects.only() is None:
            values = distinct(conn, of.name, VALUES_MAX + 1) if self.given is None else [self.given]
            for value in fitting(values, search, "names", left):
                queries += replace(older, given=value).page(limit)
        else:  # the names have no index by project; names from other projects must stay hidden
            left.append("names")
        for low, high in numbers(search, before) if of.key.name in of.texts else ():
            queries += older.page(limit, of.key.between(low, high))
        return ids_among(conn, of.key, queries, limit)
