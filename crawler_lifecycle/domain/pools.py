"""Pools: the rules by which a task gets the next slot. A task holds a slot from the moment when it
is offered to the scheduler service until a poll records its end. Used slots are counted from the
rows of tasks, and never kept in a counter. Pools below their reserve come first. Then come the runs
with the highest priority, and then the pool with the smallest share relative to its weight. Within
a pool, runs of the same priority take turns.

The share of a pool is a virtual time, as in weighted fair queueing: the time advances by the
slot-seconds that the pool used, divided by the pool's weight. A pool without waiting runs earns no
credit.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

from .bounds import refusal
from .errors import InvalidRequest
from .names import CRAWLER_NAME
from .projects import only
from .unknown import suggest

#: The pool of runs whose request and crawler name no pool.
DEFAULT = "default"
#: Names of pools follow the same rule as names of crawlers.
POOL_NAME = CRAWLER_NAME
#: The maximum number of pools in an installation. One decision reads the first waiting runs in each
#: pool.
POOLS_MAX = 100
#: The maximum number of slots that one decision gives.
BATCH = 100
#: Seconds for which slots are reserved for a run after the run was called. Then the next run gets
#: these slots.
CALL_S = 10.0
#: Seconds after which a run that did not respond is called again.
RECALL_S = 30.0
#: Seconds in which the weight of past use decays to 1/e. This period is called "the last hour".
WINDOW_S = 3600.0
#: The maximum time between two samples that is charged, in seconds. This limits the effect of a
#: clock that was set forward.
STEP_MAX_S = 60.0
#: Seconds after which one more slot is tried than the number at which the cluster refused a task.
#: The number of additional slots then doubles each time.
PROBE_S = 15.0
#: The expected seconds for which a task holds its slot if no pool has a history. In the mean of a
#: pool, this value and the mean of all pools each count as one task.
_HOLD_S = 30.0


@dataclass(frozen=True, slots=True)
class Pool:
    """The settings of one pool."""

    max: int | None = None
    """The maximum number of slots at once."""
    weight: float = 1.0
    reserved: int = 0
    """The number of slots that other pools leave free for this pool."""
    queue: str | None = None
    """The Kueue queue for the pool's Jobs. Kueue then decides which Jobs start, and our slots are
    not counted."""
    project: str | None = None
    """The only project whose runs may be in this pool, or ``None`` if runs of every project may."""


def check_reserve(most: int | None, reserved: int) -> None:
    """Raise ``InvalidRequest`` if a pool with this maximum cannot reserve this many slots."""
    if most is not None and reserved > most:
        raise InvalidRequest(
            f"reserved: {reserved} is above max: {most}; reserve fewer, or raise max"
        )


@dataclass(frozen=True)
class Pools:
    """The pools of an installation, and the slots of its cluster."""

    named: Mapping[str, Pool] = field(default_factory=dict)
    slots: int | None = None
    """The number of tasks that the cluster executes at once, or ``None`` if unknown."""
    surplus: int = 0
    """The number of tasks of each priority that may wait on the cluster itself, so that a free slot
    is never idle. The number is 0 if a pool has a reserve, because the waiting tasks would use
    reserved slots.
    """
    window: int | None = None
    """The number of tasks of a run that may wait on a full cluster, so that its scheduler chooses
    among equally many tasks of each run. ``None`` means any number, as always with pools.
    """

    stored: frozenset[str] = frozenset()
    """The names of those that people set in the database. All others come from the settings."""

    def __post_init__(self) -> None:
        if any(pool.reserved for pool in self.named.values()):
            object.__setattr__(self, "surplus", 0)
        if self.named:
            object.__setattr__(self, "window", None)

    def with_stored(self, stored: Mapping[str, Pool]) -> Pools:
        """Return the pools of the settings, and these of the database in place of those so far. A
        pool of the settings hides one of the same name.
        """
        configured = {n: pool for n, pool in self.named.items() if n not in self.stored}
        names = frozenset(stored.keys() - configured.keys())
        return replace(self, named={**stored, **configured}, stored=names)

    def check_all(self, prefix: str = "", before: Pools | None = None) -> None:
        """Raise ``InvalidRequest`` if the pools cannot be used together. ``prefix`` is put before
        the names of fields. A change from the pools ``before`` may keep what was already too much,
        so that people can correct one pool after the other.
        """
        former = before or NO_POOLS
        if len(self.named) > max(POOLS_MAX, len(former.named)):
            raise InvalidRequest(
                f"{prefix}{len(self.named)} pools are too many; at most {POOLS_MAX} are allowed, "
                "so delete some"
            )
        reserved = self._all_reserved()
        if self.slots is not None and reserved > max(self.slots, former._all_reserved()):
            raise InvalidRequest(
                f"{prefix}reserved: {reserved} slots in total are too many for {self.slots} slots; "
                "reserve fewer, or raise LIFECYCLE_CLUSTER__SLOTS"
            )
        if (own := self.of(DEFAULT).project) is not None:
            raise refusal(
                f"{prefix}{DEFAULT}: project",
                own,
                f"{DEFAULT} serves every project; leave it out, and give the project another pool",
            )

    def _all_reserved(self) -> int:
        return sum(pool.reserved for pool in self.named.values())

    @property
    def counted(self) -> bool:
        """True if the installation has pools, so that this service assigns the slots."""
        return bool(self.named)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A short string that changes whenever the pools of the settings change."""
        named = {n: asdict(pool) for n, pool in self.named.items() if n not in self.stored}
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]

    def serving(self, name: str, project: str | None = None) -> str:
        """Return the pool that serves runs in this pool. That pool is ``default`` if the project
        can no longer use this one.
        """
        return name if name in self.of_project(project).named else DEFAULT

    def of(self, name: str) -> Pool:
        """Return the settings of a pool."""
        return self.named.get(name, _PLAIN)

    def of_project(self, project: str | None) -> Pools:
        """Return the pools that this project may use, or ``None`` for all pools."""
        if project is None or not self.counted:
            return self
        # ``default`` is included, so slots stay counted if the project has no other pool.
        named = {DEFAULT: _PLAIN, **self.named}
        return replace(self, named={n: p for n, p in named.items() if p.project in (None, project)})

    def told(self, name: str) -> bool:
        """Return whether the present caller may see all use of a pool. This requires that the pool
        contains no runs of projects that are hidden from the caller.
        """
        return only() in (None, self.of(name).project)

    def shut(self, name: str) -> bool:
        """Return whether other pools reserve every slot, so that tasks in this pool can never
        begin.
        """
        others = sum(pool.reserved for known, pool in self.named.items() if known != name)
        return (
            self.slots is not None
            and self.of(name).queue is None
            and others >= self.slots + self.surplus
        )

    def check(self, name: str | None, project: str | None = None) -> None:
        """Raise ``InvalidRequest`` unless runs of this project may be started in this pool.

        ``None`` stands for any project.
        """
        known = {DEFAULT, *self.of_project(project).named}
        if name is not None and name not in known:
            advice = suggest(name, sorted(known))
            raise refusal("pool", name, f"there is no such pool; {advice}")


