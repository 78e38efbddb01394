"""The store of sites: their limits, and their closures by people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column, Connection, delete, false, func, insert, select

from crawler_lifecycle.domain.bounds import DAY_S
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.store.base.bulk import CHUNK, change_in
from crawler_lifecycle.store.base.rows import Row

from ..domain.site import DEFAULT, SiteLimits, check_sites, site_of
from .blocks import CLOSURE
from .entries import change_site, db_now, entries_for, lock_sites, update_delays
from .leases import REPORT_S
from .reads import SiteReader
from .tables import (
    site,
    site_block,
    site_day,
    site_lease,
    site_minute,
    site_report,
    site_robots,
    site_ticket,
)

_s = site.c
SETTINGS = "settings"
PEOPLE = "people"
#: The time for which the figures of a minute are kept, and that for blocks and for files that are
#: not valid any more, in seconds.
MINUTES_KEPT_S = 7 * DAY_S
BLOCKS_KEPT_S = 30 * DAY_S
#: The tables whose rows need the row of their site.
_ABOUT_SITES = (site_lease, site_ticket, site_robots, site_minute, site_day, site_block)
_NOT_CLOSED = {
    "closures": 0,
    "closed_by": None,
    "closed_by_run": None,
    "closed_status": None,
}


class SiteStore(SiteReader):
    """Sites: their limits, and who closed them."""

    def set_limits(
        self, name: str, limits: SiteLimits, by: str | None
    ) -> tuple[SiteLimits | None, bool]:
        """Give a site limits, which replace those it has. Returns the previous ones, and whether
        anything changed. A host whose site is closed stays closed.

        Raises ``InvalidRequest``, and ``NotInThisState`` for an entry of the settings.
        """
        with self._db.writing() as conn:
            before = _own_limits(conn, name)
            if before == limits:
                return before, False
            if before is None:
                entries = select(func.count()).select_from(site).where(_s.limits.is_not(None))
                check_sites(conn.execute(entries).scalar_one() + 1)
            values = {"limits": limits.to_json(), "origin": PEOPLE}
            self._change(conn, name, {**values, **_closure(conn, name)}, by)
            return before, True

    def remove_limits(self, name: str, by: str | None) -> tuple[SiteLimits | None, bool]:
        """Remove the limits that people gave a site. A closed site stays closed. Returns the former
        limits, and whether anything changed.

        Raises ``NotInThisState`` for an entry of the settings, and for one that is closed, if its
        hosts would belong to other sites.
        """
        with self._db.writing() as conn:
            before = _own_limits(conn, name)
            if before is not None:
                [row] = conn.execute(select(site).where(_s.site == name)).mappings()
                if _is_closed(row, db_now(conn)) and site_of(name, {}) != name:
                    raise NotInThisState(
                        f"site {name} is closed, and its hosts would belong to other sites; open "
                        "it first"
                    )
                self._change(conn, name, {"limits": None, "origin": None}, by)
            return before, before is not None

    def close_site(self, name: str, for_s: float, person: str) -> None:
        """Close a site for some seconds. No task starts on it, and those that execute pause.

        ``person`` is a text about who closed it, and why. Raises ``NotInThisState`` if it is
        already closed for longer.
        """
        with self._db.writing() as conn:
            now = db_now(conn)
            row = lock_sites(conn, [name])[name]
            until = now + for_s
            if row["closed_until"] >= until:
                raise NotInThisState(
                    f"site {name} is already closed for {row['closed_until'] - now:.0f} s; open it "
                    "first to close it for a shorter time"
                )
            values = {"closed_until": until, "closed_by": person, "closed_by_run": None}
            values["closed_status"] = None
            change_site(conn, name, values)
            _record(conn, name, now, person, until)

    def open_site(self, name: str, person: str) -> bool:
        """Open a closed site. Returns whether it was closed."""
        with self._db.writing() as conn:
            now = db_now(conn)
            row = lock_sites(conn, [name])[name]
            if not _is_closed(row, now):
                return False
            values = {"closed_until": 0.0, **_NOT_CLOSED}
            change_site(conn, name, values)
            _record(conn, name, now, person, now)
            return True

    def apply_settings(self, entries: Mapping[str, SiteLimits]) -> list[str]:
        """Store these as the entries from the settings. Returns the names of the people's entries
        that they replace.
        """
        with self._db.writing() as conn:
            former = select(_s.site).where(_s.origin == SETTINGS)
            names = {*entries, *conn.execute(former).scalars()}
            replaced = []
            for name, row in lock_sites(conn, names).items():
                given = entries.get(name)
                limits = None if given is None else given.to_json()
                origin = None if given is None else SETTINGS
                if (row["limits"], row["origin"]) == (limits, origin):
                    continue
                if row["origin"] == PEOPLE:
                    replaced.append(name)
                self._change(conn, name, {"limits": limits, "origin": origin}, None)
            return replaced

    def remove_old(self) -> None:
        """Remove old figures and blocks, and sites about which nothing else is known, in several
        transactions.
        """
        with self._db.reading() as conn:
            now = db_now(conn)
        self._remove_before(site_minute.c.minute, (now - MINUTES_KEPT_S) / 60, 10)
        self._remove_before(site_day.c.day, (now - BLOCKS_KEPT_S) / DAY_S, 1)
        self._remove_before(site_block.c.at, now - BLOCKS_KEPT_S, DAY_S)
        self._remove_before(site_report.c.at, now - BLOCKS_KEPT_S, DAY_S)
        while self._forget_robots(now - BLOCKS_KEPT_S):
            pass
        after: str | None = ""
        while after is not None:
            after = self._forget_sites(after, now)

    def _remove_before(self, column: Column[Any], before: float, step: float) -> None:
        """Remove the rows whose ``column`` is smaller than ``before``. A transaction removes those
        of one ``step``.
        """
        while True:
            with self._db.writing() as conn:
                oldest = conn.execute(select(func.min(column))).scalar_one()
                if oldest is None or oldest >= before:
                    return
                conn.execute(delete(column.table).where(column < min(oldest + step, before)))

    def _forget_robots(self, before: float) -> bool:
        """Remove some files that were not renewed since. Returns whether there were any."""
        r = site_robots.c
        old = select(r.origin, r.site).where(r.valid_until < before)
        with self._db.writing() as conn:
            rows = conn.execute(old.order_by(r.valid_until).limit(CHUNK)).all()
            names = {row.site for row in rows}
            lock_sites(conn, names)
            gone = delete(site_robots).where(r.valid_until < before)
            change_in(conn, gone, r.origin, [row.origin for row in rows])
            update_delays(conn, names)
        return bool(rows)

    def _forget_sites(self, after: str, now: float) -> str | None:
        """Remove the leases that have ended of the next sites after this one, and the rows of sites
        that nothing needs. Returns the last of these sites; ``None`` if there are no more.
        """
        lease = site_lease.c
        ended = lease.until <= now - REPORT_S
        unused = (
            _s.limits.is_(None),
            _s.crawl_delay.is_(None),
            _s.closures == 0,
            _s.closed_until <= now,
            _s.has_tickets == false(),
            *(~select(1).where(table.c.site == _s.site).exists() for table in _ABOUT_SITES),
        )
        page = select(_s.site).where(_s.site > after).order_by(_s.site).limit(CHUNK)
        with self._db.writing() as conn:
            names = conn.execute(page).scalars().all()
            lock_sites(conn, names)
            change_in(conn, delete(site_lease).where(ended), lease.site, names)
            change_in(conn, delete(site).where(*unused), _s.site, names)
        return names[-1] if names else None

    def _change(
        self, conn: Connection, name: str, values: Mapping[str, Any], by: str | None
    ) -> None:
        changed = {**values, "changed_at": self._clock(), "changed_by": by}
        change_site(conn, name, changed)


def _is_closed(row: Row, now: float) -> bool:
    return bool(row["closed_until"] > now or row["closures"])


def _closure(conn: Connection, name: str) -> dict[str, Any]:
    """Return what a new entry takes over from the closed site to which its hosts belong."""
    if name == DEFAULT:
        return {}
    [(former, _)] = entries_for(conn, [name.removeprefix("*.")]).values()
    row = conn.execute(select(site).where(_s.site == former)).mappings().one_or_none()
    if former == name or row is None or not _is_closed(row, db_now(conn)):
        return {}
    return {column: row[column] for column in CLOSURE}


def _own_limits(conn: Connection, name: str) -> SiteLimits | None:
    """Return the limits that people gave a site, whose row is locked.

    Raises ``NotInThisState`` for an entry of the settings.
    """
    row = lock_sites(conn, [name])[name]
    if row["origin"] == SETTINGS:
        raise NotInThisState(
            f"site {name} has its limits from LIFECYCLE_SITES; change them there, and restart the "
            "gateways"
        )
    return None if row["limits"] is None else SiteLimits.from_json(row["limits"])


def _record(conn: Connection, name: str, now: float, person: str, until: float) -> None:
    conn.execute(insert(site_block).values(site=name, at=now, person=person, closed_until=until))
