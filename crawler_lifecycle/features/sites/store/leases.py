"""The store of leases, across all gateways."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select, update

from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.store.base.bulk import change_in, chunks, insert_rows, rows_in
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.engine import Database
from crawler_lifecycle.store.runs.tables import run_history, task_history

from ..domain.closing import CLOSED_MAX_S, STRANGER_MAX_S, Block, SiteState, passed
from ..domain.lanes import (
    ASK_RANGE_S,
    LaneLease,
    LeaseRequest,
    Line,
    SteadyClock,
    Timetable,
    assign_lanes,
    lane_count,
    timetable_of,
    turn_s,
)
from ..domain.site import SiteLimits
from .blocks import close, record_block
from .entries import FRESH, change_site, db_now, entries_for, lock_sites
from .minutes import count_proxies, count_statuses
from .tables import run_robots, run_site, site, site_lease

#: Seconds for which the limits of a host are cached, and the maximum number of these hosts.
CACHE_S = 1.0
CACHE_MAX = 20_000
#: Seconds after which a task asks again about a site without limits, and about a closed one.
FREE_S = 60.0
CLOSED_S = 30.0
#: The maximum number of sites with a line of waiting tasks.
LINES_MAX = 20_000
#: Seconds after the end of a lease in which its task may still close the site, because the response
#: may be late, and the maximum number of such tasks at one site.
REPORT_S = 180.0
LEFT_MAX = 64
#: The number of the first row about a task that has left. A lane has a lower number.
_LEFT = 1000
_ALIVE = [status.value for status in TaskStatus if not status.terminal]
_LEASE = [column.name for column in fields(LaneLease)]


@dataclass(frozen=True, slots=True)
class SiteReport:
    """The demand of a task at one host, and its report since the last call."""

    host: str
    wanted: int
    kept: Collection[int] = ()
    block: Block | None = None
    passed: bool = False
    """True if the site answered a request."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """The number of responses by status; ``error`` counts requests without a response."""
    refused: int = 0
    """The number of requests that robots.txt did not allow."""
    proxies: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The part of ``statuses`` that came through each proxy."""

    @property
    def demand(self) -> SiteReport:
        """The demand without the report."""
        return SiteReport(self.host, self.wanted, self.kept)


@dataclass(frozen=True, slots=True)
class LeaseCall:
    """The reports of one task, by host as the task writes it.

    Without ``uid``, the task may belong to any run with this number. ``process`` distinguishes its
    processes.
    """

    run_id: int
    uid: str | None
    index: int
    attempt: int
    reports: Mapping[str, SiteReport]
    process: str = ""
    number: int | None = None
    """The number of the call, which a repetition of the call has, too."""

    @property
    def task(self) -> str:
        """The name of the task in leases."""
        return f"{self.run_id}.{self.index}.{self.attempt}"

    def at(self, host: str) -> str:
        """Return the holder of the lanes that this process of the task has at a host.

        A lane that two hosts or two processes shared would be used twice.
        """
        place = hashlib.sha256(f"{self.process} {host}".encode()).hexdigest()
        return f"{self.task}/{place[:12]}"

    @property
    def demand(self) -> LeaseCall:
        """The call without its reports, which have been counted."""
        demands = {host: report.demand for host, report in self.reports.items()}
        return replace(self, reports=demands)

    @property
    def only_renews(self) -> bool:
        """True if the task keeps working in the same way whenever the answer comes."""
        return all(
            report.kept and report.wanted <= len(report.kept) and report.block is None
            for report in self.reports.values()
        )


class HeldLane(NamedTuple):
    """A lane of a task."""

    lease: LaneLease
    timetable: Timetable
    leaves_s: float | None
    """Seconds after which no further request may begin; ``None`` if nobody is waiting."""


@dataclass(frozen=True, slots=True)
class SiteAnswer:
    """The lanes of a task at one site."""

    site: str
    free: bool = False
    """True if requests need no lane."""
    closed_s: float = 0.0
    probe: bool = False
    """True if one request decides whether the site opens."""
    exclusive: bool = True
    """True if a lane is busy until its request has ended."""
    lanes: Sequence[HeldLane] = ()
    now: float = 0.0
    ask_s: float = FREE_S
    """Seconds after which the task asks again."""


Answers = Mapping[str, SiteAnswer] | None
"""The answers to a call by host; ``None`` if the task does not execute any more."""


