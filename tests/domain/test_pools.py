"""The engine of pools: bounds always hold, no usable slot is idle, and shares are fair."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.pools import (
    CALL_S,
    POOLS_MAX,
    PROBE_S,
    RECALL_S,
    Gate,
    Pool,
    Pools,
    PoolUsage,
    Share,
    Ticket,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
NAMES = ("a", "b", "c")

_pool = st.builds(
    Pool, max=st.none() | st.integers(1, 9), weight=st.floats(0.1, 10), reserved=st.integers(0, 2)
)  # fmt: skip
_held = st.builds(
    PoolUsage, st.integers(0, 6), st.dictionaries(st.integers(1, 5), st.integers(0, 3))
)
_share = st.builds(Share, st.floats(0, 1e4), st.floats(0, 1e5), st.floats(0, 1e4))


@st.composite
def gates(draw: st.DrawFn) -> Gate:
    pools = Pools(
        dict.fromkeys(NAMES, Pool()) | draw(st.dictionaries(st.sampled_from(NAMES), _pool)), 40
    )
    pools = Pools(
        pools.named, draw(st.none() | st.integers(6, 40)), draw(st.sampled_from((0, 0, 3)))
    )
    each = st.dictionaries(st.sampled_from(NAMES), _held)
    return Gate(pools, draw(st.dictionaries(st.sampled_from(NAMES), _share)), draw(each), NOW)


def tickets(sizes: list[tuple[str, int, int]]) -> list[Ticket]:
    return [
        Ticket(n, pool, priority, NOW + timedelta(seconds=n % 4), wanted)
        for n, (pool, priority, wanted) in enumerate(sizes)
    ]


_tickets = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(1, 5), st.integers(1, 8)), max_size=12
).map(tickets)


def all_held(gate: Gate) -> int:
    return sum(held.all for held in gate.held.values())


@given(gates(), _tickets)
def test_no_bound_is_exceeded_and_no_free_place_is_kept_from_all(
    gate: Gate, waiting: list[Ticket]
) -> None:
    before = {name: gate.holds(name).all for name in NAMES}
    total = all_held(gate)
    given_ = gate.grant(waiting, NOW)
    by_id = {one.run_id: one for one in waiting}
    assert all(0 < count <= by_id[run_id].wanted for run_id, count in given_.items())
    places = gate.places(NOW)
    for name in NAMES:
        most, got = gate.pools.of(name).max, gate.holds(name).all - before[name]
        assert got == sum(count for run_id, count in given_.items() if by_id[run_id].pool == name)
        assert got == 0 or most is None or gate.holds(name).all <= most
    if places is not None and not gate.pools.surplus and given_:
        others = [max(0, pool.reserved - gate.holds(n).all) for n, pool in gate.pools.named.items()]
        assert all_held(gate) + sum(others) <= max(places, total + sum(given_.values()))
        assert all_held(gate) <= places
    left = [
        Ticket(o.run_id, o.pool, o.priority, o.since, 1)
        for o in waiting
        if given_.get(o.run_id, 0) < o.wanted
    ]
    assert gate.grant(left, NOW) == {} or sum(given_.values()) == 100


@given(gates(), _tickets)
def test_within_a_pool_the_most_urgent_runs_take_turns(gate: Gate, waiting: list[Ticket]) -> None:
    """Among runs of the same priority, nobody has two slots more than one that still wants some,
    and the longest-waiting one comes first. While somebody wants a slot, nobody less urgent has
    one.
    """
    given_ = gate.grant(waiting, NOW)
    for name in NAMES:
        line = sorted(
            (o for o in waiting if o.pool == name), key=lambda o: (o.priority, o.since, o.run_id)
        )
        for position, left in enumerate(line):
            got = given_.get(left.run_id, 0)
            if got == left.wanted:
                continue
            for other_position, other in enumerate(line):
                if other.priority == left.priority:
                    assert given_.get(other.run_id, 0) <= got + (other_position < position)
                elif other.priority > left.priority:
                    assert other.run_id not in given_


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 12))
def test_no_run_waits_for_the_burst_of_another(sizes: list[int], slots: int) -> None:
    """Slots become free one by one; a run that gets one goes to the end of the line."""
    gate = Gate(Pools({"a": Pool()}, slots), held={"a": PoolUsage(slots - 1)})
    line = [Ticket(n, "a", 3, NOW, wanted) for n, wanted in enumerate(sizes)]
    got, served = Counter[int](), 0
    while line:
        assert max(got[o.run_id] for o in line) - min(got[o.run_id] for o in line) <= 1
        ((run_id, count),) = gate.grant(line, NOW).items()
        assert count == 1
        gate.holds("a").waiting.clear()  # a task has ended
        got[run_id] += 1
        served += 1
        now = NOW + timedelta(seconds=served)
        line = [
            replace(o, wanted=o.wanted - 1, since=now) if o.run_id == run_id else o for o in line
        ]
        line = [o for o in line if o.wanted]
    assert got == dict(enumerate(sizes))


@given(
    gates(), st.lists(st.tuples(st.floats(-1e6, 1e6), st.sets(st.sampled_from(NAMES))), max_size=6)
)
def test_no_clock_breaks_the_shares(gate: Gate, steps: list[tuple[float, set[str]]]) -> None:
    for seconds, waiting in steps:
        gate.sample(NOW + timedelta(seconds=seconds), waiting)
        assert all(
            0 <= share.used < 1e7 and abs(share.clock) < 1e7 for share in gate.shares.values()
        )
        assert all(seconds >= 1 for seconds in gate.hold_s(*NAMES).values())


def fairness(weights: list[float], slots: int, surplus: int, seed: int) -> float:
    """Ten minutes of overload by tasks of 1 to 30 s. Return how far the worst pool is from its
    share of the slot-seconds.
    """
    chance = random.Random(seed)
    names = [f"p{n}" for n in range(len(weights))]
    gate = Gate(
        Pools({n: Pool(weight=w) for n, w in zip(names, weights, strict=True)}, slots, surplus)
    )
    used, executing, queue = dict.fromkeys(names, 0.0), list[tuple[float, str]](), list[str]()
    waiting = [
        Ticket(n * 100 + k, name, 3, NOW, 1) for n, name in enumerate(names) for k in range(20)
    ]
    for tick in range(1200):
        seconds = tick / 2
        now = NOW + timedelta(seconds=seconds)
        while executing and executing[0][0] <= seconds:
            gate.holds(heapq.heappop(executing)[1]).executing -= 1
        gate.sample(now, names)
        for run_id, count in gate.grant(waiting, now).items():
            queue += [names[run_id // 100]] * count
            gate.share(names[run_id // 100]).given += count
        while queue and len(executing) < slots:
            name, took = queue.pop(0), chance.uniform(1, 30)
            heapq.heappush(executing, (seconds + took, name))
            used[name] += min(took, 600 - seconds)
            gate.holds(name).waiting[3] -= 1
            gate.holds(name).executing += 1
    assert sum(used.values()) > 0.97 * slots * 600
    return max(
        abs(used[n] / sum(used.values()) / (w / sum(weights)) - 1)
        for n, w in zip(names, weights, strict=True)
    )


@pytest.mark.parametrize("weights", [[1.0] * 10, [1.0, 3.0]])
@pytest.mark.parametrize("surplus", [0, 8])
def test_shares_are_within_5_percent_of_the_weights(weights: list[float], surplus: int) -> None:
    assert max(fairness(weights, 20, surplus, seed) for seed in range(3)) <= 0.05


def test_a_pool_that_waited_for_nothing_has_saved_up_nothing() -> None:
    gate = Gate(
        Pools({"a": Pool(), "b": Pool()}, slots=10), held={"a": PoolUsage(10)}, sampled_at=NOW
    )
    for second in range(1, 100):
        gate.sample(NOW + timedelta(seconds=second), {"a"})
    gate.held["a"].executing = 0
    waiting = [Ticket(1, "a", 3, NOW, 50), Ticket(2, "b", 3, NOW, 50)]
    gate.share("a").given = 100
    assert sorted(gate.grant(waiting, NOW + timedelta(seconds=100)).values()) == [5, 5]


def test_an_urgent_task_does_not_wait_for_the_surplus() -> None:
    gate = Gate(Pools({"a": Pool()}, slots=2, surplus=2), held={"a": PoolUsage(2, {5: 2})})
    assert gate.grant([Ticket(1, "a", 5, NOW, 1)], NOW) == {}
    assert gate.grant([Ticket(2, "a", 1, NOW, 3)], NOW) == {2: 2}


def test_what_could_wait_on_the_cluster_takes_no_slot_of_a_reserve() -> None:
    gate = Gate(Pools({"a": Pool(), "kept": Pool(reserved=1)}, slots=4, surplus=2))
    assert gate.grant([Ticket(1, "a", 1, NOW, 9)], NOW) == {1: 3}


@pytest.mark.parametrize("held_up", [Ticket(1, "a", 3, NOW, 9), Ticket(1, "c", 5, NOW, 9)])
def test_who_is_held_up_by_more_than_its_share_is_not_behind(held_up: Ticket) -> None:
    gate = Gate(
        Pools({"a": Pool(max=1), "b": Pool(), "c": Pool()}, slots=10),
        held={"a": PoolUsage(1), "b": PoolUsage(9)},
    )
    for step in range(360):
        gate.sample(
            NOW + timedelta(seconds=10 * step), gate.rivals([held_up, Ticket(2, "b", 3, NOW, 99)])
        )
    assert gate.share("b").clock == 0, (
        "whoever comes next shares with b from now on, and not for the hour before"
    )


def test_a_refusal_counts_less_and_less() -> None:
    gate = Gate(Pools({"a": Pool()}, slots=9), refused=(4, NOW))
    waits = (-99, 0, PROBE_S, 2 * PROBE_S, 3 * PROBE_S)
    assert [gate.places(NOW + timedelta(seconds=s)) for s in waits] == [4, 4, 5, 7, 9]


def test_who_was_called_is_called_again_after_a_while() -> None:
    ticket = Ticket(1, "a", 3, NOW, 1, called_at=NOW)
    assert CALL_S < RECALL_S
    assert [
        ticket.to_call(NOW + timedelta(seconds=s)) for s in (-RECALL_S, 0, CALL_S, RECALL_S)
    ] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Pools({"a": Pool(reserved=3), "b": Pool(reserved=2)}, 4).check_all(),
            "reserved: 5 slots in total are too many for 4",
        ),
        (
            lambda: Pools({"default": Pool(project="a")}).check_all("LIFECYCLE_POOLS: "),
            "LIFECYCLE_POOLS: default: project: 'a' is not allowed; default serves every project; leave it out",
        ),
        (
            lambda: Pools({f"p{n}": Pool() for n in range(POOLS_MAX + 1)}).check_all(),
            "101 pools are too many; at most 100 are allowed, so delete some",
        ),
        (
            lambda: Pools({"a": Pool()}).check("b"),
            "pool: 'b' is not allowed; there is no such pool",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(make: object, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        make()  # type: ignore[operator]


_named = st.dictionaries(st.sampled_from(NAMES), _pool)


@given(_named, _named, _named)
def test_pools_of_the_database_come_beside_those_of_the_settings(
    configured: dict[str, Pool], former: dict[str, Pool], stored: dict[str, Pool]
) -> None:
    settings = Pools(configured, 40, 3, window=5)
    pools = settings.with_stored(stored)
    assert pools.named == {**stored, **configured}
    assert pools.stored == stored.keys() - configured.keys()
    assert pools.fingerprint == settings.fingerprint
    again = settings.with_stored(former).with_stored(stored)
    assert (again.named, again.stored) == (pools.named, pools.stored)
    assert (pools.window is None) == pools.counted
    assert pools.surplus == (0 if any(pool.reserved for pool in pools.named.values()) else 3)
