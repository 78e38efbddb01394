"""The reports of crawlers without leases: refused requests in their statistics, and successes.

Each poll reads the same statistics again, so the reports that count are remembered by task.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from sqlalchemy import Connection, delete, select

from crawler_lifecycle.domain.blocked import TaskReport
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.hosts import host_of
from crawler_lifecycle.store.base.bulk import change_in, insert_mappings, rows_in
from crawler_lifecycle.store.runs.unit import Unit

from ..domain.closing import Block, SiteState, passed
from .blocks import CLOSURE, close, record_block
from .entries import change_site, db_now, entries_for, lock_sites
from .slots import limits_of
from .tables import run_site, site, site_report


def hear_refusals(unit: Unit, refusals: Sequence[TaskReport]) -> None:
    """Close the sites that refused requests of the run, each report once.

    A report about a host that is on none of the run's sites has no effect.
    """
    new = _new_reports(unit, refusals)
    if not new:
        return
    r = run_site.c
    hosts = unit.conn.execute(select(r.site).where(r.run_id == unit.run_id).distinct())
    own = set(hosts.scalars())
    found = _sites_of(unit.conn, new, own)
    rows = lock_sites(unit.conn, {name for name, _ in found})
    limits = limits_of(unit.conn, [*rows.values()])
    now = db_now(unit.conn)
    for name, refusal in found:
        row = rows[name]
        retry_after_s = refusal.blocked.retry_after_s(datetime.fromtimestamp(now, UTC))
        block = Block.of(refusal.blocked.status, retry_after_s)
        before = SiteState(row["closed_until"], row["closures"])
        state, closed_by = close(before, block, limits[name], now, unit.run_id)
        row |= {"closed_until": state.closed_until, "closures": state.closures, **closed_by}
        task = unit.run_id, refusal.index
        record_block(unit.conn, name, task, block, now, state.closed_until)
    for name, row in rows.items():
        values = {column: row[column] for column in CLOSURE}
        change_site(unit.conn, name, values)


def hear_success(unit: Unit, started_at: datetime) -> None:
    """Open the sites of the run that closed before this time, when a task that succeeded began."""
    r = run_site.c
    query = select(site.c.site).join(run_site, r.site == site.c.site)
    query = query.where(r.run_id == unit.run_id, site.c.closures > 0)
    names = set(unit.conn.execute(query).scalars())
    for name, row in (lock_sites(unit.conn, names) if names else {}).items():
        if row["closed_until"] < started_at.timestamp():
            now = db_now(unit.conn)
            state = passed(SiteState(row["closed_until"], row["closures"]), now)
            values = {"closed_until": state.closed_until, "closures": state.closures}
            change_site(unit.conn, name, values)


def _new_reports(unit: Unit, refusals: Sequence[TaskReport]) -> list[TaskReport]:
    """Return the reports that do not count yet, and remember them."""
    by_task = defaultdict[int, dict[str, TaskReport]](dict)
    for refusal in refusals:
        text = f"{refusal.attempt} {refusal.blocked}".encode("utf-8", "replace")
        mark = hashlib.sha256(text).hexdigest()[:16]
        by_task[refusal.index][mark] = refusal
    s = site_report.c
    mine = select(s.task_index, s.marks).where(s.run_id == unit.run_id)
    known = {
        row["task_index"]: row["marks"].split()
        for row in rows_in(unit.conn, mine, s.task_index, by_task)
    }
    new = list[TaskReport]()
    changed = list[dict[str, object]]()
    for index, marks in by_task.items():
        before = known.get(index, ())
        unknown = [refusal for mark, refusal in marks.items() if mark not in before]
        if unknown:
            new += unknown
            at = db_now(unit.conn)
            changed.append({"task_index": index, "marks": " ".join(marks), "at": at})
    if changed:
        old = delete(site_report).where(s.run_id == unit.run_id)
        change_in(unit.conn, old, s.task_index, [row["task_index"] for row in changed])
        insert_mappings(unit.conn, site_report, changed, run_id=unit.run_id)
    return new


def _sites_of(
    conn: Connection, refusals: Sequence[TaskReport], own: set[str]
) -> list[tuple[str, TaskReport]]:
    """Return the reports about sites of the run, each with its site.

    A report without a host is about the only site of the run.
    """
    hosts = {refusal.blocked.host: _host(refusal.blocked.host) for refusal in refusals}
    sites = entries_for(conn, {host for host in hosts.values() if host is not None})
    found = []
    for refusal in refusals:
        name = None
        if refusal.blocked.host is None:
            name = min(own) if len(own) == 1 else None
        elif (host := hosts[refusal.blocked.host]) is not None:
            name = sites[host][0]
        if name in own:
            found.append((str(name), refusal))
    return found


def _host(text: str | None) -> str | None:
    with suppress(InvalidRequest):
        return None if text is None else host_of(text)
    return None
