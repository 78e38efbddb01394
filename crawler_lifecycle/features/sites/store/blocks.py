"""Refused requests: how they close a site, and their record."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, false, insert, select

from crawler_lifecycle.store.engine import Database

from ..domain.closing import Block, SiteState, blocked
from ..domain.lanes import task_of
from ..domain.site import SiteLimits
from .entries import db_now
from .tables import site, site_block, site_lease

#: The columns of a site that describe its closure.
CLOSURE = ("closed_until", "closures", "closed_by", "closed_by_run", "closed_status")
#: Seconds in which a run that repeats a report adds no row.
REPEATED_S = 60.0


def close(
    state: SiteState, block: Block, limits: SiteLimits, now: float, run_id: int
) -> tuple[SiteState, dict[str, Any]]:
    """Return the state after a refused request of a run, and the columns that say who closed the
    site, if they change.
    """
    after = blocked(state, block, limits, now)
    if after.closures == state.closures:
        return after, {}
    by = {"closed_by_run": run_id, "closed_by": None, "closed_status": block.status}
    return after, by


def record_block(
    conn: Connection, name: str, task: tuple[int, int], block: Block, now: float, until: float
) -> None:
    """Record a refused request of a task, which has the number of its run and its index.

    ``until`` is the time until which the site is closed after it; 0 if the task could not close it.
    A run that repeats the same report adds no row for a minute.
    """
    run_id, index = task
    last = select(site_block).where(site_block.c.site == name)
    last = last.order_by(site_block.c.block_id.desc()).limit(1)
    before = conn.execute(last).mappings().one_or_none()
    if (
        before is not None
        and before["run_id"] == run_id
        and before["at"] > now - REPEATED_S
        and until - before["closed_until"] < 1.0
    ):
        return
    conn.execute(
        insert(site_block).values(
            site=name,
            at=now,
            run_id=run_id,
            task_index=index,
            status=block.status,
            retry_after_s=block.retry_after_s,
            closed_until=until,
        )
    )


def lanes_at_closed_sites(database: Database) -> dict[str, list[str]]:
    """Return the tasks that have lanes of closed sites and do not know it, with these sites.

    A task that has asked since then has returned its lanes, or they leave. Raises
    ``StoreUnavailable``.
    """
    lease = site_lease.c
    query = select(lease.holder, lease.site).join(site, site.c.site == lease.site)
    found: defaultdict[str, set[str]] = defaultdict(set)
    with database.reading() as conn:
        now = db_now(conn)
        query = query.where(
            site.c.closures > 0,
            site.c.closed_until > now,
            lease.until > now,
            lease.leaves == false(),
        )
        for holder, name in conn.execute(query):
            found[task_of(holder)].add(name)
    return {task: sorted(names) for task, names in found.items()}
