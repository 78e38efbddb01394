"""Lists of runs that are searched for a text or sorted by a column.

A search that finds too few of the newest runs continues among older runs by crawler, tag and flow,
and by the prefix of the number. Arguments of older runs are not searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection

from crawler_lifecycle.domain import projects
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.store.base import search as base

from .lists import RunFilters, newest_runs, page_of, times_of
from .tables import run_history, run_tag

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


def found(
    conn: Connection,
    filters: RunFilters,
    search: str | None,
    sort: str | None,
    page: tuple[int, int],
    now: datetime,
) -> tuple[list[int], base.Reach]:
    """Return the ids of the runs that contain the text, in the order ``sort``.

    ``page`` is the first position and the number of runs.
    """
    r = run_history.c
    by = (sort or "").removeprefix("-")
    columns = {
        name: r[name]
        for name in ("run_id", *(("started_at", "ended_at") if by == "took" else (by,)))
        if name
    }
    if search is not None:
        columns |= {"crawler": r.crawler, "flow_id": r.flow_id, "request": base.document(r.request)}

    window = newest_runs(conn, filters, base.WINDOW, *columns.values())
    fits = partial(base.has, names=("run_id", "crawler", "flow_id"), documents={"request": _said})
    return base.found(
        window,
        "run_id",
        search,
        sort,
        page,
        now,
        fits,
        partial(_older, conn, filters),
        ["arguments"],
    )


def _said(stored: Any) -> Iterator[Any]:
    yield from stored.get("tags", ())
    yield from (f"{name}={value}" for name, value in stored.get("args", {}).items())


def _older(
    conn: Connection, filters: RunFilters, before: int, search: str, limit: int, left: list[str]
) -> Sequence[int]:
    """Return the ids of older runs that contain the text, and add the fields that were not searched
    to ``left``.
    """
    filters = replace(filters, before_run_id=before)
    times = times_of(conn, filters)
    found = list[RunFilters]()
    for name, plural in (("crawler", "crawlers"), ("flow_id", "flows"), ("tag", "tags")):
        # Flows are not indexed by project, and a caller must not see values of other projects, not
        # even in a note.
        if name == "flow_id" and projects.only() is not None:
            left.append(plural)
            continue
        given = filters.equal.get(name)
        values = (
            base.distinct(conn, VALUES[name], base.VALUES_MAX + 1) if given is None else [given]
        )
        for value in base.fitting(values, search, plural, left):
            tags = [value, *filters.tags] if name == "tag" else filters.tags
            equal = filters.equal if name == "tag" else {**filters.equal, name: value}
            found.append(replace(filters, equal=equal, tags=tags))
    queries = [query for one in found for query in page_of(one, times, limit)]
    for low, high in base.numbers(search, filters.before_run_id or ID_MAX):
        queries += page_of(filters, [*times, run_history.c.run_id.between(low, high)], limit)
    return base.ids_among(conn, run_history.c.run_id, queries, limit)
