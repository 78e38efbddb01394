"""The judge of pools: a correct soak passes, and every false record is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tools.soak.pool_judge import Case, Crawl, Fault, Order, Pool, judge, late, merged

POOLS = {"capped": Pool(max=1), "heavy": Pool(weight=2), "light": Pool(), "kept": Pool(reserved=1)}
SLOTS, SECONDS, TASKS = 5, 10.0, 20
#: Run, pool, priority, tasks, slots of the pool, first start: what executes in ten steps of ten
#: seconds.
PLAYED = [
    (1, "capped", 10, [0]),
    (2, "heavy", 20, [1, 2]),
    (3, "light", 10, [3]),
    (4, "kept", 10, [4]),
]


def honest() -> Case:
    """A minute and a half in which each pool has its share of five slots, and an urgent run that
    overtakes.
    """
    orders = {run: Order(run, pool, 3, tasks, 0.0) for run, pool, tasks, _ in PLAYED}
    crawls = [
        Crawl(run, index, 1, at := SECONDS * (index // len(slots)) + 1.0, at + SECONDS - 1.0)
        for run, _, tasks, slots in PLAYED
        for index in range(tasks)
    ]
    # The urgent run takes a slot of the pool as soon as it exists; the run that would have had it
    # starts when all others end.
    crawls = [
        replace(c, begin=101.0, end=110.0) if (c.run, c.index) == (2, 9) else c for c in crawls
    ]
    orders[5] = Order(5, "heavy", 1, 1, 39.0)
    crawls.append(Crawl(5, 0, 1, 41.0, 50.0))
    rows = [(*crawl.name, "SUCCEEDED") for crawl in crawls]
    faults = [Fault("worker killed", 60.0, 62.0, "process 7 died")]
    return Case(
        POOLS, SLOTS, orders, crawls, faults, (1.0, 60.0), (1.0, 90.0), rows, ["worker killed"]
    )


def lied(**changes: object) -> Case:
    return replace(honest(), **changes)  # type: ignore[arg-type]


def crawl(case: Case, run: int, index: int, **changes: float | None) -> Case:
    """The same with one different execution."""
    mine = next(one for one in case.crawls if (one.run, one.index) == (run, index))
    crawls = [replace(one, **changes) if one is mine else one for one in case.crawls]  # type: ignore[arg-type]
    return replace(case, crawls=crawls)


def test_what_was_right_passes() -> None:
    assert judge(honest()) == []


def urgent(at: float, begin: float, *faults: Fault) -> Case:
    """The urgent run waited from ``at`` to ``begin``."""
    case = crawl(lied(faults=[*honest().faults, *faults]), 5, 0, begin=begin, end=begin + 3.0)
    return replace(case, orders=case.orders | {5: replace(case.orders[5], at=at)})


LIES: dict[str, tuple[Callable[[], Case], str]] = {
    "cap": (lambda: crawl(honest(), 1, 3, begin=29.0), "caps: pool capped: 2 at once, and 1 may"),
    "slots": (lambda: crawl(honest(), 3, 3, begin=29.0), "caps: all pools: 6 at once, and 5 may"),
    "cap never reached": (
        lambda: lied(pools=POOLS | {"capped": Pool(max=2)}),
        "caps: pool capped: 1 at once, and 2 may: it proves nothing",
    ),
    "a slot of the reserve": (
        lambda: replace(
            lied(orders=honest().orders | {6: Order(6, "light", 3, 1, 50.0)}),
            crawls=[*crawl(honest(), 4, 5, begin=57.0).crawls, Crawl(6, 0, 1, 52.0, 56.0)],
            rows=[*honest().rows, (6, 0, 1, "SUCCEEDED")],
        ),
        "caps: all pools but kept: 5 at once, and 4 may",
    ),
    "order": (
        lambda: urgent(19.0, 43.0),
        "of priority 3 in light began at 00:00:41.000, and run 5 of priority 1",
    ),
    "nobody overtook": (
        lambda: replace(
            lied(orders={run: one for run, one in honest().orders.items() if run != 5}),
            crawls=[one for one in honest().crawls if one.run != 5],
            rows=[row for row in honest().rows if row[0] != 5],
        ),
        "order: no urgent task overtook another one",
    ),
    "a wait below the reserve": (
        lambda: crawl(honest(), 4, 9, begin=130.0, end=131.0),
        "reserve: a task below it waited for 28.0 s without a fault",
    ),
    "share": (
        lambda: lied(pools=POOLS | {"heavy": Pool(weight=1)}),
        "shares: in a calm window pool heavy is +",
    ),
    "nobody waited": (
        lambda: lied(
            orders={run: replace(one, at=one.run * 1e3) for run, one in honest().orders.items()}
        ),
        "of a calm window: it proves nothing",
    ),
    "twice": (
        lambda: lied(crawls=[*honest().crawls, Crawl(1, 0, 1, 200.0, 201.0)]),
        "once: (1, 0, 1) executed 2 times",
    ),
    "not on record": (
        lambda: lied(crawls=[*honest().crawls, Crawl(1, 0, 2, 200.0, 201.0)]),
        "once: (1, 0, 2) executed, and is not on record",
    ),
    "never executed": (
        lambda: lied(crawls=honest().crawls[:-1]),
        "is on record as SUCCEEDED, and never executed",
    ),
    "lost": (
        lambda: lied(rows=[row for row in honest().rows if row[:2] != (3, 4)]),
        "task 4 of run 3 has 0 good ends",
    ),
    "stuck": (lambda: crawl(honest(), 2, 19, end=None), "once: (2, 19, 1) has no end"),
    "of nobody": (
        lambda: lied(rows=[*honest().rows, (9, 0, 1, "SUCCEEDED")]),
        "run 9 is on record, and nobody started",
    ),
    "no strike": (lambda: lied(kinds=["database killed"]), "faults: database killed: it never was"),
}


@pytest.mark.parametrize("lie", LIES)
def test_every_lie_is_found(lie: str) -> None:
    forged, said = LIES[lie]
    assert any(said in text for text in judge(forged())), judge(forged())


def test_a_fault_explains_a_wait() -> None:
    """But only some of them: with enough late starts, even an endless fault is no excuse."""
    case = urgent(19.0, 43.0, Fault("worker killed", 18.0, 20.0, ""))
    assert [text for text in judge(case) if "without a fault" in text] == []
    assert max(raw for _, raw, *_ in late(case)) == 22.0


@pytest.mark.parametrize(("begin", "found"), [(105.0, False), (118.0, True)])
def test_a_turn_comes_when_what_is_more_urgent_has_begun(begin: float, found: bool) -> None:
    """Both waited all the time; the last of the more urgent ones began at 101."""
    more = {6: Order(6, "heavy", 4, 1, 0.0), 7: Order(7, "light", 5, 1, 0.0)}
    crawls = [Crawl(7, 0, 1, begin, begin + 9), Crawl(6, 0, 1, begin + 1, begin + 9)]
    rows = [(one, 0, 1, "SUCCEEDED") for one in more]
    case = honest()
    case = lied(orders=case.orders | more, crawls=[*case.crawls, *crawls], rows=[*case.rows, *rows])
    assert any("run 6 of priority 4" in text for text in judge(case)) == found


def test_spans_are_merged() -> None:
    assert merged([(3, 4), (0, 1), (1, 2), (3.5, 5)]) == [(0, 2), (3, 5)]
