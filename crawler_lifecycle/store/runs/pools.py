"""The slots of pools: which runs hold them, which runs wait for them, and which run gets the next
slot.

Code that requests slots or calls a waiting run locks the row of ``pool_gate``, so that several
workers never assign a slot twice. Slots are counted from the rows of tasks, which polls keep up to
date (``domain/pools.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    union_all,
    update,
)

from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.pools import (
    CALL_S,
    DEFAULT,
    Gate,
    Pool,
    Pools,
    Share,
    Ticket,
    check_reserve,
)
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.domain.waiting import SLOT_WAIT, InLine
from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.ports.pools import PoolRow, SlotHolder
from crawler_lifecycle.store.base.bulk import change_in, put_row
from crawler_lifecycle.store.base.pools import UNREADABLE, stored_pool, with_stored
from crawler_lifecycle.store.base.rows import Row, made, seen
from crawler_lifecycle.store.columns import UtcTime

from .tables import LIVE_RUNS, pool_gate, pool_ticket, run_history, task_history
from .tickets import SlotLines, holds_slot, late_rows, live_workflows
from .unit import Unit

#: The maximum number of tickets per pool that are read for the decision about one run, and of
#: tickets of all pools that are read to call runs.
HEADS = 10
HEADS_OF_ALL = 200
#: The maximum number of tickets before a run that are counted for display.
AHEAD_MAX = 1000

_TICKET = [
    pool_ticket.c[name] for name in ("run_id", "pool", "priority", "since", "wanted", "called_at")
]
#: The origins of pools.
SETTINGS = "settings"
PEOPLE = "people"
#: The maximum number of things that an error names.
_SHOWN = 5
_EXECUTING = (TaskStatus.RUNNING, TaskStatus.STOPPING)
_STATE = select(pool_gate.c.state).where(pool_gate.c.id == 1)


def take_slots(unit: Unit, pools: Pools, wanted: int, most: int) -> int:
    """Take up to ``most`` slots for a run that wants ``wanted`` in total.

    Return the number of slots that it gets.

    A run that does not get all of them keeps its position in the line and waits until it is called
    (``PoolStore.call``). The same applies to a run that was not called while another run of the
    pool must be called first. That decision needs no lock.
    """
    name = pools.serving(unit.run["pool"], unit.run["project"])
    before = wait_of(unit.conn, unit.run_id)
    got = 0
    mine = ticket_of(unit, name, wanted, before)
    if (before and before["called_at"]) or _is_first(unit, mine):
        with _gate(unit.conn, pools, unit.now) as gate:
            others = [
                head
                for head in _heads(unit.conn, gate, unit.now, HEADS)
                if head.run_id != unit.run_id
            ]
            gate.sample(unit.now, gate.rivals([*others, mine]))
            got = min(gate.grant([*others, mine], unit.now).get(unit.run_id, 0), most)
            gate.share(name).given += got
    if wanted > got:
        unit.update_run(waiting_for=f"{SLOT_WAIT}{name}")
        _stay(
            unit,
            replace(mine, since=unit.now) if got else mine,
            wanted - got,
            None if got else before,
        )
    else:
        leave_line(unit)
    return got


def _is_first(unit: Unit, mine: Ticket) -> bool:
    """Return whether this run is the next one in its pool."""
    first = _first(unit.conn, [mine.pool], 1, unit.now)
    return not first or mine.order <= first[0].order


def note_refused(unit: Unit, pools: Pools, refused: int) -> None:
    """Record that the cluster accepts no more tasks than it has now.

    The run returns to the line.
    """
    name = pools.serving(unit.run["pool"], unit.run["project"])
    with _gate(unit.conn, pools, unit.now) as gate:
        gate.refused = (gate.busy(), unit.now)
        gate.share(name).given = max(0.0, gate.share(name).given - refused)
    before = wait_of(unit.conn, unit.run_id)
    _stay(unit, ticket_of(unit, name, refused, before), refused, before)


def wait_of(conn: Connection, run_id: int) -> Row | None:
    """Return the run's ticket with the facts about its wait for slots; ``None`` if the run is not
    waiting.
    """
    p = pool_ticket.c
    return (
        conn.execute(select(p.called_at, p.waits_since, p.since).where(p.run_id == run_id))
        .mappings()
        .one_or_none()
    )


def _stay(unit: Unit, ticket: Ticket, wanted: int, before: Row | None) -> None:
    """Keep the run in the line for this number of slots.

    If the run was not waiting ``before``, its wait starts now.
    """
    row = asdict(replace(ticket, wanted=wanted)) | {
        "waits_since": before["waits_since"] if before else unit.now
    }
    put_row(unit.conn, pool_ticket, {"run_id": row.pop("run_id")}, row)


def leave_line(unit: Unit) -> None:
    """Remove the run from the line for slots."""
    unit.conn.execute(delete(pool_ticket).where(pool_ticket.c.run_id == unit.run_id))


class PoolStore(SlotLines):
    """The pools, as used by workers that call waiting runs and as shown to people."""

    line = pool_ticket

    def adopt(self) -> None:
        """Let the pool ``default`` serve runs that are waiting for slots of pools that their
        project no longer has.
        """
        p = pool_ticket.c
        r = run_history.c
        with self._db.writing() as conn:
            named = with_stored(conn, self._pools).named
            owned = [
                and_(p.pool == name, r.project != of.project)
                for name, of in named.items()
                if of.project
            ]
            gone = or_(p.pool.not_in({DEFAULT, *named}), *owned)
            found = conn.execute(
                select(p.run_id).join(run_history, r.run_id == p.run_id).where(gone)
            ).scalars()
            change_in(conn, update(pool_ticket).values(pool=DEFAULT), p.run_id, found)

    def call(self) -> dict[int, str]:
        """Return the runs that get the free slots, with their workflows.

        These runs must request the slots now.

        A run that does not request slots in time is skipped, and no slot is reserved for the run.
        The call may have been lost, so the run is called again even if no slot is free. When the
        run makes a request, it gets its turn again. Runs that ended leave the line.
        """
        with self._db.reading() as conn:
            if conn.execute(select(pool_ticket.c.run_id).limit(1)).first() is None:
                return {}
        with self._db.writing() as conn:
            now = self._clock()
            with _gate(conn, self._pools, now) as gate:
                each = max(HEADS, HEADS_OF_ALL // len({DEFAULT, *gate.pools.named}))
                late = [Ticket(*row) for row in late_rows(conn, pool_ticket, _TICKET, now)]
                lines = _heads(conn, gate, now, each), late
                workflows = live_workflows(
                    conn, pool_ticket, [ticket.run_id for line in lines for ticket in line]
                )
                heads, passed = (
                    [ticket for ticket in line if ticket.run_id in workflows] for line in lines
                )
                gate.sample(now, gate.rivals([*heads, *passed]))
                granted = gate.grant(heads, now) | gate.grant(passed, now)
            to_call = [
                ticket.run_id
                for ticket in (*heads, *passed)
                if ticket.run_id in granted and ticket.to_call(now)
            ]
            again = [ticket.run_id for ticket in passed if ticket.run_id not in granted]
            for run_ids, at in (to_call, now), (again, now - timedelta(seconds=CALL_S)):
                change_in(
                    conn, update(pool_ticket).values(called_at=at), pool_ticket.c.run_id, run_ids
                )
        return {run_id: workflows[run_id] for run_id in (*to_call, *again)}

    def list_pools(self) -> list[PoolRow]:
        """Return all pools: those of the settings and of the database, and those whose slots runs
        hold or wait for.

        A caller with access to one project gets only the pools that this project may use, with the
        slots that runs of the project hold and wait for.
        """
        p = pool_ticket.c
        now = self._clock()
        waits = select(p.pool, func.count(), func.sum(p.wanted), func.min(p.waits_since)).group_by(
            p.pool
        )
        with self._db.reading() as conn:
            gate = _read_gate(conn, with_stored(conn, self._pools), now, own=True)
            c = stored_pool.c
            changes = conn.execute(select(c.name, c.changed_at, c.changed_by)).mappings()
            rows = {row["name"]: row for row in changes}
            waiting = {row[0]: tuple(row[1:]) for row in conn.execute(_own(waits, p.run_id))}
        known = gate.pools.of_project(only())
        # The sample adds pools that only have past use.
        names = sorted({DEFAULT, *known.named, *gate.held, *waiting})
        if only() is None:
            gate.sample(now, set(waiting))
        else:
            gate.shares.clear()  # the share of one pool would reveal how much other projects used
        used = sum(share.used for share in gate.shares.values())
        none = (0, 0, None)
        return [
            _pool_row(gate, known, name, used, waiting.get(name, none), rows.get(name))
            for name in names
        ]

    def set_pool(
        self, name: str, new: Pool, by: str | None, keep: Collection[str] = ()
    ) -> tuple[Pool | None, Pool]:
        """Create a pool, or change it. Returns the former and the present one.

        ``keep`` are the fields that an existing pool keeps. Nothing of an unreadable one is kept.
        Tasks keep their slots, also above a new maximum. Raises ``InvalidRequest`` if the change
        reserves too many slots or makes too many pools, and ``NotInThisState`` for a pool of the
        settings.
        """
        with self._db.writing() as conn:
            pools = self._locked(conn, name)
            before = pools.named.get(name)
            if before not in (None, UNREADABLE):
                new = replace(new, **{field: getattr(before, field) for field in keep})
            if before == new:
                return before, new
            check_reserve(new.max, new.reserved)
            replace(pools, named={**pools.named, name: new}).check_all(before=pools)
            values = {"document": asdict(new), "changed_at": self._clock(), "changed_by": by}
            put_row(conn, stored_pool, {"name": name}, values)
            return before, new

    def delete_pool(self, name: str, crawlers: Sequence[str]) -> Pool | None:
        """Delete a pool. Returns it; ``None`` if the database does not have it.

        Raises ``NotInThisState`` for a pool of the settings, and for one that live runs, these
        ``crawlers``, or anything else that starts runs later, name. Runs in ``default`` need no
        such row.
        """
        if name != DEFAULT and name not in self._pools.named:
            # All assignments of slots wait for the lock, so the long search comes before it.
            with self._db.reading() as conn:
                _check_unneeded(conn, name, crawlers)
        with self._db.writing() as conn:
            before = self._locked(conn, name).named.get(name)
            conn.execute(delete(stored_pool).where(stored_pool.c.name == name))
            return before

    def _locked(self, conn: Connection, name: str) -> Pools:
        """Lock the pools for a change of the one with this name, and return them.

        Raises ``NotInThisState`` for a pool of the settings.
        """
        if name in self._pools.named:
            raise NotInThisState(
                f"pool {name!r} is set by LIFECYCLE_POOLS; change it there, and restart all "
                "processes"
            )
        _lock_gate(conn)
        return with_stored(conn, self._pools)

    def slot_holders(self, pool: str, limit: int) -> list[SlotHolder]:
        """Return the runs that hold the most slots of a pool, at most ``limit`` of them.

        A caller with access to one project gets only runs of this project.
        """
        t = task_history.c
        r = run_history.c
        with self._db.reading() as conn:
            named = sorted(with_stored(conn, self._pools).named.keys() - {DEFAULT})
        # The pool ``default`` also serves the runs of pools that are no longer there.
        is_here = t.pool == pool if pool in named else func.coalesce(t.pool, "").not_in(named)
        tasks = [select(t.run_id).where(kind, is_here) for kind in holds_slot(self._clock())]
        held = union_all(*tasks).subquery("held")
        slots = func.count().label("slots")
        query = select(r.run_id, r.attempt, r.crawler, r.parent, r.stop_requested_at, slots)
        query = query.join(held, held.c.run_id == r.run_id).where(*seen(run_history))
        query = query.group_by(r.run_id).order_by(slots.desc(), r.run_id).limit(limit)
        return self._made(SlotHolder, query)

    def in_line(self, run_id: int) -> InLine | None:
        """Return the position of a run in the line of its pool; ``None`` if the run is unknown or
        is not waiting for a slot.

        A caller with access to one project gets positions only for runs of this project, but
        ``about_s`` includes runs of other projects. At most ``AHEAD_MAX`` tickets of each kind
        before the run are counted.
        """
        p = pool_ticket.c
        now = self._clock()
        with self._db.reading() as conn:
            pools = with_stored(conn, self._pools)
            if not pools.counted:
                return None
            row = (
                conn.execute(_own(select(*_TICKET), p.run_id).where(p.run_id == run_id))
                .mappings()
                .one_or_none()
            )
            if row is None:
                return None
            mine = made(Ticket, row)
            gate = held = _read_gate(conn, pools, now)
            urgent = and_(p.pool == mine.pool, p.priority < mine.priority)
            same = and_(p.pool == mine.pool, p.priority == mine.priority)
            older = and_(
                same, or_(p.since < mine.since, and_(p.since == mine.since, p.run_id < run_id))
            )

            def ahead(query: Select[Any]) -> list[int]:
                first, earlier = (
                    conn.execute(query.where(kind).limit(AHEAD_MAX)).scalars().all()
                    for kind in (urgent, older)
                )
                # A more urgent run gets all its slots first. Every other run gets one slot in each
                # turn.
                return [sum(first), len(earlier)]

            everybody = own = ahead(select(p.wanted))
            if only() is not None:
                held = _read_gate(conn, pools, now, own=True)
                own = ahead(_own(select(p.wanted), p.run_id))
        name = mine.pool
        pool = pools.of(mine.pool)
        rate = (
            gate.holds(name).all / gate.hold_s(name)[name] if gate.share(name).given >= 1 else 0.0
        )
        return InLine(
            pool=name,
            in_use=held.holds(name).all,
            most=pool.max if pools.told(name) else None,
            urgent=own[0],
            older=own[1],
            about_s=(sum(everybody) + 1) / rate if rate else None,
            shut=pools.shut(name),
            shared=not pools.told(name),
        )


def _pool_row(
    gate: Gate,
    known: Pools,
    name: str,
    used: float,
    waiting: tuple[int, int, datetime | None],
    row: Row | None,
) -> PoolRow:
    """Return a pool. ``known`` are those that the caller may use. ``used`` is the use of all pools
    in the last hour, ``waiting`` the numbers of runs and tasks that wait, and since when, and
    ``row`` is the row of the pool, if it has one.
    """
    pools = gate.pools
    share = gate.share(name)
    runs, tasks, oldest_wait_at = waiting
    is_set = name in known.named and name in pools.named
    origin: dict[str, Any] = {"origin": SETTINGS if is_set else None}
    if row is not None and name in known.stored:
        by = row["changed_by"] if only() is None else None
        origin = {"origin": PEOPLE, "changed_at": row["changed_at"], "changed_by": by}
    problem = None
    if pools.of(name) == UNREADABLE:
        problem = (
            f"the limits of pool {name} in the database cannot be read, so it gives no slots; set "
            f"it again (crawlctl pool set {name})"
        )
    elif pools.shut(name):
        problem = (
            f"all slots are reserved for other pools: runs of pool {name} never start; "
            "reserve fewer slots, or add slots"
        )
    elif name != DEFAULT and name not in known.named:
        problem = (
            f"there is no pool {name!r}: {DEFAULT} serves its runs; add the pool "
            "again, or give the runs another pool"
        )
    elif gate.fingerprint not in (None, pools.fingerprint):
        problem = (
            "a worker assigned slots with a different value of LIFECYCLE_POOLS; give all "
            "processes the same value, and restart them"
        )
    limits = asdict(known.of(name))
    if not pools.told(name):
        # Slots held by its own runs are not compared with a limit that applies to all projects
        # together.
        limits["max"] = None
    holder = gate.holds(name)
    return PoolRow(
        name=name,
        **limits,
        in_use=holder.all,
        executing=holder.executing,
        waiting_runs=runs,
        waiting_tasks=int(tasks),
        oldest_wait_at=oldest_wait_at,
        share=round(share.used / used, 4) if used else None,
        problem=problem,
        **origin,
    )


def _own(query: Select[Any], run_id: ColumnElement[int]) -> Select[Any]:
    """Limit a query to runs of the caller's project.

    Rows of runs are looked up one by one, so that the database never reads all runs.
    """
    if not (mine := seen(run_history)):
        return query
    return (
        query.join(run_history, run_history.c.run_id == run_id)
        .where(*mine)
        .prefix_with("STRAIGHT_JOIN", dialect="mysql")
    )


def priority_of(unit: Unit) -> int:
    """Return the priority of the run, from 1 to 5."""
    return int(unit.run["request"].get("priority") or 3)


def ticket_of(unit: Unit, pool: str, wanted: int, before: Row | None) -> Ticket:
    """Return the ticket of a run, which keeps its position from ``before``.

    A run that newly joins the line and holds slots comes last.
    """
    if before is not None:
        since = before["since"]
    elif unit.counts().active:
        since = unit.now
    else:
        since = unit.run["attempt_at"] or unit.run["created_at"]
    return Ticket(unit.run_id, pool, priority_of(unit), since, wanted)


@contextmanager
def _gate(conn: Connection, pools: Pools, now: datetime) -> Iterator[Gate]:
    """Lock the gate until the end of the transaction, and write its state."""
    gate = _read_gate(conn, pools, now, lock=True)
    yield gate
    conn.execute(update(pool_gate).where(pool_gate.c.id == 1).values(state=_state(gate)))


def _read_gate(
    conn: Connection, pools: Pools, now: datetime, *, lock: bool = False, own: bool = False
) -> Gate:
    """Return the gate. If ``own`` is true, the gate counts only slots that runs of the caller's
    project hold.
    """
    if lock:
        state = _lock_gate(conn)
        # A pool that was changed while this transaction waited counts already.
        pools = with_stored(conn, pools)
    else:
        state = conn.execute(_STATE).scalar_one_or_none()
    gate = _restored(state or {}, pools)
    t = task_history.c
    columns = (t.status, t.pool, t.priority)
    held = [
        select(*columns, func.count()).where(kind).group_by(*columns) for kind in holds_slot(now)
    ]
    whole = union_all(*(_own(kind, t.run_id) if own else kind for kind in held))
    for status, pool, priority, count in conn.execute(whole):
        name = pools.serving(pool or DEFAULT)
        if status in _EXECUTING:
            gate.holds(name).executing += count
        else:
            gate.take(name, priority or 3, count)
    return gate


def _lock_gate(conn: Connection) -> Mapping[str, Any] | None:
    """Lock the gate until the end of the transaction, and return its state."""
    state: Mapping[str, Any] | None = conn.execute(_STATE.with_for_update()).scalar_one_or_none()
    if state is None:  # a manual edit removed the row
        conn.execute(insert(pool_gate).values(id=1, state={}))
    return state


def _check_unneeded(conn: Connection, name: str, crawlers: Sequence[str]) -> None:
    """Raise ``NotInThisState`` if live runs, these ``crawlers``, or anything else that starts runs
    later, name a pool.
    """
    r = run_history.c
    live = select(r.run_id).where(r.pool == name, r.status.in_(LIVE_RUNS)).order_by(r.run_id)
    names = [f"run {run_id}" for run_id in conn.execute(live.limit(_SHOWN + 1)).scalars()]
    names += [f"crawler {crawler}" for crawler in crawlers]
    for feature in FEATURES:
        if feature.names_pool:
            names += feature.load(feature.names_pool)(conn, name)
    if names:
        more = " and others" if len(names) > _SHOWN else ""
        raise NotInThisState(
            f"pool {name!r} is named by {', '.join(names[:_SHOWN])}{more}; change or end them first"
        )


def _state(gate: Gate) -> dict[str, Any]:
    refused = None if gate.refused is None else [gate.refused[0], gate.refused[1].isoformat()]
    sampled_at = None if gate.sampled_at is None else gate.sampled_at.isoformat()
    shares = {
        name: [round(v, 3) for v in asdict(share).values()] for name, share in gate.shares.items()
    }
    return {
        "sampled_at": sampled_at,
        "refused": refused,
        "shares": shares,
        "pools": gate.pools.fingerprint,
    }


def _restored(state: Mapping[str, Any], pools: Pools) -> Gate:
    """Return the gate for a stored state.

    The shares start from the beginning if a manual edit made the state unreadable.
    """
    try:
        at = state.get("sampled_at")
        refused = state.get("refused")
        return Gate(
            pools,
            {
                str(name): Share(*map(float, values))
                for name, values in state.get("shares", {}).items()
            },
            sampled_at=None if at is None else datetime.fromisoformat(at),
            refused=None
            if refused is None
            else (int(refused[0]), datetime.fromisoformat(refused[1])),
            fingerprint=state.get("pools"),
        )
    except (TypeError, ValueError, AttributeError, IndexError, KeyError):
        return Gate(pools)


def _heads(conn: Connection, gate: Gate, now: datetime, each: int) -> list[Ticket]:
    """Return the first tickets of each pool, at most as many as there are free slots."""
    return _first(conn, {DEFAULT, *gate.pools.named}, max(1, min(each, gate.free(now))), now)


def _first(conn: Connection, pools: Collection[str], each: int, now: datetime) -> list[Ticket]:
    """Return the first tickets of these pools, the most urgent and oldest first, excluding runs
    that did not respond to their call.
    """
    times = {"since": now - timedelta(seconds=CALL_S), "until": now + timedelta(seconds=CALL_S)}
    rows = conn.execute(_first_query(tuple(sorted(pools))), {"each": each, **times})
    return [Ticket(*row) for row in rows]


@functools.cache
def _first_query(pools: tuple[str, ...]) -> CompoundSelect[Any]:
    p = pool_ticket.c
    since, until = (bindparam(name, type_=UtcTime) for name in ("since", "until"))
    came = or_(p.called_at.is_(None), and_(p.called_at > since, p.called_at < until))
    first = (
        select(*_TICKET)
        .where(came)
        .order_by(p.priority, p.since, p.run_id)
        .limit(bindparam("each"))
    )
    return union_all(*(select(first.where(p.pool == name).subquery("head")) for name in pools))
