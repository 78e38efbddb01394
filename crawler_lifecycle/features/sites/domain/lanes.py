"""The division of a site's requests among the tasks that visit it.

A site has as many **lanes** as it allows requests in progress. One task at a time holds a lane, by
a lease that ends by itself. Each lane has its own timetable: its requests begin ``every_s`` seconds
apart, and the timetables of the lanes are shifted against each other, so that all lanes together
begin at most ``requests_per_s`` requests a second. No limit can be exceeded if a task, a worker or
a gateway dies, because a lane has one holder, and the holder knows when its lease ends.

A request may begin up to ``SLACK_S`` seconds after its time in the timetable. A sliding second
therefore contains at most ``requests_per_s * (1 + SLACK_S)`` beginnings, rounded up.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from .site import SiteLimits

#: Seconds after which a lease ends unless it is renewed, and after which a task renews it.
LEASE_S = 6.0
RENEW_S = 3.5
#: The same for a task that has had the site to itself for ``SETTLED_S``, and leaves a lane free for
#: the next task.
LONG_LEASE_S = 30.0
LONG_RENEW_S = 20.0
SETTLED_S = 10.0
#: The limits of the seconds after which a task that waits for a lane asks again. Those that are
#: next in line ask the most often.
ASK_RANGE_S = (0.1, 8.0)
#: Seconds for which a lane stays free for a task that is next in line, and after which a task that
#: does not ask again has lost its place.
MOMENT_S = 0.4
ABSENT_S = 3.0
#: The limits of the seconds for which a task keeps its last lane while other tasks are waiting, and
#: the seconds in which each of them gets a turn, if these limits allow it.
TURN_RANGE_S = (1.5, 6.0)
ROUND_S = 60.0
#: Seconds in which a request in progress may end after its lane began to leave. Later, the lane is
#: not renewed.
LEAVE_S = 180.0
#: Seconds by which a request may begin late.
SLACK_S = 0.1
#: The factor by which timetables are slower than allowed. A busy process or network delays some
#: requests; with this factor, such a second stays within 1.1 times the limit.
PACE = 1.03
#: Seconds between two times of the database's clock that show that it was set.
SET_S = 0.5
#: The maximum number of lanes of a site without a limit on connections.
LANES_MAX = 64


def task_of(holder: str) -> str:
    """Return the name of the task to which a holder belongs."""
    return holder.partition("/")[0]


@dataclass(frozen=True, slots=True)
class LaneLease:
    """A lane that a task holds. Times are seconds of the database's clock."""

    lane: int
    holder: str
    """The name of the task. What may follow after a slash keeps apart its lanes at several hosts of
    the site.
    """
    since: float
    """When it was given, or when it began to leave."""
    until: float
    leaves: bool = False
    """True if no further request may begin. The holder returns the lane when its request there has
    ended.
    """

    @property
    def task(self) -> str:
        """The name of the task that holds it."""
        return task_of(self.holder)

    def leave(self, now: float) -> LaneLease:
        """Return the lease of a lane in which no further request may begin."""
        return self if self.leaves else replace(self, leaves=True, since=now)

    def at(self, now: float) -> LaneLease:
        """Return the lease with possible times, in case the clock was set back since."""
        until = min(self.until, now + LONG_LEASE_S)
        return replace(self, since=min(self.since, now), until=until)


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """The demand of a task at one site.

    ``wanted`` is the number of lanes that it can use now, ``kept`` are the lanes that it has not
    returned, and ``ahead`` is the number of tasks that come before it.
    """

    holder: str
    wanted: int
    kept: Collection[int] = ()
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The leases of a site after some requests."""

    leases: Sequence[LaneLease]
    missing: bool
    """True if a request got no lane."""
    contended: bool
    """True if tasks are waiting for a lane."""
    renew_s: float
    """Seconds after which the tasks that asked renew their leases."""

    def leaves_s(self, lease: LaneLease, turn: float, now: float) -> float | None:
        """Return the seconds until the turn in a lane is over; ``None`` if nobody is waiting."""
        if lease.leaves:
            return 0.0
        return max(0.0, lease.since + turn - now) if self.contended else None


@dataclass(frozen=True, slots=True)
class Timetable:
    """The times at which the requests of a lane may begin.

    ``first_s`` are the seconds until the next beginning, and ``every_s`` those between two
    beginnings. Both are 0 if a request may begin at any time.
    """

    first_s: float
    every_s: float


class Line:
    """The holders that wait for a lane of one site, as far as one gateway knows.

    Tasks are served in the order in which they came. A task that waits with several holders gets
    one lane when it is next, and then stands behind the other tasks, so that many hosts or
    processes get no larger part of the site. Times are those of a clock that nobody sets.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        """When each holder asks again, in the order of the line."""
        self._rounds: dict[str, int] = {}
        """The round in which each of them gets a lane. In each round, a task gets one."""
        self._round = 0
        self._served: dict[str, int] = {}
        """The last round in which a task got a lane, if it is not over."""

    def __len__(self) -> int:
        return len(self._due)

    def join(self, holder: str, now: float) -> None:
        """Add a holder, unless it is waiting, and forget those that ask no more."""
        if holder not in self._due:
            task = task_of(holder)
            others = [turn for name, turn in self._rounds.items() if task_of(name) == task]
            last = max([*others, self._served.get(task, -1)])
            self._rounds[holder] = max(self._round, last + 1)
            in_order = sorted([*self._due, holder], key=self._rounds.__getitem__)
            self._due = {name: self._due.get(name, now) for name in in_order}
        self._due[holder] = now
        absent = [name for name, due in self._due.items() if due < now - ABSENT_S]
        for name in absent:
            self.leave(name)

    def leave(self, holder: str, *, served: bool = False) -> None:
        """Forget a holder that got a lane (``served``) or wants none."""
        self._due.pop(holder, None)
        turn = self._rounds.pop(holder, None)
        if served and turn is not None:
            self._round = max(self._round, turn)
            self._served[task_of(holder)] = turn
            self._served = {
                task: last for task, last in self._served.items() if last >= self._round
            }

    def ahead(self, holder: str, now: float) -> int:
        """Return how many holders come before this one and ask again at this moment."""
        before = itertools.takewhile(lambda name: name != holder, self._due)
        return sum(abs(self._due[name] - now) <= MOMENT_S for name in before)

    def ask_s(self, holder: str, lanes: int, now: float) -> float:
        """Return the seconds after which a holder asks again: half of the time until its turn."""
        if holder not in self._due:
            self.join(holder, now)
        place = list(self._due).index(holder)
        turn = place * turn_s(len(self._due), lanes) / max(lanes, 1)
        pause = min(max(ASK_RANGE_S[0], turn / 2), ASK_RANGE_S[1])
        self._due[holder] = now + pause
        return pause


