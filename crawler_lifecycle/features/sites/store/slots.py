"""The slots of sites: which runs hold them, how many are free, and which runs come first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, func, literal, or_, select, union_all

from crawler_lifecycle.domain.pools import CALL_S, Ticket
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.runs.tables import task_history
from crawler_lifecycle.store.runs.tickets import holds_slot

from ..domain.site import DEFAULT, UNLIMITED, SiteLimits, free_slots
from .entries import db_now
from .tables import run_site, site, site_ticket

_TICKET = [
    site_ticket.c[name] for name in ("run_id", "site", "priority", "since", "wanted", "called_at")
]


def tasks_of(conn: Connection, names: Collection[str], now: datetime) -> dict[str, Counter[int]]:
    """Return for each of these sites the number of tasks that hold a slot, by run.

    The database reads only the tasks that hold a slot of any site, and looks up the sites of their
    runs.
    """
    t = task_history.c
    held = [
        select(literal(n).label("kind"), t.run_id, func.count().label("tasks"))
        .where(kind)
        .group_by(t.run_id)
        for n, kind in enumerate(holds_slot(now))
    ]
    holder = union_all(*held).subquery("holder")
    # A run can have several hosts of one site, so the kind keeps its two counts apart.
    query = (
        select(run_site.c.site, holder.c.run_id, holder.c.kind, holder.c.tasks)
        .select_from(holder.join(run_site, run_site.c.run_id == holder.c.run_id))
        .prefix_with("STRAIGHT_JOIN", dialect="mysql")
    )
    found = {name: Counter[int]() for name in names}
    for name, run_id, _, tasks in set(map(tuple, conn.execute(query))) if names else ():
        if name in found:
            found[name][run_id] += tasks
    return found


def limits_of(conn: Connection, rows: Iterable[Row]) -> dict[str, SiteLimits]:
    """Return the limits of these rows of ``site``. A site without an entry has those of ``*``."""
    default = conn.execute(select(site.c.limits).where(site.c.site == DEFAULT)).scalar_one_or_none()
    others = UNLIMITED if default is None else SiteLimits.from_json(default)
    return {
        row["site"]: others if row["limits"] is None else SiteLimits.from_json(row["limits"])
        for row in rows
    }


def free_of(conn: Connection, rows: Sequence[Row], at: datetime) -> dict[str, int | None]:
    """Return how many further tasks the site of each row allows; ``None`` for any number.

    ``at`` is our time, which offers of tasks use.
    """
    if not rows:
        return {}
    now = db_now(conn)
    limits = limits_of(conn, rows)
    shut = {
        row["site"]: limits[row["site"]].opens_at(now, row["closed_until"]) > now for row in rows
    }
    held = tasks_of(conn, [name for name in limits if not shut[name]], at)
    free = dict[str, int | None]()
    for row in rows:
        name = row["site"]
        tasks = held[name].total() if name in held else 0
        free[name] = 0 if shut[name] else free_slots(limits[name], row["closures"], tasks)
    return free


def first_tickets(conn: Connection, name: str, most: int, now: datetime) -> list[Ticket]:
    """Return the first tickets of a site, the most urgent and oldest first, excluding runs that
    did not respond to their call.
    """
    s = site_ticket.c
    late = timedelta(seconds=CALL_S)
    came = or_(s.called_at.is_(None), and_(s.called_at > now - late, s.called_at < now + late))
    first = select(*_TICKET).where(s.site == name, came)
    first = first.order_by(s.priority, s.since, s.run_id).limit(most)
    return [Ticket(*row) for row in conn.execute(first)]