_PLAIN = Pool()
#: An installation without pools. Nothing is counted, and each cluster keeps its own order.
NO_POOLS = Pools()


@dataclass(frozen=True, slots=True)
class Ticket:
    """A run that waits for slots."""

    run_id: int
    pool: str
    priority: int
    since: datetime
    """The time at which the run last received a slot or, for a run that never received one, its
    start time."""
    wanted: int
    """The number of slots that the run needs."""
    called_at: datetime | None = None
    """The time at which the run was called, if it has not responded since that time."""

    @property
    def order(self) -> tuple[int, datetime, int]:
        """The position in the pool's line: among the most urgent runs, the run that has waited
        longest comes first.
        """
        return self.priority, self.since, self.run_id

    def to_call(self, now: datetime) -> bool:
        """Return whether the run must be called, for the first time or again."""
        return self.called_at is None or abs((now - self.called_at).total_seconds()) >= RECALL_S


@dataclass(slots=True)
class PoolUsage:
    """The slots that one pool currently holds."""

    executing: int = 0
    waiting: dict[int, int] = field(default_factory=dict)
    """Priority -> the number of tasks that were offered or created and are not executing yet."""

    @property
    def all(self) -> int:
        return self.executing + sum(self.waiting.values())

    def until(self, priority: int) -> int:
        """Return the number of slots, excluding the slots of less urgent tasks that are not
        executing yet."""
        return self.executing + sum(
            count for level, count in self.waiting.items() if level <= priority
        )