def turn_s(waiting: int, lanes: int) -> float:
    """Return the seconds of a turn while this many tasks wait for this many lanes."""
    return min(max(TURN_RANGE_S[0], ROUND_S * lanes / max(waiting, 1)), TURN_RANGE_S[1])


class SteadyClock:
    """Notices when the database's clock is set, because leases then end too early or too late."""

    def __init__(self) -> None:
        self._ahead_s: float | None = None
        self._unsteady_until = -math.inf

    def is_steady(self, now: float, sent: float, received: float) -> bool:
        """Return false for ``LONG_LEASE_S`` seconds after the clock was set. Then all leases that
        the tasks believe to have are over.

        ``now`` is the time that the database read between ``sent`` and ``received``, which are
        those of a clock that nobody sets. A slow answer is no sign of a clock that was set.
        """
        least = now - received
        most = now - sent
        if self._ahead_s is None:
            # The next answers are compared with this one, so it must be exact.
            self._ahead_s = most if most - least < SET_S else None
            return True
        ahead_s = min(max(self._ahead_s, least), most)
        if abs(ahead_s - self._ahead_s) > SET_S:
            self._unsteady_until = received + LONG_LEASE_S
        self._ahead_s = ahead_s
        return received >= self._unsteady_until


def lane_count(limits: SiteLimits) -> int:
    """Return the number of lanes of a site with these limits."""
    if limits.connections is not None:
        return limits.connections
    return min(LANES_MAX, max(1, math.ceil(limits.requests_per_s or 1)))


def timetable_of(limits: SiteLimits, lane: int, now: float) -> Timetable:
    """Return the timetable of a lane, counted from ``now``."""
    if limits.requests_per_s is None:
        return Timetable(0.0, 0.0)
    every = lane_count(limits) / limits.requests_per_s * PACE
    phase = lane / limits.requests_per_s * PACE
    return Timetable((phase - now) % every, every)


