"""The files with the rules of sites, which one task fetches for all."""

from __future__ import annotations

import hashlib
import math
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, or_, select, update

from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.engine import Database
from crawler_lifecycle.store.runs.tables import LIVE_RUNS, run_history

from ..domain.robots import (
    CLAIM_S,
    FAILED_S,
    FILE_MAX,
    VALID_S,
    crawl_delay,
    has_rules,
    is_known,
    origin_of,
    tdm_policy,
    tdm_reservation,
)
from ..domain.site import SiteLimits
from .entries import db_now, entries_for, lock_sites, update_delays
from .leases import REPORT_S, LeaseCall, alive
from .tables import run_robots, run_site, site_lease, site_robots, text_of

#: The maximum number of hosts of a run whose robots.txt is recorded.
HOSTS_MAX = 1000
#: The maximum number of origins whose files the database keeps, of the bytes of these files, and
#: the seconds between two counts of them. Beyond that, each crawler requests the files itself.
ORIGINS_MAX = 50_000
BYTES_MAX = 1024**3
COUNT_S = 60.0
#: Seconds after which a task asks again while another task fetches the files.
WAIT_S = 0.5
_WHAT = "robots.txt of a site"
_NEW = {"claimed_by": "", "claimed_until": 0.0, "fetched_at": 0.0, "valid_until": 0.0}
_r = site_robots.c
_run = run_robots.c
_h = run_history.c


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """The response to a request for a file. ``status`` is ``None`` if there was none."""

    status: int | None
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class RobotsAnswer:
    """The robots.txt of an origin, or how a task gets it."""

    fetch: bool = False
    """True if this task fetches the files for all."""
    wait_s: float | None = None
    """Seconds after which the task asks again, because another task fetches them."""
    status: int | None = None
    """The status with which the site answered; ``None`` if its rules are unknown."""
    sha256: str | None = None
    body: bytes = b""
    delayed: bool = False
    """True if it contains a crawl delay, and requests to the site need a lane."""


