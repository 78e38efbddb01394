"""The list of runs: one statement that stays fast for every filter and any number of runs.

The inner query finds the ids of one page, the outer one reads those rows. Every filter has an index that goes on in the
order of the id, so a page costs about as many index entries as it has rows. Two things need help for that:

- Several statuses are one query each, of at most one page. An index of two statuses is not in the order of the id, and
  a database would sort all runs that ever completed.
- A range of time becomes a range of ids. Ids grow with time except for what the clocks of the hosts differ, so the ids
  are taken ``CLOCK_SLACK`` wider on both sides, and the time itself is compared as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Subquery, select, union_all

from crawler_lifecycle.adapters.database.schema.rows import Row, tag_key
from crawler_lifecycle.adapters.database.schema.tables import run_history, run_tag
from crawler_lifecycle.ports import RunFilters

CLOCK_SLACK = timedelta(hours=1)
"""How much the clocks of two hosts that create runs may differ before a filter by time leaves a run out."""


#: Filters that are columns of ``run_history``.
_EQUAL = ("stage", "crawler", "trigger", "outcome", "flow_id")


def newest_runs(conn: Connection, filters: RunFilters, before_run_id: int | None, limit: int) -> Sequence[Row]:
    """The rows of the newest ``limit`` runs that fit, newest first; ``before_run_id``: those below it."""
    r = run_history.c
    conditions = [r[name] == str(value) for name in _EQUAL if (value := filters.get(name)) is not None]
    conditions += _times(conn, filters.get("created_from"), filters.get("created_until"))
    if before_run_id is not None:
        conditions.append(r.run_id < before_run_id)
    ids = _tagged(filters.get("tag"), before_run_id)
    page = _page(ids.where(*conditions).limit(limit), [str(status) for status in filters.get("status", ())])
    query = select(run_history).join(page, page.c.run_id == r.run_id).order_by(r.run_id.desc()).limit(limit)
    return conn.execute(query).mappings().all()


def _page(ids: Select[Any], statuses: Sequence[str]) -> Subquery:
    """The ids of the page, or of one page of each wanted status."""
    status = run_history.c.status
    if len(statuses) < 2:
        return ids.where(*(status == one for one in statuses)).subquery("page")
    parts = [ids.where(status == one).subquery(f"page_{n}") for n, one in enumerate(dict.fromkeys(statuses))]
    return union_all(*(select(part.c.run_id) for part in parts)).subquery("page")


def _tagged(tag: str | None, before_run_id: int | None) -> Select[Any]:
    """The ids of all runs, or of those with the tag, newest first."""
    r = run_history.c
    query = select(r.run_id).order_by(r.run_id.desc())
    if tag is not None:
        # The runs of a tag come out of its own index in the order of the id.
        tagged = run_tag.c
        query = select(tagged.run_id).join(run_history, r.run_id == tagged.run_id).order_by(tagged.run_id.desc())
        query = query.where(tagged.tag == tag_key(tag))
        if before_run_id is not None:
            query = query.where(tagged.run_id < before_run_id)
    # A range of ids says the same as a range of time, and in the right order.
    return query.with_hint(run_history, "IGNORE INDEX (ix_run_history_created_at)", "mysql")


def _times(conn: Connection, begin: datetime | None, end: datetime | None) -> list[ColumnElement[bool]]:
    """The range of time, and the range of ids outside of which no run of that time can be."""
    r = run_history.c
    conditions: list[ColumnElement[bool]] = []
    if begin is not None:
        conditions.append(r.created_at >= begin)
        earlier = select(r.run_id).where(r.created_at < begin - CLOCK_SLACK)
        last = conn.execute(earlier.order_by(r.created_at.desc()).limit(1)).scalar_one_or_none()
        if last is not None:
            conditions.append(r.run_id > last)
    if end is not None:
        conditions.append(r.created_at < end)
        later = select(r.run_id).where(r.created_at >= end + CLOCK_SLACK)
        first = conn.execute(later.order_by(r.created_at).limit(1)).scalar_one_or_none()
        if first is not None:
            conditions.append(r.run_id < first)
    return conditions
