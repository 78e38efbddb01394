"""The list of runs by a part of a text, and in another order than that of the number.

No index finds a part of a text, and few columns have an index that gives their order. So both read a window: the newest
runs that meet the other filters, and no more of them than ``WINDOW``. Upper and lower case are the same.

A search that finds too few there goes on among all older runs, but only by what has an index: crawlers, tags and flows
have few different values, so those that contain the text are found first, and then the runs of each. A number is found
by its beginning. Arguments of older runs are not searched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Text, case, func, select, type_coerce

from crawler_lifecycle.domain import projects
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.store.base.rows import Row, seen
from crawler_lifecycle.store.columns import json_text

from .lists import RunFilters, newest_runs, page_of, times_of, united
from .tables import run_history, run_tag

#: The most runs whose texts are read, and the most characters of a request that is read for it.
WINDOW, REQUEST_MAX = 2_000, 8_000
#: The most different values of a column that are compared, and the most of them whose older runs are listed.
VALUES_MAX, FITTING_MAX = 1_000, 20
#: The columns by which runs are put in order.
SORTS = ("crawler", "status", "outcome", "verified_at", "pages", "items", "errors", "started_at", "took", "trigger")


@dataclass(slots=True)
class Reach:
    """The reach of a search or an order."""

    window: int
    whole: bool
    """True if the window contained every run that meets the other filters."""
    fits: int
    """The number of runs in the window that contain the text."""
    left: list[str] = field(default_factory=list)
    """What was searched only in the window: ``arguments``, ``tags`` …"""


def found(
    conn: Connection, filters: RunFilters, search: str | None, sort: str | None, page: tuple[int, int], now: datetime
) -> tuple[list[int], Reach]:
    """Return the ids of the runs that contain the text, in this order. ``page``: the first place and the number."""
    r, (offset, limit), by = run_history.c, page, (sort or "").removeprefix("-")
    columns = {name: r[name] for name in ("run_id", *(("started_at", "ended_at") if by == "took" else (by,))) if name}
    if search is not None:
        request = case((func.length(r.request) <= REQUEST_MAX, r.request))
        columns |= {"crawler": r.crawler, "flow_id": r.flow_id}
        columns |= {"request": type_coerce(request, Text).label("request")}
    window = newest_runs(conn, filters, WINDOW, *columns.values())
    rows = window if search is None else _fitting(window, search)
    reach = Reach(WINDOW, len(window) < WINDOW, len(rows))
    if sort is not None:
        return [row["run_id"] for row in _in_order(rows, sort, now)][offset : offset + limit], reach
    run_ids = [row["run_id"] for row in rows[:limit]]
    if search is not None and not reach.whole:
        reach.left = ["arguments"]
        if (more := limit - len(run_ids)) > 0:
            older = replace(filters, before_run_id=window[-1]["run_id"])
            run_ids += _older(conn, older, search, more, reach.left)
    return run_ids, reach


def _fitting(window: Sequence[Row], search: str) -> list[Row]:
    """Return the rows that contain the text in their number, crawler, flow, tags or arguments."""
    wanted = search.casefold()
    written = json_text(wanted)[1:-1]

    def fits(row: Row) -> bool:
        if any(wanted in str(row[name]).casefold() for name in ("run_id", "crawler", "flow_id") if row[name]):
            return True
        return written in (row["request"] or "").casefold() and wanted in _said(row["request"])

    return [row for row in window if fits(row)]


def _said(request: str) -> str:
    """Return the tags and arguments of a request as one text. A request that somebody edited may have none."""
    try:
        stored = json.loads(request)
        texts = [*stored.get("tags", ()), *(f"{name}={value}" for name, value in stored.get("args", {}).items())]
    except (ValueError, AttributeError, TypeError):
        return ""
    return "\n".join(map(str, texts)).casefold()


def _older(conn: Connection, filters: RunFilters, search: str, limit: int, left: list[str]) -> Sequence[int]:
    """Return the ids of older runs with the text, and add to ``left`` what they were not searched for."""
    times, wanted, found = times_of(conn, filters), search.casefold(), list[RunFilters]()
    for name, plural in (("crawler", "crawlers"), ("flow_id", "flows"), ("tag", "tags")):
        # Flows have no index of one project, and what other projects have must not show, not even in a note.
        if name == "flow_id" and projects.only() is not None:
            left.append(plural)
            continue
        given = filters.equal.get(name)
        values = distinct(conn, name, VALUES_MAX + 1) if given is None else [given]
        fitting = [value for value in values if wanted in value.casefold()]
        if len(values) > VALUES_MAX or len(fitting) > FITTING_MAX:
            left.append(f"some {plural}")
        for value in fitting[:FITTING_MAX]:
            tags = [value, *filters.tags] if name == "tag" else filters.tags
            equal = filters.equal if name == "tag" else {**filters.equal, name: value}
            found.append(replace(filters, equal=equal, tags=tags))
    queries = [query for one in found for query in page_of(one, times, limit)]
    for low, high in _numbers(search, filters.before_run_id or ID_MAX):
        one = [*times, run_history.c.run_id.between(low, high)]
        queries += page_of(filters, one, limit)
    if not queries:
        return ()
    among = united(queries).c.run_id
    return conn.execute(select(among).distinct().order_by(among.desc()).limit(limit)).scalars().all()


def _numbers(search: str, below: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the numbers below ``below`` that begin with this one."""
    low, many = int(search) if search.isascii() and search.isdecimal() and len(search) < len(str(ID_MAX)) else 0, 1
    while 0 < low < below and not search.startswith("0"):
        yield low, min(low + many - 1, below)
        low, many = low * 10, many * 10


def distinct(conn: Connection, name: str, most: int) -> list[str]:
    """Return different values of a column of runs, or of their tags: at most ``most``."""
    table = run_tag if name == "tag" else run_history
    column, own = table.c[name], seen(table, leads=True)
    # With the project among the columns, MariaDB and MySQL jump in its index from one value to the next.
    columns = [table.c.project, column] if own else [column]
    values = select(*columns).distinct().where(column.is_not(None), *own).limit(most)
    return [row[-1] for row in conn.execute(values)]


def _in_order(rows: Sequence[Row], sort: str, now: datetime) -> list[Row]:
    """Return the rows in this order. Those without a value are last, and among equal ones the newest is first."""
    by = sort.removeprefix("-")

    def value(row: Row) -> Any:
        if by != "took":
            return row[by]
        return row["started_at"] and (row["ended_at"] or now) - row["started_at"]

    known = [row for row in rows if value(row) is not None]
    known.sort(key=value, reverse=sort.startswith("-"))
    return known + [row for row in rows if value(row) is None]