@dataclass(slots=True)
class Share:
    """The use of one pool so far."""

    clock: float = 0.0
    """The virtual time: slot-seconds divided by the weight, relative to the pool that is furthest
    behind.
    """
    used: float = 0.0
    """Slot-seconds in the last hour, with a weight that decreases with age."""
    given: float = 0.0
    """Slots that were given in the last hour, with the same weights."""


@dataclass(slots=True)
class Gate:
    """The state from which slots are assigned: the slots that each pool holds, and its use so
    far."""

    pools: Pools
    shares: dict[str, Share] = field(default_factory=dict)
    held: dict[str, PoolUsage] = field(default_factory=dict)
    sampled_at: datetime | None = None
    refused: tuple[int, datetime] | None = None
    """The number of slots at which the cluster last refused a task, and the time."""
    fingerprint: str | None = None
    """The pools with which slots were last given."""

    def share(self, pool: str) -> Share:
        return self.shares.setdefault(pool, Share())

    def holds(self, pool: str) -> PoolUsage:
        return self.held.setdefault(pool, PoolUsage())

    def busy(self, priority: int = 5) -> int:
        """Return how many slots of the cluster are not available to tasks with this priority. Tasks
        that Kueue holds back occupy no slots.
        """
        pools = self.pools
        return sum(
            holder.executing if pools.of(n).queue else holder.until(priority)
            for n, holder in self.held.items()
        )

    def hold_s(self, *pools: str) -> dict[str, float]:
        """Return, for each of these pools, the expected seconds for which a task holds its slot."""
        mean = (sum(share.used for share in self.shares.values()) + _HOLD_S) / (
            sum(map(self._ended, self.shares)) + 1
        )
        return {
            name: max((self.share(name).used + mean) / (self._ended(name) + 1), 1.0)
            for name in pools
        }

    def _ended(self, pool: str) -> float:
        """Return the number of slots that were assigned in the last hour and are free again. From
        this number and all use until now, the mean time of a task can be computed, even while tasks
        are executing.
        """
        return max(self.share(pool).given - self.holds(pool).all, 0.0)

    def sample(self, now: datetime, waiting: Collection[str]) -> None:
        """Add to each pool's use the slots that the pool has held since the last sample.

        ``waiting`` contains the pools that ``rivals`` returned.
        """
        passed = (now - self.sampled_at).total_seconds() if self.sampled_at else 0.0
        step = min(max(passed, 0.0), STEP_MAX_S)
        self.sampled_at = now
        # After a clock was set back, the next try must not wait until the clock reaches the old
        # time.
        if self.refused is not None:
            self.refused = (self.refused[0], min(self.refused[1], now))
        fades = math.exp(-max(passed, 0.0) / WINDOW_S)
        for name in {*self.shares, *self.held}:
            share = self.share(name)
            weight = self.pools.of(name).weight
            held = self.holds(name)
            # A task that is waiting on the cluster itself, or that Kueue holds back, uses nothing
            # on the cluster.
            count = held.executing if self.pools.surplus or self.pools.of(name).queue else held.all
            share.used = share.used * fades + count * step
            share.given *= fades
            share.clock += count * step / weight
        behind = min((self.share(name).clock for name in waiting), default=math.inf)
        for name, share in self.shares.items():
            # No credit is saved up: a pool without waiting runs is set to the level of the waiting
            # pool that is furthest behind.
            share.clock = 0.0 if behind == math.inf else share.clock - behind
            if name not in waiting:
                share.clock = max(share.clock, 0.0)
        self.shares = {
            name: share
            for name, share in self.shares.items()
            if share.used > 0.5 or name in waiting
        }

    def rivals(self, tickets: Sequence[Ticket]) -> set[str]:
        """Return the pools whose shares are compared now. A pool that is at its ``max`` or has only
        less urgent runs does not count as behind. Such a pool would never catch up, and each pool
        that begins to wait would start at this low level and get all slots until it has caught up
        with the other pools.
        """
        may = []
        for ticket in tickets:
            most = self.pools.of(ticket.pool).max
            if most is None or self.holds(ticket.pool).all < most:
                may.append(ticket)
        best = min((ticket.priority for ticket in may), default=0)
        return {ticket.pool for ticket in may if ticket.priority == best}

    def places(self, now: datetime) -> int | None:
        """Return the number of slots of the cluster, or ``None`` if it is unknown and thus
        unlimited.
        """
        slots = self.pools.slots if self.pools.counted else None
        if self.refused is None:
            return slots
        count, at = self.refused
        tries = min(max((now - at).total_seconds(), 0.0) / PROBE_S, 20.0)
        learned = count + int(2**tries) - 1
        return learned if slots is None else min(learned, slots)

    def free(self, now: datetime) -> int:
        """Return the maximum number of slots that one decision can give."""
        places = self.places(now)
        surplus = self.pools.surplus
        return (
            BATCH
            if places is None
            else min(BATCH, places + surplus - self.busy(1 if surplus else 5))
        )

    def grant(self, tickets: Sequence[Ticket], now: datetime, most: int = BATCH) -> dict[int, int]:
        """Assign free slots to tickets in turns, and return the number of slots for each run. These
        slots then count as held.
        """
        # Entries are: priority, slots given in this decision, time, run, ticket.
        lines: dict[str, list[tuple[int, int, datetime, int, Ticket]]] = {}
        for ticket in tickets:
            heapq.heappush(
                lines.setdefault(ticket.pool, []),
                (ticket.priority, 0, ticket.since, ticket.run_id, ticket),
            )
        room = _Room(self, now)
        hold_s = self.hold_s(*lines)
        heads = [self._turn(line[0][-1], hold_s[name]) for name, line in lines.items()]
        heapq.heapify(heads)
        given: dict[int, int] = {}
        while heads and most:
            line = lines[heapq.heappop(heads)[-1]]
            priority, count, *_, best = line[0]
            if not room.fits(best):
                continue  # the rest of its pool does not fit either: free slots only decrease
            most -= 1
            given[best.run_id] = count + 1
            self.take(best.pool, best.priority)
            room.take(best)
            heapq.heappop(line)
            if count + 1 < best.wanted:
                heapq.heappush(line, (priority, count + 1, best.since, best.run_id, best))
            if line:
                heapq.heappush(heads, self._turn(line[0][-1], hold_s[best.pool]))
        return given

    def take(self, pool: str, priority: int, count: int = 1) -> None:
        """Count slots as held by tasks that are not executing yet."""
        waiting = self.holds(pool).waiting
        waiting[priority] = waiting.get(priority, 0) + count

    def _turn(self, ticket: Ticket, hold_s: float) -> tuple[bool, int, float, datetime, int, str]:
        pool = self.pools.of(ticket.pool)
        held = self.holds(ticket.pool).all
        # The expected use by these tasks counts immediately. Otherwise the pool that is behind
        # would get all free slots at once.
        ahead = self.share(ticket.pool).clock + (held + 1) * hold_s / pool.weight
        return (
            held >= pool.reserved,
            ticket.priority,
            ahead,
            ticket.since,
            ticket.run_id,
            ticket.pool,
        )


