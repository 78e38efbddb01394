"""Judges pools by journals that the service does not write: caps, order, shares and reserves, and
that each task executes once.

It uses no code of the service. Times are seconds of one clock, either of the crawlers or of the
process that watches the API server.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from tools.soak.journal import Name, clock

#: The seconds for which a task may wait although it is next, and although its pool is below its
#: reserve. A run that is called has 10 s to respond. These limits do not apply for some time after
#: a fault.
GRACE_S, RESERVE_S, RECOVERY_S = 12.0, 20.0, 40.0
#: The maximum fraction of all begins that may, because of faults, come before a more urgent task
#: that has waited longer than the grace.
LATE_MOST = 0.1
#: The maximum difference between a pool and its share, in a window without faults and over the
#: whole soak.
CALM_SHARE, SOAK_SHARE = 0.2, 0.25
#: The fraction of a window in which the pools must have waited. Otherwise, the window proves
#: nothing.
COVERED = 0.7
#: Runs with a less urgent priority wait until the end of the load.
NORMAL = 3
Span = tuple[float, float]
FOREVER = float("inf")
#: The seconds between the moments at which shares are counted.
STEP_S = 0.25


@dataclass(frozen=True, slots=True)
class Pool:
    """The settings of a pool."""

    max: int | None = None
    weight: float = 1.0
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """A run that was accepted at this time."""

    run: int
    pool: str
    priority: int
    tasks: int
    at: float


@dataclass(frozen=True, slots=True)
class Crawl:
    """One execution of a task by its journal. An execution without an end has not ended."""

    run: int
    index: int
    attempt: int
    begin: float
    end: float | None

    @property
    def name(self) -> Name:
        return self.run, self.index, self.attempt

    @property
    def span(self) -> Span:
        return self.begin, FOREVER if self.end is None else self.end


@dataclass(frozen=True, slots=True)
class Fault:
    """A strike with a visible effect, and the time at which everything was up again."""

    what: str
    at: float
    over: float
    did: str


@dataclass
class Case:
    """One soak, as its journals describe it."""

    pools: Mapping[str, Pool]
    slots: int
    orders: Mapping[int, Order]
    crawls: Sequence[Crawl]
    faults: Sequence[Fault]
    calm: Span
    """Without faults and without urgent runs."""
    load: Span
    rows: Collection[tuple[int, int, int, str]] = ()
    """Run, index, attempt and status of each task on record."""
    kinds: Collection[str] = ()
    """The strikes that must have been."""
    unknown: list[Crawl] = field(init=False)

    def __post_init__(self) -> None:
        self.unknown = [crawl for crawl in self.crawls if crawl.run not in self.orders]
        self.crawls = sorted(
            (c for c in self.crawls if c.run in self.orders), key=lambda crawl: crawl.begin
        )

    def of(self, *pools: str) -> Level:
        """Return the number of executions of these pools."""
        return Level(crawl.span for crawl in self.crawls if self.orders[crawl.run].pool in pools)

    @cached_property
    def begins(self) -> dict[tuple[int, int], float]:
        """Return when each task first executed."""
        return {(crawl.run, crawl.index): crawl.begin for crawl in reversed(self.crawls)}

    @cached_property
    def tasks(self) -> list[tuple[Order, float, float]]:
        """Yield each task with its order, and the times between which it waited."""
        times = [
            (one, self.begins.get((one.run, n), float("inf")))
            for one in self.orders.values()
            for n in range(one.tasks)
        ]
        return [(one, min(one.at, begin), begin) for one, begin in times]

    @cached_property
    def level(self) -> dict[str, Level]:
        return {name: self.of(name) for name in self.pools}

    @cached_property
    def more_urgent(self) -> dict[int, list[float]]:
        """Return when tasks more urgent than this priority began. Until the last of them began, a
        task of this priority was not next.
        """
        begins = [(one.priority, begin) for one, _, begin in self.tasks]
        return {n: sorted(begin for priority, begin in begins if priority < n) for n in range(1, 6)}

    @cached_property
    def shadows(self) -> list[Span]:
        """Return the spans in which the limits do not apply."""
        return merged((fault.at, fault.over + RECOVERY_S) for fault in self.faults)

    def calm_s(self, since: float, until: float) -> float:
        """Return the seconds of a wait that no fault explains."""
        return until - since - sum(max(0.0, min(until, b) - max(since, a)) for a, b in self.shadows)


class Level:
    """Return how many of these spans there are at each moment."""

    def __init__(self, spans: Iterable[Span]) -> None:
        moves = sorted(move for begin, end in spans for move in ((begin, 1), (end, -1)))
        self.at: list[float] = []
        self.count = [0]
        for at, step in moves:  # At the same moment, an end comes before a start.
            self.at.append(at)
            self.count.append(self.count[-1] + step)
        self.most = max(self.count)

    def before(self, at: float) -> int:
        """Return how many tasks executed just before this moment."""
        return self.count[bisect_right(self.at, at - 1e-9)]

    def below_since(self, at: float, most: int) -> float | None:
        """Since when fewer than ``most`` executed without a break until just before ``at``;
        ``None``: they do not.
        """
        n = bisect_right(self.at, at - 1e-9)
        if self.count[n] >= most:
            return None
        while n and self.count[n] < most:
            n -= 1
        return self.at[n] if self.count[n] >= most else -FOREVER


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the same time as spans that do not overlap."""
    found: list[Span] = []
    for a, b in sorted(spans):
        if found and a <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], b)
        else:
            found.append((a, b))
    return found


