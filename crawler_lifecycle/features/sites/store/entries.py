"""The rows of sites: which site a host belongs to, its limits, and its state."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Insert, func, insert, or_, select, text, update
from sqlalchemy.dialects import mysql

from crawler_lifecycle.store.base.bulk import change_in, rows_in

from ..domain.site import DEFAULT, UNLIMITED, SiteLimits, candidates, site_of
from .tables import site, site_robots

#: The values of a new row.
FRESH: Mapping[str, Any] = {
    "closed_until": 0.0,
    "closures": 0,
    "lane_wanted_until": 0.0,
    "has_tickets": False,
}
#: The difference between the time of day and the clock of this process, which an adjustment of the
#: time of day does not change.
_AHEAD_S = time.time() - time.monotonic()
#: In UTC, because an hour of local time comes twice when summer time ends.
_NOW = text("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000000")


def db_now(conn: Connection) -> float:
    """Return the time of the clock that all users of this database share, in seconds since 1970."""
    if conn.dialect.name == "sqlite":
        return _AHEAD_S + time.monotonic()
    return float(conn.execute(_NOW).scalar_one())


def entries_for(conn: Connection, hosts: Collection[str]) -> dict[str, tuple[str, SiteLimits]]:
    """Return the site of each host, and the limits of the site and its robots.txt."""
    s = site.c
    names = {name for host in hosts for name in candidates(host)} | {DEFAULT}
    query = select(s.site, s.limits, s.crawl_delay)
    limited = query.where(or_(s.limits.is_not(None), s.crawl_delay.is_not(None)))
    rows = rows_in(conn, limited, s.site, names)
    entries = {
        row["site"]: SiteLimits.from_json(row["limits"])
        for row in rows
        if row["limits"] is not None
    }
    delays = {row["site"]: row["crawl_delay"] for row in rows}
    default = entries.pop(DEFAULT, UNLIMITED)
    found = {host: site_of(host, entries) for host in hosts}
    return {
        host: (name, entries.get(name, default).with_delay(delays.get(name)))
        for host, name in found.items()
    }


def lock_sites(conn: Connection, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the rows of these sites, locked until the end of the transaction.

    Missing rows are inserted. All callers lock in the order of the names, and before any other row
    that several runs share.
    """
    query = select(site).order_by(site.c.site).with_for_update()
    rows = {row["site"]: dict(row) for row in rows_in(conn, query, site.c.site, names)}
    missing = sorted(set(names) - rows.keys())
    for name in missing:
        new: Insert = insert(site)
        if conn.dialect.name == "mysql":
            # Another transaction may insert the same row now. The update then locks it exclusively.
            # IGNORE would share the lock, and two that share it could not lock it below.
            new = mysql.insert(site).on_duplicate_key_update(site=name)
        conn.execute(new.values(site=name, **FRESH))
    return rows | {row["site"]: dict(row) for row in rows_in(conn, query, site.c.site, missing)}


def change_site(conn: Connection, name: str, values: Mapping[str, Any]) -> None:
    """Change columns of a site, whose row is locked."""
    conn.execute(update(site).where(site.c.site == name).values(**values))


def update_delays(conn: Connection, names: Collection[str]) -> None:
    """Let the robots.txt of these sites, whose rows are locked, limit them."""
    r = site_robots.c
    longest = select(func.max(r.crawl_delay)).where(r.site == site.c.site).scalar_subquery()
    change_in(conn, update(site).values(crawl_delay=longest), site.c.site, names)