class LeaseStore:
    """The leases of all sites. Threads may not share it."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._entries: dict[str, tuple[float, str, SiteLimits]] = {}
        self._clock = SteadyClock()
        self._lines: dict[str, Line] = {}

    def answer(self, calls: Sequence[LeaseCall]) -> list[Answers]:
        """Return the answer to each call. One transaction answers all of them.

        Raises ``StoreUnavailable``.
        """
        return self._db.inserting("row of a site", lambda conn: self._answer(conn, calls))

    def _answer(self, conn: Connection, calls: Sequence[LeaseCall]) -> list[Answers]:
        executing = alive(conn, calls)
        accepted = [call for call in calls if call.task in executing]
        reports = [report for call in accepted for report in call.reports.values()]
        sites = self._sites(conn, {report.host for report in reports})
        asked: dict[str, dict[str, SiteReport]] = {}
        callers: dict[str, LeaseCall] = {}
        for call in accepted:
            for host, report in call.reports.items():
                holder = call.at(host)
                asked.setdefault(sites[report.host][0], {})[holder] = report
                callers[holder] = call
        limits = dict(sites.values())
        if len(self._lines) > LINES_MAX:
            self._lines.clear()
        batch = _Batch(conn, self._clock, self._lines, limits, asked, callers)
        answers = batch.answers()
        _count_refused(conn, accepted)
        return [
            {
                host: answers[sites[report.host][0]][call.at(host)]
                for host, report in call.reports.items()
            }
            if call.task in executing
            else None
            for call in calls
        ]

    def _sites(self, conn: Connection, hosts: Collection[str]) -> dict[str, tuple[str, SiteLimits]]:
        """Return the site and the limits of each host, which may be ``CACHE_S`` old."""
        now = time.monotonic()
        if len(self._entries) > CACHE_MAX:
            self._entries.clear()
        old = [host for host in hosts if self._entries.get(host, (0.0,))[0] < now - CACHE_S]
        for host, (name, limits) in entries_for(conn, old).items():
            self._entries[host] = now, name, limits
        return {host: self._entries[host][1:] for host in hosts}


def alive(conn: Connection, calls: Sequence[LeaseCall]) -> set[str]:
    """Return the names of the tasks that execute now."""
    t = task_history.c
    uids = {call.task: call.uid for call in calls}
    query = (
        select(t.run_id, t.task_index, t.attempt, run_history.c.run_uid)
        .join(run_history, run_history.c.run_id == t.run_id)
        .where(t.status.in_(_ALIVE), t.superseded_by.is_(None))
        .with_hint(task_history, "FORCE INDEX (uq_task_history_run_id_task_index_attempt)", "mysql")
    )
    found: set[str] = set()
    for chunk in chunks(sorted(calls, key=lambda call: call.run_id), 50):
        # This also reads some other tasks. With tuples, SQLite would read the whole table.
        indexes = {call.index for call in chunk}
        near = query.where(t.task_index.in_(sorted(indexes)))
        for row in rows_in(conn, near, t.run_id, {call.run_id for call in chunk}):
            task = f"{row['run_id']}.{row['task_index']}.{row['attempt']}"
            if task in uids and uids[task] in (None, row["run_uid"]):
                found.add(task)
    return found


def _count_refused(conn: Connection, calls: Iterable[LeaseCall]) -> None:
    """Count the requests that robots.txt did not allow, for runs that got one."""
    r = run_robots.c
    for call in calls:
        for report in call.reports.values():
            if report.refused:
                mine = update(run_robots).where(r.run_id == call.run_id, r.host == report.host)
                conn.execute(mine.values(refused=r.refused + report.refused))


class _Batch:
    """The work of one transaction: all sites about which tasks asked.

    ``asked`` has the reports by site and by the holder of the lanes, and ``calls`` the call of each
    holder.
    """

    def __init__(
        self,
        conn: Connection,
        clock: SteadyClock,
        lines: dict[str, Line],
        limits: Mapping[str, SiteLimits],
        asked: Mapping[str, Mapping[str, SiteReport]],
        calls: Mapping[str, LeaseCall],
    ) -> None:
        self._conn = conn
        self._clock = clock
        self._lines = lines
        self._steady = True
        self._limits = limits
        self._asked = asked
        self._calls = calls
        # The rows of sites with leases are read when they are locked.
        unleased = [name for name in asked if not limits[name].leased]
        rows = rows_in(conn, select(site), site.c.site, unleased)
        self._rows: dict[str, Row] = {row["site"]: row for row in rows}
        self._own = self._sites_of_runs()
        self._leases: dict[str, list[LaneLease]] = {}
        self._left: dict[str, list[LaneLease]] = {}
        self._new_leases: dict[str, list[LaneLease]] = {}

    def answers(self) -> dict[str, dict[str, SiteAnswer]]:
        """Write all changes, and return the answers by site and by holder."""
        conn = self._conn
        known = {name for name in self._asked if name in self._rows or self._is_own(name)}
        now = db_now(conn)
        shared = [name for name in self._asked if self._is_shared(name, now)]
        locked = lock_sites(conn, shared) if shared else {}
        sent = time.monotonic()
        now = db_now(conn)  # again, because the locks may have taken a while
        self._steady = self._clock.is_steady(now, sent, time.monotonic())
        for row in rows_in(conn, select(site_lease), site_lease.c.site, shared):
            lease = LaneLease(**{name: row[name] for name in _LEASE})
            found = self._leases if lease.lane < _LEFT else self._left
            found.setdefault(row["site"], []).append(lease)
        counted = {
            name: [report.statuses for report in self._asked[name].values()]
            for name in known | locked.keys()
        }
        count_statuses(conn, counted, now)
        proxies = {
            name: [report.proxies for report in self._asked[name].values() if report.proxies]
            for name in counted
        }
        count_proxies(conn, proxies, now)
        answers = {
            name: self._answer_shared(locked[name], now)
            if name in locked
            else self._answer_free(name, now)
            for name in self._asked
        }
        self._write_leases()
        return answers

    def _sites_of_runs(self) -> set[tuple[str, int]]:
        """Return the sites of the runs whose reports only count if they name the site, with the
        runs.
        """
        runs = {
            self._run_of(holder)
            for name, reports in self._asked.items()
            for holder, report in reports.items()
            if report.block or (report.statuses and not self._limits[name].leased)
        }
        query = select(run_site.c.site, run_site.c.run_id)
        return {
            (row["site"], row["run_id"])
            for row in rows_in(self._conn, query, run_site.c.run_id, runs)
        }

    def _is_own(self, name: str) -> bool:
        """Return whether the site is one of a run that asks about it."""
        return any((name, self._run_of(holder)) in self._own for holder in self._asked[name])

    def _run_of(self, holder: str) -> int:
        return self._calls[holder].run_id

    def _is_shared(self, name: str, now: float) -> bool:
        """Return whether the requests to this site depend on what other tasks do."""
        row = self._rows.get(name, FRESH)
        blocks = any(report.block for report in self._asked[name].values())
        return bool(
            self._limits[name].leased
            or row["closures"]
            or row["closed_until"] > now
            or (blocks and self._is_own(name))
        )

    def _answer_free(self, name: str, now: float) -> dict[str, SiteAnswer]:
        """Answer about a site without limits on requests that is not closed."""
        closed_s = self._limits[name].opens_at(now) - now
        for holder, report in self._asked[name].items():
            if report.block is not None:
                self._record_block(name, holder, report.block, now, 0.0)
        ask_s = min(closed_s, CLOSED_S) if closed_s else FREE_S
        answer = SiteAnswer(name, free=closed_s <= 0, closed_s=closed_s, now=now, ask_s=ask_s)
        return dict.fromkeys(self._asked[name], answer)

    def _answer_shared(self, row: Row, now: float) -> dict[str, SiteAnswer]:
        name = row["site"]
        limits = self._limits[name]
        reports = self._asked[name]
        leases = self._leases.get(name, [])
        changes = self._state(row, leases, now)
        state = SiteState(changes["closed_until"], changes["closures"])
        closed_s = max(state.closed_s(now), limits.opens_at(now) - now)
        probe = state.closures > 0
        lanes = self._lanes(limits, closed=closed_s > 0, probe=probe)
        # Nobody stands in line at a closed site.
        line = self._lines.setdefault(name, Line()) if lanes else Line()
        waited_until = min(row["lane_wanted_until"], now + 2 * ASK_RANGE_S[1])
        turn = turn_s(len(line), lanes)
        assigned = assign_lanes(
            leases,
            self._in_line(line, name),
            lanes,
            now,
            turn=turn,
            others_wait=waited_until > now,
        )
        after = assigned.leases
        served = {lease.holder for lease in after}
        pauses = {}
        for holder, report in reports.items():
            if holder in served or not report.wanted:
                line.leave(holder, served=holder in served)
            else:
                pauses[holder] = line.ask_s(holder, lanes, time.monotonic())
        if pauses and lanes:
            changes["lane_wanted_until"] = max(waited_until, now + 1.5 * max(pauses.values()))
        if any(row[column] != value for column, value in changes.items()):
            change_site(self._conn, name, changes)
        self._keep_leases(name, leases, after, now)
        common = SiteAnswer(
            name,
            free=not (limits.leased or closed_s or probe),
            closed_s=closed_s,
            probe=probe and not closed_s,
            exclusive=probe or limits.connections is not None,
            now=now,
        )
        answers = {}
        for holder, report in reports.items():
            mine = [lease for lease in after if lease.holder == holder]
            held = [
                HeldLane(
                    lease,
                    timetable_of(limits, lease.lane, now),
                    assigned.leaves_s(lease, turn, now),
                )
                for lease in mine
            ]
            ask_s = FREE_S
            if closed_s:
                ask_s = min(closed_s, CLOSED_S)
            elif mine:
                ask_s = assigned.renew_s
            elif report.wanted:
                ask_s = pauses[holder]
            answers[holder] = replace(common, lanes=held, ask_s=ask_s)
        return answers

    def _in_line(self, line: Line, name: str) -> Sequence[LeaseRequest]:
        """Return the requests at a site in the order of its line. Those without a lane join it."""
        now = time.monotonic()
        reports = self._asked[name]
        for holder, report in reports.items():
            if report.wanted and not report.kept:
                line.join(holder, now)
        requests = [
            LeaseRequest(holder, report.wanted, report.kept, line.ahead(holder, now))
            for holder, report in reports.items()
        ]
        return sorted(requests, key=lambda request: request.ahead)

    def _lanes(self, limits: SiteLimits, *, closed: bool, probe: bool) -> int:
        """Return the number of lanes that may be leased now."""
        if closed or not self._steady:
            return 0
        if probe:
            return 1
        return lane_count(limits) if limits.leased else 0

    def _state(self, row: Row, leases: Sequence[LaneLease], now: float) -> dict[str, Any]:
        """Return the columns of a site after the reports of tasks.

        Only a task that visits the site can close it, so that a task cannot close it for others.
        """
        name = row["site"]
        state = SiteState(row["closed_until"], row["closures"])
        changes: dict[str, Any] = {}
        holders = {lease.holder for lease in leases if lease.until > now}
        lately = (*self._left.get(name, ()), *leases)
        visitors = {lease.task for lease in lately if lease.until > now - REPORT_S}
        for holder, report in self._asked[name].items():
            call = self._calls[holder]
            if report.block is None:
                if report.passed and holder in holders:
                    state = passed(state, now)
                continue
            closed_until = 0.0
            is_own = (name, call.run_id) in self._own
            if is_own or call.task in visitors:
                most_s = CLOSED_MAX_S if is_own else STRANGER_MAX_S
                block = replace(report.block, most_s=most_s)
                state, closed_by = close(state, block, self._limits[name], now, call.run_id)
                changes |= closed_by
                closed_until = state.closed_until
            self._record_block(name, holder, report.block, now, closed_until)
        return {**changes, "closed_until": state.closed_until, "closures": state.closures}

    def _record_block(
        self, name: str, holder: str, block: Block, now: float, closed_until: float
    ) -> None:
        call = self._calls[holder]
        record_block(self._conn, name, (call.run_id, call.index), block, now, closed_until)

    def _keep_leases(
        self, name: str, before: Sequence[LaneLease], after: Sequence[LaneLease], now: float
    ) -> None:
        """Note the leases of a site if they differ, and the tasks that have left it in the last
        ``REPORT_S``.
        """
        if set(before) == set(after):
            return
        present = {lease.task for lease in after}
        left: dict[str, LaneLease] = {}
        for lease in (*self._left.get(name, ()), *before):
            until = min(lease.until, now)
            other = left.get(lease.task)
            is_latest = other is None or other.until < until
            if lease.task not in present and until > now - REPORT_S and is_latest:
                left[lease.task] = replace(lease, holder=lease.task, until=until)
        newest = sorted(left.values(), key=lambda lease: -lease.until)[:LEFT_MAX]
        rows = [replace(lease, lane=_LEFT + n) for n, lease in enumerate(newest)]
        self._new_leases[name] = [*after, *rows]

    def _write_leases(self) -> None:
        change_in(self._conn, delete(site_lease), site_lease.c.site, self._new_leases)
        rows = [
            (name, *(getattr(lease, column) for column in _LEASE))
            for name, leases in self._new_leases.items()
            for lease in leases
        ]
        insert_rows(self._conn, site_lease, ("site", *_LEASE), rows)