# --- what must hold


def judge(case: Case) -> list[str]:
    """Return everything that is untrue, as sentences."""
    checks = (caps, order, reserves, shares, once, faults)
    return [text for check in checks for text in check(case)]


def groups(case: Case) -> Iterator[tuple[str, int, int]]:
    """Yield each pool, how many of its tasks executed at once, and how many may."""
    for name, pool in case.pools.items():
        if pool.max is not None:
            yield f"pool {name}", case.level[name].most, pool.max
        if pool.reserved:
            yield (
                f"all pools but {name}",
                case.of(*(set(case.pools) - {name})).most,
                case.slots - pool.reserved,
            )
    yield "all pools", case.of(*case.pools).most, case.slots


def caps(case: Case) -> Iterator[str]:
    """Check that no cap is exceeded at any moment, and that each cap was reached."""
    for who, most, cap in groups(case):
        if most != cap:
            yield f"caps: {who}: {most} at once, and {cap} may" + (
                "" if most > cap else ": it proves nothing"
            )


def late(case: Case) -> Iterator[tuple[float, float, Crawl, Order]]:
    """Yield each begin that came before more urgent tasks whose pools had free slots: the longest
    wait of these tasks without a fault and in total, the task that began, and the task that was
    next.
    """
    for crawl in case.crawls:
        mine = case.orders[crawl.run]
        if case.level[mine.pool].before(crawl.begin) < case.pools[mine.pool].reserved:
            continue  # A reserve comes before any priority.
        found = list[tuple[float, float, Order]]()
        for one, since, begin in case.tasks:
            if one.priority < mine.priority and since < crawl.begin < begin:
                room = case.level[one.pool].below_since(
                    crawl.begin, case.pools[one.pool].max or case.slots + 1
                )
                if room is not None:
                    before = case.more_urgent[one.priority]
                    last = bisect_right(before, crawl.begin) - 1
                    since = max(since, room, before[last] if last >= 0 else since)
                    found.append((case.calm_s(since, crawl.begin), crawl.begin - since, one))
        if found:
            calm_s, _, one = max(found, key=lambda each: each[0])
            yield calm_s, max(raw for _, raw, _ in found), crawl, one


def order(case: Case) -> Iterator[str]:
    """Check that more urgent tasks come first."""
    found = list(late(case))
    for calm_s, _, crawl, one in found:
        if calm_s > GRACE_S:
            mine = case.orders[crawl.run]
            yield (
                f"order: {crawl.name} of priority {mine.priority} in {mine.pool} began at "
                f"{clock(crawl.begin)}, and "
                f"run {one.run} of priority {one.priority} in {one.pool} had waited for "
                f"{calm_s:.1f} s without a fault"
            )
    if (many := sum(raw > GRACE_S for _, raw, *_ in found)) > LATE_MOST * len(case.crawls):
        yield (
            f"order: {many} of {len(case.crawls)} began before a more urgent one that had waited "
            f"over {GRACE_S:g} s"
        )
    if not overtakes(case):
        yield "order: no urgent task overtook another one: it proves nothing"


def overtakes(case: Case) -> int:
    """Return how many tasks began before an older task of a less urgent priority."""
    return sum(
        any(
            two.priority > one.priority and since < one.at and begin < until
            for two, since, until in case.tasks
        )
        for one, _, begin in case.tasks
    )


def kept_waits(case: Case) -> list[float]:
    """Return how long each task of a pool with a reserve waited while the pool was below its
    reserve, without any fault.
    """
    found = []
    for one, since, begin in case.tasks:
        if (reserved := case.pools[one.pool].reserved) and begin < FOREVER:
            room = case.level[one.pool].below_since(begin, reserved)
            if room is not None:
                found.append(case.calm_s(max(since, room), begin))
    return found


def reserves(case: Case) -> Iterator[str]:
    """Check that a pool below its reserve does not wait for other pools."""
    if not (found := kept_waits(case)):
        yield "reserve: no task began below it: it proves nothing"
    for wait in found:
        if wait > RESERVE_S:
            yield f"reserve: a task below it waited for {wait:.1f} s without a fault"