class RobotsStore:
    """The files of all origins, for tasks."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._budget = FileBudget()

    def ask(self, task: LeaseCall, origin: str) -> RobotsAnswer | None:
        """Return what a task does about the files of an origin; ``None`` if the task does not
        execute any more.

        A run that does not name the site gets nothing if the site does not limit its requests. It
        does not fetch the files while runs of other projects name the site. Raises
        ``InvalidRequest``.
        """
        name, host = origin_of(origin)
        return self._db.inserting(_WHAT, lambda conn: _ask(conn, self._budget, task, name, host))

    def report(
        self,
        task: LeaseCall,
        origin: str,
        agent: str,
        robots: FetchedFile | None,
        tdm: FetchedFile | None,
    ) -> RobotsAnswer:
        """Record files that the task has fetched for all, and return what holds now.

        Raises ``NotInThisState`` unless the task has to fetch them now and may change the rules of
        the site for others. Raises ``InvalidRequest``.
        """
        name, host = origin_of(origin)
        found: dict[str, Any] = {"run_id": task.run_id}
        if robots is not None:
            found |= _columns_of(robots, agent)
        reservation = None if tdm is None else tdm_reservation(tdm.body)
        if reservation is not None:
            found |= {"tdm_reserved": reservation.reserved, "tdm_policy": reservation.policy}
        return self._db.inserting(
            _WHAT, lambda conn: _report(conn, self._budget, task, name, host, found)
        )

    def reserve(self, task: LeaseCall, origin: str, policy: str | None) -> RobotsAnswer:
        """Record that a response of an origin reserved the rights of text and data mining.

        Raises ``NotInThisState`` unless the task may change the rules of the site for others, and
        ``InvalidRequest``.
        """
        name, host = origin_of(origin)
        with self._db.writing() as conn:
            _check_visits(conn, task, entries_for(conn, [host])[host][0])
            reserved = update(site_robots).where(_r.origin == name)
            values = {"tdm_reserved": True, "tdm_policy": tdm_policy(policy)}
            conn.execute(reserved.values(**values))
        return RobotsAnswer()


class FileBudget:
    """The number of files that the database keeps, as far as one gateway knows. Threads may share
    it.
    """

    def __init__(self) -> None:
        self._counted_at = -math.inf
        self._origins = 0
        self._bytes = 0

    def has_room(self, conn: Connection, *, origins: int = 0, size: int = 0) -> bool:
        """Return whether the database may keep so many further origins and bytes, and then count
        them.
        """
        now = time.monotonic()
        if now - self._counted_at > COUNT_S:
            self._counted_at = now
            sums = select(func.count(_r.origin), func.coalesce(func.sum(_r.size), 0))
            self._origins, self._bytes = map(int, conn.execute(sums).one())
        if (origins and self._origins >= ORIGINS_MAX) or self._bytes + size > BYTES_MAX:
            return False
        self._origins += origins
        self._bytes += size
        return True


def _ask(
    conn: Connection, budget: FileBudget, task: LeaseCall, origin: str, host: str
) -> RobotsAnswer | None:
    if task.task not in alive(conn, [task]):
        return None
    now = db_now(conn)
    name, limits = entries_for(conn, [host])[host]
    is_own = _names(conn, task.run_id, name)
    if not (limits.leased or is_own):
        return RobotsAnswer()
    row = _row_of(conn, origin)
    # An entry may have moved the host to another site, which needs the delay, too.
    if (
        row is not None
        and row["site"] == name
        and row["fetched_at"] <= now < row["valid_until"]
        and not (is_own and _is_foreign(conn, row["run_id"], task.run_id, name))
    ):
        _join(conn, task, host)
        _record(conn, task, host, row)
        return _answer(row, limits)
    if row is None:
        if not budget.has_room(conn, origins=1):
            return RobotsAnswer()
        conn.execute(insert(site_robots).values(origin=origin, site=name, **_NEW))
    over = or_(
        _r.claimed_until <= now,
        _r.claimed_until > now + CLAIM_S,  # the clock was set back
        _r.claimed_by == task.task,
    )
    mine = update(site_robots).where(_r.origin == origin)
    claim = mine.where(over).values(claimed_by=task.task, claimed_until=now + CLAIM_S)
    claimed = conn.execute(claim).rowcount > 0
    if claimed and not is_own and _others_name(conn, task.run_id, name):
        conn.execute(mine.values(claimed_until=0.0))
        return RobotsAnswer()
    _join(conn, task, host)
    return RobotsAnswer(fetch=True) if claimed else RobotsAnswer(wait_s=WAIT_S)


def _report(
    conn: Connection,
    budget: FileBudget,
    task: LeaseCall,
    origin: str,
    host: str,
    found: Mapping[str, Any],
) -> RobotsAnswer:
    name = entries_for(conn, [host])[host][0]
    row = _row_of(conn, origin)
    sites = {name} if row is None else {name, row["site"]}
    lock_sites(conn, sites)
    now = db_now(conn)
    claimed = row is not None and row["claimed_by"] == task.task and row["claimed_until"] > now
    if not claimed or task.task not in alive(conn, [task]):
        raise NotInThisState(
            f"task {task.index} of run {task.run_id} does not fetch the files of {origin} now"
        )
    _check_visits(conn, task, name)
    changed = {**found, "site": name}
    if found.get("size") and not budget.has_room(conn, size=found["size"]):
        # Its rules are unknown to others. Without the file, they would allow everything.
        changed |= dict.fromkeys(("status", "sha256", "size", "body"))
    if "status" in changed:
        valid_s = VALID_S if is_known(changed["status"]) else FAILED_S
        changed |= {"fetched_at": now, "valid_until": now + valid_s}
    conn.execute(update(site_robots).where(_r.origin == origin).values(**changed))
    update_delays(conn, sites)
    [after] = conn.execute(select(site_robots).where(_r.origin == origin)).mappings()
    _record(conn, task, host, after)
    return _answer(after, entries_for(conn, [host])[host][1])


def _row_of(conn: Connection, origin: str) -> Row | None:
    query = select(site_robots).where(_r.origin == origin)
    return conn.execute(query).mappings().one_or_none()


def _names(conn: Connection, run_id: int, name: str) -> bool:
    """Return whether the site is one of the run."""
    mine = select(run_site.c.host).where(run_site.c.run_id == run_id, run_site.c.site == name)
    return conn.execute(mine.limit(1)).first() is not None


def _is_foreign(conn: Connection, fetched_by: int | None, run_id: int, name: str) -> bool:
    """Return whether another project fetched the files, with a run that does not name the site."""
    if fetched_by is None or _names(conn, fetched_by, name):
        return False
    projects = select(_h.project).where(_h.run_id.in_((fetched_by, run_id))).distinct()
    return len(conn.execute(projects).all()) > 1


def _others_name(conn: Connection, run_id: int, name: str) -> bool:
    """Return whether live runs of other projects than that of this run name the site."""
    project = select(_h.project).where(_h.run_id == run_id)
    others = select(_h.run_id).join(run_site, run_site.c.run_id == _h.run_id)
    others = others.where(
        _h.status.in_(LIVE_RUNS),
        _h.project != conn.execute(project).scalar_one(),
        run_site.c.site == name,
    )
    others = others.prefix_with("STRAIGHT_JOIN", dialect="mysql")
    return conn.execute(others.limit(1)).first() is not None


def _check_visits(conn: Connection, task: LeaseCall, name: str) -> None:
    """Raise ``NotInThisState`` unless the site is one of the run, or the task has a lane of it and
    no run of another project names it.
    """
    if _names(conn, task.run_id, name):
        return
    lease = site_lease.c
    mine = or_(lease.holder == task.task, lease.holder.startswith(f"{task.task}/"))
    held = select(lease.lane).where(lease.site == name, mine, lease.until > db_now(conn) - REPORT_S)
    if conn.execute(held.limit(1)).first() is None:
        raise NotInThisState(f"run {task.run_id} does not visit {name}; hold one of its lanes")
    if _others_name(conn, task.run_id, name):
        raise NotInThisState(
            f"runs of another project name {name}, and run {task.run_id} does not; start it with "
            "this site to share its robots.txt"
        )


def _columns_of(robots: FetchedFile, agent: str) -> dict[str, Any]:
    """Return the columns that an answer changes. An answer without rules keeps the last ones."""
    if not is_known(robots.status):
        return {"status": robots.status}
    if not has_rules(robots.status):
        rules = dict.fromkeys(("sha256", "size", "body", "crawl_delay"))
        return {"status": robots.status, **rules}
    body = robots.body[:FILE_MAX]
    return {
        "status": robots.status,
        "sha256": hashlib.sha256(body).hexdigest(),
        "size": len(body),
        "body": zlib.compress(body),
        "crawl_delay": crawl_delay(body, agent),
    }


def _answer(row: Row, limits: SiteLimits) -> RobotsAnswer:
    delayed = limits.leased and row["crawl_delay"] is not None
    if not is_known(row["status"]):
        return RobotsAnswer(delayed=delayed)
    return RobotsAnswer(
        status=row["status"], sha256=row["sha256"], body=text_of(row), delayed=delayed
    )


def _join(conn: Connection, task: LeaseCall, host: str) -> None:
    """Add a host to the record of a run.

    This locks the row of the run, so no row of a site may be locked before.
    """
    mine = select(_run.host).where(_run.run_id == task.run_id)
    if conn.execute(mine.where(_run.host == host)).first() is not None:
        return
    if len(conn.execute(mine.limit(HOSTS_MAX)).all()) < HOSTS_MAX:
        conn.execute(insert(run_robots).values(run_id=task.run_id, host=host, refused=0))


def _record(conn: Connection, task: LeaseCall, host: str, row: Row) -> None:
    """Record which robots.txt a run got for a host."""
    mine = update(run_robots).where(_run.run_id == task.run_id, _run.host == host)
    conn.execute(mine.values(sha256=row["sha256"], crawl_delay=row["crawl_delay"]))
