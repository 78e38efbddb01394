"""The cap of sites: how many tasks all runs together have on a site at once.

Code that requests slots of a site or calls a waiting run locks the rows of the sites, so that
several workers never assign a slot twice. Slots are counted from the rows of tasks, as those of
pools are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, delete, exists, or_, select, update

from crawler_lifecycle.domain.blocked import TaskReport
from crawler_lifecycle.domain.pools import BATCH, Ticket
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.domain.run import SITES_MAX
from crawler_lifecycle.domain.waiting import SITE_WAIT, SiteInUse, Wait, site_in_use
from crawler_lifecycle.store.base.bulk import insert_mappings, put_row, rows_in
from crawler_lifecycle.store.base.rows import Row, seen
from crawler_lifecycle.store.runs.caps import Cap
from crawler_lifecycle.store.runs.pools import ticket_of
from crawler_lifecycle.store.runs.tables import run_history
from crawler_lifecycle.store.runs.unit import Unit

from ..domain.site import SiteLimits, hosts_of, turns
from .calls import SiteCalls
from .entries import change_site, db_now, entries_for, lock_sites
from .reports import hear_refusals, hear_success
from .slots import first_tickets, free_of, limits_of, tasks_of
from .tables import run_site, site, site_ticket


class SiteCap(SiteCalls, Cap):
    """The cap of sites, for deployments, and for people who read why a run waits."""

    wait = Wait.SITE

    @staticmethod
    def join(unit: Unit, tasks: Sequence[Mapping[str, str]]) -> None:
        """Record the sites of a run. Tasks with too many further hosts add none.

        Raises ``InvalidRequest``, which names the argument, the value and the fix.
        """
        request = unit.run["request"]
        hosts = hosts_of(request.get("sites", ()), request["args"], tasks)
        if not hosts:
            return
        recorded = _hosts(unit)
        hosts -= recorded.keys()
        if len(recorded) + len(hosts) <= SITES_MAX:
            found = entries_for(unit.conn, hosts)
            rows = [{"host": host, "site": found[host][0]} for host in sorted(hosts)]
            insert_mappings(unit.conn, run_site, rows, run_id=unit.run_id)

    @staticmethod
    def allow(unit: Unit, wanted: int) -> int:
        """Return how many of ``wanted`` further tasks all sites of the run allow.

        If this is fewer, the run waits in the line of the first site that allows the fewest.
        """
        recorded = _hosts(unit)
        found = entries_for(unit.conn, recorded) if recorded else {}
        capped = _capped(unit.conn, dict(found.values()))
        rows = lock_sites(unit.conn, capped)
        _record_moves(unit, recorded, {host: name for host, (name, _) in found.items()})
        if not capped:
            if recorded:
                SiteCap.leave(unit)
            return wanted
        free = free_of(unit.conn, [*rows.values()], unit.now)
        ticket = select(site_ticket).where(site_ticket.c.run_id == unit.run_id)
        before = unit.conn.execute(ticket).mappings().one_or_none()
        shares = {name: _share(unit, name, free[name], wanted, before) for name in sorted(capped)}
        name = min(shares, key=shares.__getitem__)
        given = shares[name]
        if given == wanted:
            SiteCap.leave(unit)
            return wanted
        unit.update_run(waiting_for=f"{SITE_WAIT}{name}")
        _stay(unit, ticket_of(unit, name, wanted - given, before), again=given > 0)
        if not rows[name]["has_tickets"]:
            change_site(unit.conn, name, {"has_tickets": True})
        return given

    @staticmethod
    def leave(unit: Unit) -> None:
        unit.conn.execute(delete(site_ticket).where(site_ticket.c.run_id == unit.run_id))

    @staticmethod
    def hear(unit: Unit, refusals: Sequence[TaskReport], success: datetime | None) -> None:
        """Close sites that refused requests, and open those that answered a task.

        Tasks that lease requests report both by themselves, and earlier.
        """
        if success is not None:
            hear_success(unit, success)
        hear_refusals(unit, refusals)

    @staticmethod
    def in_line(run_id: ColumnElement[int]) -> ColumnElement[bool]:
        mine = select(site_ticket.c.run_id).where(site_ticket.c.run_id == run_id)
        return exists(mine.correlate(run_history))

    def words(self, run_id: int) -> str | None:
        """Return the phrase about the site for which the run waits, or about one that is closed
        while its tasks execute.

        A caller with access to one project gets only runs of this project.
        """
        with self._db.reading() as conn:
            now = datetime.fromtimestamp(db_now(conn), UTC)
            name = _awaited(conn, run_id) or _closed(conn, run_id, now.timestamp())
            if name is None:
                return None
            return site_in_use(_in_use(conn, name, self._clock(), now), now)


def _awaited(conn: Connection, run_id: int) -> str | None:
    """Return the site for which the run waits; ``None`` if the run is unknown or does not wait."""
    r = run_history.c
    name = select(site_ticket.c.site).join(run_history, r.run_id == site_ticket.c.run_id)
    mine = name.where(site_ticket.c.run_id == run_id, *seen(run_history))
    return conn.execute(mine).scalar_one_or_none()


def _closed(conn: Connection, run_id: int, now: float) -> str | None:
    """Return a site of the run that is closed now; ``None`` if there is none, or if the run is
    unknown.
    """
    r = run_site.c
    query = select(site).join(run_site, r.site == site.c.site)
    query = query.join(run_history, run_history.c.run_id == r.run_id)
    rows = conn.execute(query.where(r.run_id == run_id, *seen(run_history))).mappings().all()
    limits = limits_of(conn, rows) if rows else {}
    shut = [
        row["site"] for row in rows if limits[row["site"]].opens_at(now, row["closed_until"]) > now
    ]
    return min(shut, default=None)


def _in_use(conn: Connection, name: str, at: datetime, now: datetime) -> SiteInUse:
    """Return the use of a site. ``at`` is our time, and ``now`` that of the database."""
    r = run_history.c
    [row] = conn.execute(select(site).where(site.c.site == name)).mappings()
    limits = limits_of(conn, [row])[name]
    tasks = tasks_of(conn, [name], at)[name]
    by_run = row["closed_by_run"]
    told = rows_in(
        conn, select(r.run_id).where(*seen(run_history)), r.run_id, {*tasks, by_run or 0}
    )
    own = {run["run_id"] for run in told}
    closed = row["closed_until"] > now.timestamp()
    opens_at = limits.opens_at(now.timestamp())
    shut = limits.opens_at(now.timestamp(), row["closed_until"]) > now.timestamp()
    found = SiteInUse(
        site=name,
        most=limits.tasks,
        tasks=sum(tasks[run_id] for run_id in own),
        runs=sorted(own & tasks.keys()),
        shared=only() is not None,
        opens_at=datetime.fromtimestamp(opens_at, UTC) if opens_at > now.timestamp() else None,
        probes=row["closures"] > 0 and not shut,
    )
    if not closed:
        return found
    return replace(
        found,
        closed_until=datetime.fromtimestamp(row["closed_until"], UTC),
        closed_status=row["closed_status"],
        closed_by_run=by_run if by_run in own else None,
        closed_by=row["closed_by"] if only() is None else None,
    )


def _hosts(unit: Unit) -> dict[str, str]:
    """Return the recorded hosts of the run with their sites."""
    r = run_site.c
    mine = unit.conn.execute(select(r.host, r.site).where(r.run_id == unit.run_id))
    return {row.host: row.site for row in mine}


def _record_moves(unit: Unit, recorded: Mapping[str, str], sites: Mapping[str, str]) -> None:
    """Record the sites of those hosts whose entries have changed."""
    r = run_site.c
    for host, name in sites.items():
        if recorded[host] != name:
            mine = update(run_site).where(r.run_id == unit.run_id, r.host == host)
            unit.conn.execute(mine.values(site=name))


def _capped(conn: Connection, limits: Mapping[str, SiteLimits]) -> set[str]:
    """Return the sites at which the number of tasks is limited now."""
    if not limits:
        return set()
    now = db_now(conn)
    s = site.c
    query = select(s.site).where(or_(s.closures > 0, s.closed_until > now))
    capped = {row["site"] for row in rows_in(conn, query, s.site, limits)}
    for name, of in limits.items():
        if of.tasks is not None or of.opens_at(now) > now:
            capped.add(name)
    return capped


def _share(unit: Unit, name: str, free: int | None, wanted: int, before: Row | None) -> int:
    """Return how many slots the run gets, after the runs that come before it."""
    if free is None or not free:
        return wanted if free is None else 0
    first = first_tickets(unit.conn, name, min(free, BATCH), unit.now)
    mine = ticket_of(unit, name, wanted, before)
    others = [ticket for ticket in first if ticket.run_id != unit.run_id]
    line = sorted([*others, mine], key=lambda ticket: ticket.order)
    return turns(line, free)[unit.run_id]


def _stay(unit: Unit, ticket: Ticket, *, again: bool) -> None:
    """Keep the run in the line of a site, as the last of its priority if it waits ``again``."""
    values = {
        "site": ticket.pool,
        "priority": ticket.priority,
        "since": unit.now if again else ticket.since,
        "wanted": ticket.wanted,
        "called_at": None,
    }
    put_row(unit.conn, site_ticket, {"run_id": unit.run_id}, values)