def share_errors(case: Case, span: Span) -> tuple[dict[str, float], float]:
    """Return the difference of the pools without cap and reserve from their shares while all of
    them waited, and the fraction of the span for which they waited.
    """
    rivals = {
        name: pool.weight
        for name, pool in case.pools.items()
        if pool.max is None and not pool.reserved
    }
    tasks = [(one.pool, since, begin) for one, since, begin in case.tasks if one.priority <= NORMAL]
    waits = [
        Level((since, begin) for pool, since, begin in tasks if pool == name) for name in rivals
    ]
    steps = [span[0] + n * STEP_S for n in range(int((span[1] - span[0]) / STEP_S))]
    counted = [at for at in steps if all(wait.before(at) for wait in waits)]
    used = {name: sum(map(case.level[name].before, counted)) for name in rivals}
    total, weights = sum(used.values()) or 1, sum(rivals.values())
    return {name: used[name] / total / (rivals[name] / weights) - 1 for name in rivals}, len(
        counted
    ) / len(steps)


def shares(case: Case) -> Iterator[str]:
    """Check that pools of the same priority get slots by their weights."""
    for what, span, most in (
        ("a calm window", case.calm, CALM_SHARE),
        ("the whole soak", case.load, SOAK_SHARE),
    ):
        errors, covered = share_errors(case, span)
        for name, error in errors.items():
            if abs(error) > most:
                yield (
                    f"shares: in {what} pool {name} is {error:+.0%} from its share, and "
                    f"{most:.0%} may be"
                )
        if covered < COVERED:
            yield f"shares: the pools waited for {covered:.0%} of {what}: it proves nothing"


def once(case: Case) -> Iterator[str]:
    """Check that each recorded attempt executed once, and that each task succeeded."""
    times = Counter(crawl.name for crawl in (*case.crawls, *case.unknown))
    known = {row[:3]: row[3] for row in case.rows}
    good = Counter(row[:2] for row in case.rows if row[3] == "SUCCEEDED")
    for name, many in times.items():
        if many > 1:
            yield f"once: {name} executed {many} times"
        if name not in known:
            yield f"once: {name} executed, and is not on record"
    for name, status in known.items():
        if status == "SUCCEEDED" and not times[name]:
            yield f"once: {name} is on record as {status}, and never executed"
    for one in case.orders.values():
        for index in range(one.tasks):
            if good[one.run, index] != 1:
                yield (
                    f"once: task {index} of run {one.run} has {good[one.run, index]} good ends "
                    "on record"
                )
    for run in sorted({row[0] for row in case.rows} - set(case.orders)):
        yield f"once: run {run} is on record, and nobody started it"
    for crawl in case.crawls:
        if crawl.end is None:
            yield f"once: {crawl.name} has no end"


def faults(case: Case) -> Iterator[str]:
    """Check that every planned strike happened."""
    yield from (
        f"faults: {kind}: it never was"
        for kind in sorted(set(case.kinds) - {one.what for one in case.faults})
    )


def figures(case: Case) -> str:
    """Return a summary of what could have failed, and how close it came to a failure."""
    told = [f"{who} {most} of {cap}" for who, most, cap in groups(case)]
    found, waits = list(late(case)), kept_waits(case)
    raw, calm = (
        max((each[1] for each in found), default=0.0),
        max((each[0] for each in found), default=0.0),
    )
    begins, waited = (
        [crawl.begin for crawl in case.crawls],
        sum(each[1] > GRACE_S for each in found),
    )
    pause = max((b - a for a, b in pairwise(begins)), default=0.0)
    used = sum(
        min(c.span[1], case.load[1]) - max(c.begin, case.load[0])
        for c in case.crawls
        if c.begin < case.load[1]
    )
    used /= (case.load[1] - case.load[0]) * case.slots
    lines = [
        f"{len(case.orders)} runs, {len(case.crawls)} executions, {used:.0%} of the slots in use; "
        f"the longest time without a begin: {pause:.1f} s",
        f"at once, the most: {', '.join(told)}",
        f"order: {overtakes(case)} overtook older ones; {waited} began before a more urgent one "
        "that had waited over "
        f"{GRACE_S:g} s, at most {raw:.1f} s, without faults {calm:.1f} s",
        (
            f"reserve: {len(waits)} began below it, after at most {max(waits, default=0.0):.1f} s "
            "without faults"
        ),
    ]
    for what, span in (("calm window", case.calm), ("whole soak", case.load)):
        errors, covered = share_errors(case, span)
        told = [f"{name} {error:+.1%}" for name, error in errors.items()]
        lines.append(
            f"shares, {what} ({span[1] - span[0]:.0f} s, {covered:.0%} with waiting): "
            f"{', '.join(told)}"
        )
    did = Counter(fault.what for fault in case.faults)
    lines.append(f"struck: {', '.join(f'{what} {times}' for what, times in sorted(did.items()))}")
    return "\n".join(lines)
