"""Calls of runs that wait for slots of sites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, select, true, update

from crawler_lifecycle.domain.pools import CALL_S
from crawler_lifecycle.store.base.bulk import CHUNK, change_in, rows_in
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.runs.tables import LIVE_RUNS, run_history
from crawler_lifecycle.store.runs.tickets import SlotLines, late_rows, live_workflows

from ..domain.site import turns
from .entries import change_site, entries_for, lock_sites
from .slots import first_tickets, free_of
from .tables import run_site, site, site_ticket

#: The maximum number of sites with waiting runs that one turn reads, of sites whose runs it calls,
#: and of runs that it calls at once for each of them.
LINES = 500
SITES = 20
EACH = 10


class SiteCalls(SlotLines):
    """The calls of waiting runs, as used by workers."""

    line = site_ticket
    _after = ""
    """The site after which the next turn begins."""
    _entries: frozenset[tuple[str, datetime]] | None = None
    """The entries, with the times of their changes, when the sites of runs were compared with them.
    """

    def call(self) -> dict[int, str]:
        """Return the runs that get the free slots of sites, with their workflows.

        These runs must request the slots now. A run that does not request them in time is skipped,
        and called again later even if no slot is free. Runs that ended leave the line.
        """
        now = self._clock()
        with self._db.reading() as conn:
            names = self._free_lines(conn, now)
            late = [row.run_id for row in late_rows(conn, site_ticket, [site_ticket.c.run_id], now)]
        if not (names or late):
            return {}
        called = dict[int, str]()
        with self._db.writing() as conn:
            rows = lock_sites(conn, names)
            free = free_of(conn, [*rows.values()], now)
            for name, slots in free.items():
                called |= _next(conn, name, EACH if slots is None else slots, now)
            again = live_workflows(conn, site_ticket, late)
            # No slot is reserved for a run that is called again.
            for run_ids, at in ((called, now), (again, now - timedelta(seconds=CALL_S))):
                called_at = update(site_ticket).values(called_at=at)
                change_in(conn, called_at, site_ticket.c.run_id, run_ids)
        return called | again

    def _free_lines(self, conn: Connection, now: datetime) -> list[str]:
        """Return the next sites that have waiting runs and free slots."""
        s = site.c
        lines = select(s.site, s.limits, s.closed_until, s.closures)
        lines = lines.where(s.has_tickets == true(), s.site > self._after)
        # Without the hint, the optimizer may read all sites in the order of their names.
        lines = lines.with_hint(site, "FORCE INDEX (ix_site_has_tickets)", "mysql")
        rows = conn.execute(lines.order_by(s.site).limit(LINES)).mappings().all()
        free = free_of(conn, rows, now)
        names = [name for name, slots in free.items() if slots != 0]
        self._after = ""
        if len(names) > SITES:
            self._after = names[SITES - 1]
        elif len(rows) == LINES:
            self._after = rows[-1]["site"]
        return names[:SITES]

    def adopt(self) -> None:
        """Let the live runs belong to the sites that the present entries define for their hosts.

        This changes nothing unless an entry was changed since the last call. The times matter
        because another gateway may have removed an entry that exists again.
        """
        with self._db.reading() as conn:
            named = select(site.c.site, site.c.changed_at).where(site.c.limits.is_not(None))
            entries = frozenset(map(tuple, conn.execute(named)))
        after: int | None = None if entries == self._entries else 0
        while after is not None:
            after = self._adopt_page(after)
        self._entries = entries

    def _adopt_page(self, after: int) -> int | None:
        """Compare the next runs after this number. Returns the last of them; ``None`` if there are
        no more.
        """
        r = run_history.c
        live = select(r.run_id).where(r.status.in_(LIVE_RUNS), r.run_id > after)
        with self._db.writing() as conn:
            run_ids = conn.execute(live.order_by(r.run_id).limit(CHUNK)).scalars().all()
            _settle(conn, rows_in(conn, select(run_site), run_site.c.run_id, run_ids))
        return run_ids[-1] if run_ids else None


def _settle(conn: Connection, rows: Sequence[Row]) -> None:
    """Change the sites of these rows of ``run_site``, and of the tickets of their runs."""
    found = entries_for(conn, {row["host"] for row in rows}) if rows else {}
    moved = defaultdict[tuple[str, str, str], list[int]](list)
    for row in rows:
        name = found[row["host"]][0]
        if name != row["site"]:
            moved[row["host"], row["site"], name].append(row["run_id"])
    names = {name for _, _, name in moved}
    if not names:
        return
    lock_sites(conn, names)
    r = run_site.c
    t = site_ticket.c
    for (host, before, name), run_ids in moved.items():
        change_in(conn, update(run_site).where(r.host == host).values(site=name), r.run_id, run_ids)
        waiting = update(site_ticket).where(t.site == before).values(site=name)
        change_in(conn, waiting, t.run_id, run_ids)
    change_in(conn, update(site).values(has_tickets=True), site.c.site, names)


def _next(conn: Connection, name: str, free: int, now: datetime) -> dict[int, str]:
    """Return the runs that get free slots of a site and were not called yet, with their workflows.

    If no run waits, further turns leave out the site.
    """
    first = first_tickets(conn, name, min(free, EACH), now) if free else []
    if free and not first:
        waits = select(site_ticket.c.run_id).where(site_ticket.c.site == name).limit(1)
        if conn.execute(waits).first() is None:
            change_site(conn, name, {"has_tickets": False})
    workflows = live_workflows(conn, site_ticket, [ticket.run_id for ticket in first])
    line = [ticket for ticket in first if ticket.run_id in workflows]
    given = turns(line, free)
    return {
        ticket.run_id: workflows[ticket.run_id]
        for ticket in line
        if given[ticket.run_id] and ticket.to_call(now)
    }