class _Room:
    """The free slots while they are given out one by one."""

    def __init__(self, gate: Gate, now: datetime) -> None:
        self._gate = gate
        self._places = gate.places(now)
        # Tasks that are waiting on the cluster itself do not delay more urgent tasks.
        urgencies = range(1, 6) if gate.pools.surplus else [5]
        self._busy = {urgency: gate.busy(urgency) for urgency in urgencies}
        self._kept = {
            name: max(0, pool.reserved - gate.holds(name).all)
            for name, pool in gate.pools.named.items()
        }
        self._kept_in_all = sum(self._kept.values())

    def fits(self, ticket: Ticket) -> bool:
        """Return whether the pool may have one more slot, and the cluster has a free slot that is
        not reserved for other pools.
        """
        most = self._gate.pools.of(ticket.pool).max
        if most is not None and self._gate.holds(ticket.pool).all >= most:
            return False
        busy = self._busy.get(ticket.priority, self._busy[5])
        kept = self._kept_in_all - self._kept.get(ticket.pool, 0)
        return self._places is None or busy + kept < self._places + self._gate.pools.surplus

    def take(self, ticket: Ticket) -> None:
        """Count one more slot as held."""
        if self._kept.get(ticket.pool):
            self._kept[ticket.pool] -= 1
            self._kept_in_all -= 1
        for level in self._busy:
            self._busy[level] += level >= ticket.priority
