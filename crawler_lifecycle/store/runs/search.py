"""Lists of runs that are searched for words or sorted by a column.

A search first compares the newest runs that meet the other filters, because a full-text index of
MySQL and MariaDB finds all rows with a frequent word before it returns the first. Older runs are
found by the index, in chunks, the newest first. The index is asked only for the word that is the
rarest among the newest runs, because SQLite too reads all rows of a frequent word.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select, table
from sqlalchemy import column as sql_column
from sqlalchemy.dialects.mysql import match

from crawler_lifecycle.domain.search_words import search_words
from crawler_lifecycle.store.base import search as base
from crawler_lifecycle.store.base.rows import Row

from .lists import RunFilters, newest_runs, page_of, times_of
from .search_documents import first_filled
from .tables import run_history, run_search, run_tag

#: The columns by which runs can be sorted.
SORTS = (
    "crawler",
    "status",
    "outcome",
    "verified_at",
    "pages",
    "items",
    "errors",
    "started_at",
    "took",
    "trigger",
)
#: The columns whose distinct values are listed, by the name of their filter.
VALUES = {
    "crawler": run_history.c.crawler,
    "flow_id": run_history.c.flow_id,
    "tag": run_tag.c.tag,
    "outcome": run_history.c.outcome,
    "pool": run_history.c.pool,
}
#: The number of ids that one statement reads from the index, and the seconds after which a search
#: with rare filters ends.
_CHUNK = 2_000
SEARCH_S = 2.0


def found(
    conn: Connection,
    filters: RunFilters,
    search: str | None,
    sort: str | None,
    page: tuple[int, int],
    now: datetime,
) -> tuple[list[int], base.Reach]:
    """Return the ids of the runs with all words of the text, in the order ``sort``.

    Each word of the text may be the beginning of a word of the run. ``page`` is the first position
    and the number of runs.
    """
    offset, limit = page
    if search is None:
        rows = newest_runs(conn, filters, base.WINDOW, *_sorted_by(sort))
        reach = base.Reach(base.WINDOW, len(rows) < base.WINDOW, len(rows))
    else:
        ids, reach = _with_words(conn, filters, search, limit if sort is None else base.WINDOW)
        if sort is None:
            return ids, reach
        chosen = select(*_sorted_by(sort)).where(run_history.c.run_id.in_(ids))
        rows = conn.execute(chosen.order_by(run_history.c.run_id.desc())).mappings().all()
    ordered = base.in_order(rows, sort or "", now)
    return [row["run_id"] for row in ordered][offset : offset + limit], reach


def _sorted_by(sort: str | None) -> list[ColumnElement[Any]]:
    by = (sort or "run_id").removeprefix("-")
    names = ("started_at", "ended_at") if by == "took" else (by,)
    return [run_history.c[name] for name in dict.fromkeys(("run_id", *names))]


def _with_words(
    conn: Connection, filters: RunFilters, search: str, limit: int
) -> tuple[list[int], base.Reach]:
    """Return the ids of the newest ``limit`` runs with all words of the text."""
    words = list(dict.fromkeys(search_words(search)))
    reach = base.Reach(base.WINDOW, True, 0)
    if not words:
        reach.note = "search: this text has no letter and no digit, so no run fits; give a word."
        return [], reach
    window = _window(conn, filters, words)
    ids = [row["run_id"] for row in window if all(row[word] for word in words)]
    words.sort(key=lambda word: (sum(bool(row[word]) for row in window), -len(word)))
    reach.whole = len(window) < base.WINDOW
    if not reach.whole and len(ids) < limit:
        ids += _older(conn, filters, words, window[-1]["run_id"], limit - len(ids), reach)
    reach.fits = len(ids)
    if (first := first_filled(conn)) is not None:
        reach.note = f"Runs below {first} cannot be found yet: their words are still being written."
    return ids[:limit], reach


def _window(conn: Connection, filters: RunFilters, words: Sequence[str]) -> Sequence[Row]:
    """Return the newest runs that meet the filters, each with whether it has each word."""
    r = run_history.c
    s = run_search.c
    page = base.united(page_of(filters, times_of(conn, filters), base.WINDOW))
    fits = [_has(word).label(word) for word in words]
    query = select(page.c[r.run_id.name], *fits).select_from(
        page.outerjoin(run_search, s.run_id == page.c[r.run_id.name])
    )
    query = query.order_by(page.c[r.run_id.name].desc()).limit(base.WINDOW)
    return conn.execute(query).mappings().all()


def _older(
    conn: Connection,
    filters: RunFilters,
    words: Sequence[str],
    before: int,
    limit: int,
    reach: base.Reach,
) -> list[int]:
    """Return the ids of runs below ``before`` that the index finds, and record in ``reach`` how far
    this went.
    """
    until = time.monotonic() + SEARCH_S
    times = times_of(conn, filters)
    found = list[int]()
    rarest, *others = words
    for chunk in _chunks(conn, rarest, before):
        among = replace(filters, before_run_id=None)
        with_all = select(run_search.c.run_id).where(
            run_search.c.run_id.in_(chunk), *map(_has, others)
        )
        fitting = [*times, run_history.c.run_id.in_(conn.execute(with_all).scalars().all())]
        queries = page_of(among, fitting, limit - len(found))
        found += base.ids_among(conn, run_history.c.run_id, queries, limit - len(found))
        if len(found) == limit:
            return found
        if time.monotonic() > until:
            reach.note = (
                f"Only runs since {chunk[-1]} were searched, because few meet the other filters; "
                "leave a filter out."
            )
            return found
    reach.whole = True
    return found


def _has(word: str) -> ColumnElement[bool]:
    """Return the condition that a run has a word with this beginning."""
    # The documents are ASCII, and every database compares them by code point.
    return func.instr(run_search.c.words, f" {word}") > 0


def _chunks(conn: Connection, word: str, before: int) -> Iterator[Sequence[int]]:
    """Yield the ids of runs below ``before`` with this word, in descending order."""
    while True:
        query = _matching(conn.dialect.name, word, before)
        chunk = conn.execute(query.limit(_CHUNK)).scalars().all()
        if chunk:
            yield chunk
        if len(chunk) < _CHUNK:
            return
        before = chunk[-1]


def _matching(dialect: str, word: str, before: int) -> Select[Any]:
    """Return a query of the full-text index."""
    if dialect == "sqlite":
        index = table("run_word", sql_column("rowid"), sql_column("run_word"))
        query = select(index.c.rowid).where(index.c.run_word.op("MATCH")(f"{word}*"))
        return query.where(index.c.rowid < before).order_by(index.c.rowid.desc())
    s = run_search.c
    fits = match(s.words, against=f"+{word}*").in_boolean_mode()
    query = select(s.run_id).where(fits, s.run_id < before)
    return query.order_by(s.run_id.desc())
