"""Queries about sites, for people.

A caller with one project sees the sites of the newest runs of this project. Such a caller gets no
figures that other projects contribute to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, Select, func, or_, select

from crawler_lifecycle.domain.bounds import DAY_S
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.ports.runs import RunRobots
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.rows import Row, made, seen
from crawler_lifecycle.store.base.unit import StorePart
from crawler_lifecycle.store.runs.tables import run_history

from ..domain.site import SiteLimits, candidates
from ..ports import (
    SiteBlock,
    SiteClosure,
    SiteMinute,
    SiteProxy,
    SiteRobots,
    SiteRow,
    SiteRun,
    SiteState,
)
from .entries import db_now
from .slots import limits_of, tasks_of
from .tables import (
    run_robots,
    run_site,
    site,
    site_block,
    site_day,
    site_lease,
    site_minute,
    site_robots,
    site_ticket,
    text_of,
)

_s = site.c
_r = run_history.c
_o = site_robots.c
_ABOUT = [column for column in _o if column.name != "body"]
#: The number of newest runs of a project whose sites a caller with this project sees.
OWN_RUNS = 1_000
#: The maximum number of runs of a site that are listed as executing, and as waiting.
RUNS_MAX = 100
#: The maximum number of origins of a site, and of hosts of a run, whose robots.txt is listed.
ROBOTS_MAX = 100
MINUTES_A_DAY = 24 * 60
#: The number of days for which the figures of proxies are shown.
PROXY_DAYS = 7

#: The seconds after a closure in which a site counts as closed until a request succeeds.
PROBED_S = 600.0
#: The maximum number of waiting runs of a site that are counted.
WAITING_MAX = 1_000

#: What a caller with one project does not see.
_HIDDEN = ("closed_by_run", "closed_by", "changed_by", "lanes", "last_minute")

Only = Literal["closed", "limited", "busy"]
"""Which sites are listed: closed ones, those with limits of their own, or those with requests in
the last 24 hours.
"""


class SiteReader(StorePart):
    """The reading methods of ``SiteStore``."""

    def list_sites(
        self, offset: int, limit: int, *, search: str | None = None, show: Only | None = None
    ) -> list[SiteRow]:
        """Return sites by name, without the first ``offset`` ones. ``search`` is a part of the
        name.
        """
        with self._db.reading() as conn:
            now = db_now(conn)
            query = _visible(select(site)).order_by(_s.site).offset(offset).limit(limit)
            if search:
                query = query.where(_s.site.contains(search.lower(), autoescape=True))
            if show == "closed":
                query = query.where(or_(_s.closed_until > now, _s.closures > 0))
            elif show == "limited":
                query = query.where(_s.limits.is_not(None))
            elif show == "busy":
                since = int(now // 60) - MINUTES_A_DAY
                m = site_minute.c
                query = query.where(
                    select(m.minute).where(m.site == _s.site, m.minute >= since).exists()
                )
            return _site_rows(conn, conn.execute(query).mappings().all(), now, self._clock())

    def get_site(self, name: str) -> SiteRow | None:
        """Return the site with this name."""
        with self._db.reading() as conn:
            rows = conn.execute(_visible(select(site)).where(_s.site == name)).mappings().all()
            found = _site_rows(conn, rows, db_now(conn), self._clock())
        return found[0] if found else None

    def sites_of(self, host: str) -> list[str]:
        """Return the known sites to which a host can belong, the closest first. One that has lost
        its limits is none of them.
        """
        names = candidates(host)
        belongs = or_(_s.limits.is_not(None), _s.site == names[-1])
        with self._db.reading() as conn:
            rows = rows_in(conn, _visible(select(_s.site)).where(belongs), _s.site, names)
        return sorted((row["site"] for row in rows), key=names.index)

    def minutes(self, name: str, most: int) -> list[SiteMinute]:
        """Return the last ``most`` minutes with requests, oldest first; none for a caller with one
        project.
        """
        if only() is not None:
            return []
        m = site_minute.c
        with self._db.reading() as conn:
            since = int(db_now(conn) // 60) - most
            query = select(m.minute, m.requests, m.statuses).order_by(m.minute)
            rows = conn.execute(query.where(m.site == name, m.minute > since)).all()
        return [
            SiteMinute(_time(60.0 * minute), requests, statuses)
            for minute, requests, statuses in rows
        ]

    def proxies(self, name: str) -> list[SiteProxy]:
        """Return the requests of the last ``PROXY_DAYS`` through each proxy, the newest day first,
        and the most used proxy of a day first; none for a caller with one project.
        """
        if only() is not None:
            return []
        d = site_day.c
        with self._db.reading() as conn:
            since = int(db_now(conn) // DAY_S) - PROXY_DAYS
            query = select(d.day, d.proxies).where(d.site == name, d.day > since)
            days = conn.execute(query.order_by(d.day.desc())).all()
        found = []
        for day, proxies in days:
            sums = {proxy: sum(statuses.values()) for proxy, statuses in proxies.items()}
            at = _time(day * DAY_S).date()
            for proxy in sorted(sums, key=lambda proxy: -sums[proxy]):
                found.append(SiteProxy(at, proxy, sums[proxy], proxies[proxy]))
        return found

    def blocks(self, name: str, before_id: int | None = None, limit: int = 50) -> list[SiteBlock]:
        """Return what closed and opened a site, newest first.

        A caller with one project sees the blocks of its own runs, and no names of people.
        """
        b = site_block.c
        query = select(site_block).where(b.site == name)
        if mine := seen(run_history):
            own = select(_r.run_id).where(_r.run_id == b.run_id, *mine).exists()
            query = query.where(or_(b.run_id.is_(None), own))
        if before_id is not None:
            query = query.where(b.block_id < before_id)
        rows = self._rows(query.order_by(b.block_id.desc()).limit(limit))
        return [_block(row) for row in rows]

    def robots(self, name: str) -> list[SiteRobots]:
        """Return the robots.txt of the origins of a site: the first ``ROBOTS_MAX``."""
        query = select(*_ABOUT).where(_o.site == name, _o.fetched_at > 0)
        rows = self._rows(query.order_by(_o.origin).limit(ROBOTS_MAX))
        hidden = {} if only() is None else {"run_id": None}
        return [
            made(SiteRobots, row, fetched_at=_time(row["fetched_at"]), **hidden) for row in rows
        ]

    def robots_text(self, name: str, origin: str) -> bytes | None:
        """Return the robots.txt of an origin of a site; ``None`` if no task has fetched one."""
        rows = self._rows(select(site_robots).where(_o.site == name, _o.origin == origin))
        return text_of(rows[0]) if rows else None

    def robots_of_run(self, run_id: int, limit: int = ROBOTS_MAX) -> list[RunRobots]:
        """Return the robots.txt that a run got, by host: the first ``limit``."""
        query = select(run_robots).where(run_robots.c.run_id == run_id)
        rows = self._rows(query.order_by(run_robots.c.host).limit(limit))
        return [made(RunRobots, row) for row in rows]

    def site_runs(self, name: str) -> list[SiteRun]:
        """Return the runs whose tasks execute on a site, and those that wait for it: at most
        ``RUNS_MAX`` of each.
        """
        k = site_ticket.c
        about = select(_r.run_id, _r.crawler, _r.project, _r.status).where(*seen(run_history))
        wait = (k.wanted.label("waiting_tasks"), k.since.label("waiting_since"))
        waiting = about.add_columns(*wait).join(site_ticket, k.run_id == _r.run_id)
        waiting = waiting.where(k.site == name).order_by(k.priority, k.since, k.run_id)
        with self._db.reading() as conn:
            tasks = _own_tasks(conn, [name], self._clock())[name]
            rows = rows_in(conn, about, _r.run_id, sorted(tasks)[:RUNS_MAX])
            found = {row["run_id"]: row for row in rows}
            for row in conn.execute(waiting.limit(RUNS_MAX)).mappings():
                found[row["run_id"]] = row
        return [SiteRun(**row, tasks=tasks.get(run_id, 0)) for run_id, row in found.items()]

    def closed_sites(self, limit: int) -> list[SiteClosure]:
        """Return the closures by refused requests that have not ended, or ended less than
        ``PROBED_S`` seconds ago while no request has succeeded since.
        """
        b = site_block.c
        with self._db.reading() as conn:
            now = db_now(conn)
            query = select(site).where(_s.closures > 0, _s.closed_until > now - PROBED_S)
            rows = conn.execute(query.order_by(_s.closures, _s.site).limit(limit)).mappings().all()
            newest = select(b.site, func.max(b.at).label("at")).group_by(b.site)
            times = {
                row["site"]: row["at"]
                for row in rows_in(conn, newest, b.site, [row["site"] for row in rows])
            }
        return [
            made(
                SiteClosure,
                row,
                since=_time(times.get(row["site"], now)),
                closed_until=_time(row["closed_until"]),
            )
            for row in rows
        ]


def _visible(query: Select[Any]) -> Select[Any]:
    """Limit a query of sites to those that the present caller may see."""
    mine = seen(run_history, leads=True)
    if not mine:
        return query
    newest = select(_r.run_id).where(*mine).order_by(_r.created_at.desc()).limit(OWN_RUNS)
    own = newest.subquery("page_of_runs")
    names = select(run_site.c.site).join(own, own.c.run_id == run_site.c.run_id)
    return query.where(_s.site.in_(names))


def _own_tasks(conn: Connection, names: Sequence[str], at: datetime) -> dict[str, dict[int, int]]:
    """Return how many slots of each site the runs hold that the caller may see."""
    tasks = tasks_of(conn, names, at)
    mine = seen(run_history)
    if not mine:
        return {name: dict(runs) for name, runs in tasks.items()}
    run_ids = {run_id for runs in tasks.values() for run_id in runs}
    own = {
        row["run_id"] for row in rows_in(conn, select(_r.run_id).where(*mine), _r.run_id, run_ids)
    }
    return {
        name: {run_id: count for run_id, count in runs.items() if run_id in own}
        for name, runs in tasks.items()
    }


def _site_rows(conn: Connection, rows: Sequence[Row], now: float, at: datetime) -> list[SiteRow]:
    """Return sites. ``now`` is the time of the database, and ``at`` is ours."""
    facts = _facts(conn, [row["site"] for row in rows], now, at)
    for row in rows:
        if row["has_tickets"]:
            facts[row["site"]] |= _waiting(conn, row["site"])
    limits = limits_of(conn, rows)
    return [_site_row(row, limits[row["site"]], facts[row["site"]], now) for row in rows]


def _waiting(conn: Connection, name: str) -> dict[str, int]:
    """Return how many runs wait for a site, and for how many tasks: the first ``WAITING_MAX`` runs
    that the caller may see.
    """
    k = site_ticket.c
    line = select(k.wanted).where(k.site == name)
    mine = seen(run_history)
    if mine:
        line = line.join(run_history, _r.run_id == k.run_id).where(*mine)
        line = line.prefix_with("STRAIGHT_JOIN", dialect="mysql")
    line = line.order_by(k.priority, k.since, k.run_id).limit(WAITING_MAX)
    wanted = conn.execute(line).scalars().all()
    return {"waiting_runs": len(wanted), "waiting_tasks": sum(wanted)}


def _facts(
    conn: Connection, names: Sequence[str], now: float, at: datetime
) -> dict[str, dict[str, int]]:
    """Return the figures of these sites that are not 0."""
    lease = site_lease.c
    m = site_minute.c
    lanes = select(lease.site, func.count().label("lanes")).group_by(lease.site)
    minute = select(m.site, m.requests.label("last_minute"))
    held = _own_tasks(conn, names, at)
    found = {name: {"tasks": sum(runs.values())} for name, runs in held.items()}
    for query, column in (
        (lanes.where(lease.until > now), lease.site),
        (minute.where(m.minute == int(now // 60) - 1), m.site),
    ):
        for row in rows_in(conn, query, column, names):
            values = {name: int(value) for name, value in row.items() if name != "site"}
            found[row["site"]] |= values
    return found


def _site_row(row: Row, limits: SiteLimits, facts: Mapping[str, int], now: float) -> SiteRow:
    opens_at = limits.opens_at(now, row["closed_until"])
    state: SiteState = "open"
    if row["closed_until"] > now:
        state = "closed"
    elif opens_at > now:
        state = "outside_hours"
    elif row["closures"] > 0:
        state = "probing"
    figures = dict.fromkeys(("tasks", "waiting_runs", "waiting_tasks", "lanes", "last_minute"), 0)
    values: dict[str, Any] = {**row, **figures, **facts}
    values |= {"state": state, "limits": limits.to_json()}
    values["delay_s"] = limits.delay_s(row["crawl_delay"])
    values["opens_at"] = _time(opens_at) if opens_at > now else None
    if state in ("open", "outside_hours"):
        values |= dict.fromkeys(("closed_by_run", "closed_by", "closed_status"))
    if only() is not None:
        values |= dict.fromkeys(_HIDDEN)
    return made(SiteRow, values)


def _block(row: Row) -> SiteBlock:
    opened = row["run_id"] is None and row["closed_until"] <= row["at"]
    values = {
        **row,
        "at": _time(row["at"]),
        "closed_until": None if opened else _time(row["closed_until"]),
        "person": None if only() is not None else row["person"],
    }
    return made(SiteBlock, values)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