def assign_lanes(
    leases: Sequence[LaneLease],
    requests: Sequence[LeaseRequest],
    lanes: int,
    now: float,
    *,
    turn: float = TURN_RANGE_S[1],
    others_wait: bool = False,
) -> Assignment:
    """Return the leases after these requests.

    ``requests`` are in the order of the line, one for each holder. Of the lanes, only the first
    ``lanes`` may be leased now. ``others_wait`` is true if other tasks are waiting; then a task
    keeps its last lane for ``turn`` seconds. Free lanes are given one at a time, first to the tasks
    that have none.
    """
    before = [lease.at(now) for lease in leases if lease.until > now]
    kept = {request.holder: request.kept for request in requests}
    held = [lease for lease in before if lease.lane in kept.get(lease.holder, (lease.lane,))]
    after = [_renewed(lease, lanes, now) if lease.holder in kept else lease for lease in held]
    given = _given(after, requests, lanes, now, before if others_wait else None)
    after += given
    counts = Counter(lease.holder for lease in after)
    missing = any(request.wanted and not counts[request.holder] for request in requests)
    contended = missing or others_wait
    if contended and len(after) >= lanes:
        for request in requests:
            _end_turn(after, request.holder, turn, now)
    if not contended and len(after) < lanes and _is_settled(after, kept, now):
        after = [replace(lease, until=now + LONG_LEASE_S) for lease in after]
        return Assignment(after, missing, contended, LONG_RENEW_S)
    return Assignment(after, missing, contended, RENEW_S)


def _renewed(lease: LaneLease, lanes: int, now: float) -> LaneLease:
    """Return the lease of a holder that still uses the lane."""
    if lease.lane >= lanes:
        lease = lease.leave(now)
    if lease.leaves and now - lease.since > LEAVE_S:
        return lease
    # Never earlier: the holder may not receive the answer.
    return replace(lease, until=max(lease.until, now + LEASE_S))


def _is_settled(leases: Sequence[LaneLease], asking: Collection[str], now: float) -> bool:
    """Return whether one task, which asks now, has had the site to itself for ``SETTLED_S``."""
    return len({lease.task for lease in leases}) == 1 and all(
        lease.holder in asking and not lease.leaves and now - lease.since >= SETTLED_S
        for lease in leases
    )


def _given(
    held: Sequence[LaneLease],
    requests: Sequence[LeaseRequest],
    lanes: int,
    now: float,
    before: Sequence[LaneLease] | None,
) -> list[LaneLease]:
    """Return leases for the free lanes.

    If tasks are waiting, ``before`` are the leases of a moment ago. Their holders get no other
    lane, and their tasks do not get the lanes that they return now, even for another holder, so
    that a task which asks another gateway can get them.
    """
    taken = {lease.lane for lease in held}
    free = [lane for lane in range(lanes) if lane not in taken]
    counts = Counter(lease.holder for lease in held if not lease.leaves)
    of_tasks = Counter(lease.task for lease in held if not lease.leaves)
    just_left = {lease.holder for lease in before or ()}
    owners = {lease.lane: lease.task for lease in before or ()}
    given: list[LaneLease] = []
    for lane in free:
        hungry = [
            request.holder
            for request in requests
            if request.wanted > counts[request.holder]
            and request.ahead < len(free)
            and (before is None or not counts[request.holder])
            and request.holder not in just_left
            and task_of(request.holder) != owners.get(lane)
        ]
        if not hungry:
            continue
        holder = min(
            hungry, key=lambda name: (counts[name] > 0, of_tasks[task_of(name)], counts[name])
        )
        given.append(LaneLease(lane, holder, now, now + LEASE_S))
        counts[holder] += 1
        of_tasks[task_of(holder)] += 1
    return given


def _end_turn(leases: list[LaneLease], holder: str, turn: float, now: float) -> None:
    """Let a holder leave one lane: at once if it has several, else when its turn is over."""
    mine = [lease for lease in leases if lease.holder == holder and not lease.leaves]
    if not mine:
        return
    oldest = min(mine, key=lambda lease: lease.since)
    if len(mine) > 1 or now - oldest.since >= turn:
        leases[leases.index(oldest)] = oldest.leave(now)
