"""Lists of runs that are searched for words or sorted by a column.

Each word of a search may be the beginning of a word of a run. A search reads the ids of the runs
with one of its words, newest first, and checks these runs against the other words and filters. It
chooses a word with few runs or, failing that, one that is the beginning of few different words. If
there is no such word, it checks the newest runs, because many of them match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.search_words import search_words
from crawler_lifecycle.store.base import search as base
from crawler_lifecycle.store.base.rows import seen

from .lists import RunFilters, first_after, last_before, newest_runs, page_of, times_of
from .search_documents import first_filled
from .tables import run_history, run_tag, run_word

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
#: The maximum number of ids that one statement reads, and that one search reads unless its project
#: has fewer than ``_RARE`` runs.
_CHUNK = 500
_READ_MAX = 5_000
#: A word with fewer entries than this has few runs, so one statement sorts all of them.
_RARE = 20_000
#: The maximum number of words with the same beginning whose runs are merged.
_MERGED_MAX = 20
#: The maximum number of words in a search.
_WORDS_MAX = 20


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
        ids, reach = _with_words(
            conn, filters, search, offset + limit if sort is None else base.WINDOW
        )
        if sort is None:
            return ids[:limit], reach
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
    """Return the ids of the newest runs with all words of the text, at least ``limit`` if there are
    that many."""
    given = list(dict.fromkeys(search_words(search)))
    words = given[:_WORDS_MAX]
    reach = base.Reach(base.WINDOW, True, 0)
    if not words:
        reach.note = "search: this text has no letter or digit, so no run matches; give a word."
        return [], reach
    ids = list[int]()
    sources, most = _sources(conn, filters, words)
    times = times_of(conn, filters)
    before = filters.before_run_id or ID_MAX
    after = 0
    # Entries of other times must not use up what a search may read.
    if filters.created_until is not None:
        before = min(before, first_after(conn, filters.created_until))
    if filters.created_from is not None:
        after = last_before(conn, filters.created_from)
    for _ in range(0, most, _CHUNK):
        chunk = _chunk(conn, replace(filters, before_run_id=before), times, sources)
        chunk = [run_id for run_id in chunk if run_id > after]
        reach.whole = not chunk
        if reach.whole or len(ids) >= limit:
            break
        if fitting := _with_all(conn, chunk, words):
            queries = page_of(filters, [*times, run_history.c.run_id.in_(fitting)], _CHUNK)
            ids += base.ids_among(conn, run_history.c.run_id, queries, _CHUNK)
        before = chunk[-1]
    else:
        reach.note = (
            f"Only runs since {before} were searched, because too many have these words or match "
            "the other filters; give a longer word, or remove a filter."
        )
    reach.fits = len(ids)
    if len(given) > _WORDS_MAX:
        reach.note = f"Only the first {_WORDS_MAX} words of the search were compared."
    first = first_filled(conn)
    if first is not None:
        reach.note = f"Runs below {first} cannot be found yet: their words are still being indexed."
    return ids, reach


@dataclass(frozen=True, slots=True)
class _Source:
    """Entries of ``run_word`` from which a search reads the ids of runs."""

    condition: ColumnElement[bool]
    is_range: bool
    """True if the condition is a range of words, whose entries are not sorted by run."""


def _sources(
    conn: Connection, filters: RunFilters, words: Sequence[str]
) -> tuple[list[_Source], int]:
    """Return sources that together contain every matching run, and how many ids are read of them.

    Returns no source if the newest runs must be checked instead.
    """
    entry = run_word.c
    of_crawler = search_words(filters.equal.get("crawler", ""))
    # "{" sorts after all characters of words.
    begins = [and_(entry.word >= word, entry.word < f"{word}{{") for word in words]
    sources = [_Source(condition, True) for condition in begins]
    sources += [_Source(entry.word == word, False) for word in of_crawler]
    counts = [
        base.counted(conn, [select(entry.run_id).where(source.condition).limit(_RARE)], _RARE)
        for source in sources
    ]
    fewest = min(counts)
    if fewest < _RARE:
        return [sources[counts.index(fewest)]], _READ_MAX
    mine = seen(run_history, leads=True)
    if mine:
        # The entries of frequent words are mostly those of other projects.
        own = [select(run_history.c.run_id).where(*mine).limit(_RARE)]
        if base.counted(conn, own, _RARE) < _RARE:
            return [], _RARE
    for word in sorted(words, key=len, reverse=True):
        begun = _begun_words(conn, word)
        if len(begun) <= _MERGED_MAX:
            return [_Source(entry.word == whole, False) for whole in begun], _READ_MAX
    return [], _READ_MAX


def _begun_words(conn: Connection, beginning: str) -> list[str]:
    """Return the different words with this beginning, at most one more than ``_MERGED_MAX``."""
    word = run_word.c.word
    begun = list[str]()
    after = word >= beginning
    while len(begun) <= _MERGED_MAX:
        # Not every database goes from one different word to the next by itself.
        first = select(func.min(word)).where(after, word < f"{beginning}{{")
        found_word = conn.execute(first).scalar_one()
        if found_word is None:
            break
        begun.append(found_word)
        after = word > found_word
    return begun


def _chunk(
    conn: Connection,
    filters: RunFilters,
    times: Sequence[ColumnElement[bool]],
    sources: Sequence[_Source],
) -> Sequence[int]:
    """Return the next ids of runs that may match, in descending order."""
    entry = run_word.c
    if not sources:
        queries = page_of(filters, times, _CHUNK)
        return base.ids_among(conn, run_history.c.run_id, queries, _CHUNK)
    queries = list[Select[Any]]()
    for source in sources:
        # With the plain column, SQLite would read all entries in key order to find a range of
        # words.
        number = entry.run_id + 0 if source.is_range else entry.run_id
        newest = select(entry.run_id).where(source.condition, number < filters.before_run_id)
        if seen(run_history):
            newest = newest.join(run_history, run_history.c.run_id == entry.run_id)
            newest = newest.where(*seen(run_history))
        queries.append(newest.order_by(number.desc()).limit(_CHUNK))
    return base.ids_among(conn, entry.run_id, queries, _CHUNK)


def _with_all(conn: Connection, ids: Sequence[int], words: Sequence[str]) -> Sequence[int]:
    """Return the ids among these whose runs have all words."""
    for word in words:
        if not ids:
            break
        # This must not be a range of words, because SQLite would read all entries of a frequent
        # word.
        begins = func.substr(run_word.c.word, 1, len(word)) == word
        having = select(run_word.c.run_id).where(run_word.c.run_id.in_(ids), begins)
        ids = conn.execute(having.distinct()).scalars().all()
    return ids
