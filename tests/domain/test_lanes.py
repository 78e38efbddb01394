"""Lanes of sites: random tasks ask, die, freeze and return, and the limits hold."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crawler_lifecycle.runner
from crawler_lifecycle.features.sites.domain.closing import (
    STRANGER_MAX_S,
    Block,
    SiteState,
    blocked,
    passed,
)
from crawler_lifecycle.features.sites.domain.lanes import (
    LEASE_S,
    LEAVE_S,
    LONG_LEASE_S,
    LONG_RENEW_S,
    RENEW_S,
    ROUND_S,
    SETTLED_S,
    SLACK_S,
    TURN_RANGE_S,
    LaneLease,
    LeaseRequest,
    Line,
    SteadyClock,
    assign_lanes,
    lane_count,
    task_of,
    timetable_of,
    turn_s,
)
from crawler_lifecycle.features.sites.domain.site import SiteLimits

sys.path.append(str(Path(crawler_lifecycle.runner.__file__).parent / "inject"))
from crawl_runner_leases import _CHANCE, GatewayClock, LeasedHost, _begin_some  # type: ignore[import-not-found]

STEP_S = 0.01


@dataclass
class Task:
    """A crawl that always has more requests, with the crawler's side of the leases."""

    name: str
    site: Any = field(default_factory=LeasedHost)
    clock: Any = field(default_factory=GatewayClock)
    concurrency: int = 8
    in_progress: list[tuple[float, int]] = field(default_factory=list)
    frozen_until: float = 0.0
    answers_at: float | None = None
    call: tuple[float, dict[str, Any]] = (0.0, {})
    answer: dict[str, Any] | None = None


class World:
    """A gateway, a site and tasks in simulated time."""

    def __init__(self, limits: SiteLimits, tasks: int, latency_s: float, seed: int) -> None:
        self.limits = limits
        self.latency_s = latency_s
        self.random = random.Random(seed)
        _CHANCE.seed(seed)
        self.tasks = [Task(f"{number}.0.1") for number in range(1, tasks + 1)]
        self.leases: list[LaneLease] = []
        self.wanted_until = 0.0
        self.line = Line()
        self.now = 1000.0
        self.clock_ahead = 0.0
        self.clock = SteadyClock()
        self.away_until = 0.0
        self.begun: list[float] = []
        self.served: list[float] = []
        self.most = 0
        self.calls = 0
        self.longest_s = 0.45
        """A lease ends half a second after the last request that may begin."""

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            self.served = [end for end in self.served if end > self.now]
            for task in self.tasks:
                if task.frozen_until <= self.now:
                    self._turn(task)

    def _turn(self, task: Task) -> None:
        for end, lane in [one for one in task.in_progress if one[0] <= self.now]:
            task.in_progress.remove((end, lane))
            held = task.site.lanes.get(lane)
            if held is not None:
                held.busy = False
                if held.leaves:
                    task.site.ask_soon(self.now)
        if task.answers_at is not None and task.answers_at <= self.now:
            sent, asked = task.call
            if task.answer is None:
                task.site.ask_again(asked, self.now + 1)
            else:
                task.site.answered(task.answer, task.clock, sent, self.now)
            task.answers_at = None
        if task.answers_at is None and task.site.ask_at <= self.now:
            self._ask(task)
        while len(task.site.waiting) + len(task.in_progress) < task.concurrency:
            task.site.waiting.append(lambda lane, latest: None)
        ready: list[Any] = []
        _begin_some(task.site, self.now, ready)
        for _, lane, _ in ready:
            self.begun.append(self.now)
            end = self.now + min(self.longest_s, self.random.expovariate(1 / self.latency_s))
            task.in_progress.append((end, lane))
            self.served.append(end)
            self.most = max(self.most, len(self.served))

    def _ask(self, task: Task) -> None:
        asked = task.site.question(self.now)
        self.calls += 1
        task.call = self.now, asked
        task.answers_at = self.now + self.random.uniform(0.0, 0.03)
        task.answer = None
        if self.now < self.away_until:
            return
        now = self.now + self.clock_ahead
        steady = self.clock.is_steady(now, self.now, self.now)
        wanted = asked["wanted"]
        if wanted and not asked["kept"]:
            self.line.join(task.name, self.now)
        ahead = self.line.ahead(task.name, self.now)
        request = LeaseRequest(task.name, wanted, asked["kept"], ahead)
        lanes = lane_count(self.limits) if steady else 0
        others_wait = self.now < self.wanted_until
        turn = turn_s(len(self.line), lanes)
        assigned = assign_lanes(
            self.leases, [request], lanes, now, turn=turn, others_wait=others_wait
        )
        self.leases = list(assigned.leases)
        mine = [lease for lease in self.leases if lease.holder == task.name]
        ask_s = assigned.renew_s if mine else 0.25
        if mine or not wanted:
            self.line.leave(task.name, served=bool(mine))
        else:
            ask_s = self.line.ask_s(task.name, lanes, self.now)
            self.wanted_until = max(self.wanted_until, self.now + 1.5 * ask_s)
        tables = [timetable_of(self.limits, lease.lane, now) for lease in mine]
        task.answer = {
            "site": "shop.example",
            "free": False,
            "exclusive": self.limits.connections is not None,
            "probe": False,
            "closed_s": 0.0,
            "now": now,
            "ask_s": ask_s,
            "lanes": [
                {
                    "lane": lease.lane,
                    "first_s": table.first_s,
                    "every_s": table.every_s,
                    "until_s": lease.until - now,
                    "leaves": lease.leaves,
                    "leaves_s": assigned.leaves_s(lease, turn, now),
                }
                for lease, table in zip(mine, tables, strict=True)
            ],
        }

    def check(self) -> None:
        """Check that the limits held."""
        if self.limits.connections is not None:
            assert self.most <= self.limits.connections
        rate = self.limits.requests_per_s
        if rate is None:
            return
        first = 0
        allowed = math.ceil(rate * (1 + SLACK_S))
        for number, begun in enumerate(self.begun):
            while self.begun[first] <= begun - 1:
                first += 1
            assert number - first + 1 <= allowed


RATES = st.none() | st.integers(1, 30)
CONNECTIONS = st.none() | st.integers(1, 6)


@settings(max_examples=30)
@given(
    RATES,
    CONNECTIONS,
    st.integers(1, 5),
    st.floats(0.02, 0.4),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_limits_hold_whatever_happens_to_tasks_and_the_gateway(
    rate: int | None,
    connections: int | None,
    tasks: int,
    latency_s: float,
    settled: bool,
    seed: int,
) -> None:
    world = World(
        SiteLimits(None, rate, connections or (5 if rate is None else None)), tasks, latency_s, seed
    )
    if settled:
        others = world.tasks[1:]
        world.tasks = world.tasks[:1]
        world.tasks[0].concurrency = 1
        world.run(SETTLED_S + 5)
        world.tasks += others
    for number in range(6):
        world.run(world.random.uniform(0.2, 3))
        victim = world.random.choice(world.tasks)
        match world.random.randrange(5):
            case 0:
                victim.frozen_until = world.now + world.random.uniform(1, 1.5 * LONG_LEASE_S)
            case 1:
                world.tasks.remove(victim)
                world.tasks.append(Task(f"{number}.1.1"))
            case 2:
                world.away_until = world.now + world.random.uniform(1, 1.5 * LONG_LEASE_S)
            case 3:
                world.clock_ahead += world.random.choice((-600.0, 600.0, 3.0))
            case 4:
                victim.concurrency = world.random.choice((1, 8, 30))
    world.run(2.0)
    world.check()


@pytest.mark.parametrize("tasks", [1, 3, 12])
@pytest.mark.parametrize(("rate", "connections"), [(10, 4), (20, None), (0.5, 2)])
def test_the_limit_is_used_and_divided_while_tasks_come_and_go(
    rate: float, connections: int | None, tasks: int
) -> None:
    world = World(SiteLimits(None, rate, connections), tasks, 0.05, 1)
    for task in world.tasks:
        task.site.ask_at = world.now + world.random.uniform(0, 0.5)
    world.run(5.0)
    begun = len(world.begun)
    rounds = 12
    for number in range(rounds):
        if tasks > 1 and number % 3 == 2:
            leaver = world.tasks.pop(0)
            world.leases = [lease for lease in world.leases if lease.holder != leaver.name]
            world.tasks.append(Task(f"{number}.9.1"))
        world.run(5.0)
    world.check()
    assert (len(world.begun) - begun) / (5 * rounds * rate) >= 0.9


def test_a_task_that_is_alone_renews_seldom_until_another_one_needs_its_lanes() -> None:
    world = World(SiteLimits(None, 10.0, 3), 1, 0.05, 1)
    world.tasks[0].concurrency = 1
    world.run(40)
    calls = world.calls
    world.run(5 * LONG_RENEW_S)
    assert world.calls - calls <= 7
    world.tasks.append(Task("2.0.1"))
    world.run(0.5)
    assert {lease.holder for lease in world.leases} == {"1.0.1", "2.0.1"}, "a lane was free"
    world.tasks.append(Task("3.0.1"))
    world.run(LONG_RENEW_S + 7)
    assert {lease.holder for lease in world.leases} == {"1.0.1", "2.0.1", "3.0.1"}
    world.check()


def test_tasks_that_wait_get_their_turns_in_the_order_in_which_they_came() -> None:
    lanes = 2
    world = World(SiteLimits(None, 10.0, lanes), 12, 0.05, 1)
    served_at = {task.name: world.now for task in world.tasks}
    longest = 0.0
    for second in range(120):
        if second == 40:  # one of the waiting tasks dies
            served_at.pop(world.tasks.pop(0).name)
        world.run(1.0)
        for holder in {lease.holder for lease in world.leases} & served_at.keys():
            longest = max(longest, world.now - served_at[holder])
            served_at[holder] = world.now
    a_round = len(world.tasks) / lanes * turn_s(len(world.tasks), lanes)
    assert min(served_at.values()) > world.now - 1.25 * a_round
    assert longest < 1.25 * a_round


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_task_with_many_hosts_gets_no_more_turns_than_another_one(lanes: int) -> None:
    world = World(SiteLimits(None, 10.0, lanes), 1, 0.05, 1)
    world.tasks = [Task(f"1.0.1/{number}") for number in range(20)]
    others = [f"{number}.0.1/0" for number in range(2, 2 + lanes)]
    world.tasks += [Task(name) for name in others]
    seconds: Counter[str] = Counter()
    for _ in range(600):
        world.run(0.2)
        seconds.update(lease.task for lease in world.leases)
    world.check()
    fair = sum(seconds.values()) / (1 + lanes)
    assert all(seconds[task_of(name)] > 0.7 * fair for name in others), seconds


def test_hosts_of_a_task_that_is_alone_share_all_lanes_in_turns() -> None:
    world = World(SiteLimits(None, 20.0, 4), 1, 0.05, 1)
    world.tasks = [Task(f"1.0.1/{number}") for number in range(12)]
    held: Counter[str] = Counter()
    for _ in range(60):
        world.run(1.0)
        held.update(lease.holder for lease in world.leases)
    world.check()
    assert len(held) == 12
    assert len(world.begun) > 0.85 * 60 * 20


def test_a_lane_that_a_task_returns_while_others_wait_is_not_for_its_other_hosts() -> None:
    """The others may ask another gateway, which gets a moment to answer them."""
    leases = [LaneLease(0, "1.0.1/a", 0.0, LEASE_S)]
    returns = LeaseRequest("1.0.1/a", 0)
    takes = LeaseRequest("1.0.1/b", 1)
    assert not assign_lanes(leases, [returns, takes], 1, 1.0, others_wait=True).leases
    assert assign_lanes(leases, [returns, takes], 1, 1.0).leases
    assert assign_lanes([], [takes], 1, 1.1, others_wait=True).leases


@pytest.mark.parametrize(
    ("waiting", "lanes"), [(0, 4), (36, 4), (1, 1), (60, 4), (1000, 1), (5, 0)]
)
def test_turns_are_shorter_where_many_wait(waiting: int, lanes: int) -> None:
    turn = turn_s(waiting, lanes)
    assert TURN_RANGE_S[0] <= turn <= TURN_RANGE_S[1]
    if turn > TURN_RANGE_S[0]:
        assert turn * waiting / lanes <= ROUND_S


def test_a_lane_waits_a_moment_for_the_task_that_is_next() -> None:
    line = Line()
    for holder in ("1.0.1", "2.0.1", "3.0.1"):
        line.join(holder, 0.0)
        line.ask_s(holder, 1, 0.0)
    assert [line.ahead(holder, 0.1) for holder in ("1.0.1", "2.0.1", "3.0.1")] == [0, 1, 1]
    behind = LeaseRequest("3.0.1", 1, (), line.ahead("3.0.1", 0.1))
    assert not assign_lanes([], [behind], 1, 0.1).leases
    late = LeaseRequest("3.0.1", 1, (), line.ahead("3.0.1", 1.0))
    assert assign_lanes([], [late], 1, 1.0).leases, "nobody asked in time"
    line.join("3.0.1", 20.0)
    assert len(line) == 1, "the others do not ask any more"


def test_a_holder_that_wanted_no_lane_in_the_end_costs_its_task_no_turn() -> None:
    line = Line()
    for _ in range(9):
        line.join("1.0.1/a", 0.0)
        line.leave("1.0.1/a")
    for holder in ("1.0.1/a", "1.0.1/b", "2.0.1/a"):
        line.join(holder, 0.0)
    assert [line.ahead(holder, 0.0) for holder in ("1.0.1/a", "2.0.1/a", "1.0.1/b")] == [0, 1, 2]
    line.leave("1.0.1/a", served=True)
    line.join("1.0.1/a", 0.0)
    line.join("3.0.1/a", 0.0)
    order = ("2.0.1/a", "3.0.1/a", "1.0.1/b", "1.0.1/a")
    assert [line.ahead(holder, 0.0) for holder in order] == [0, 1, 2, 3]


def test_a_task_that_never_returns_a_lane_loses_it_when_others_wait() -> None:
    limits = SiteLimits(connections=1)
    greedy = LeaseRequest("1.0.1", 1, [0])
    poor = LeaseRequest("2.0.1", 1)
    leases = assign_lanes([], [greedy], lane_count(limits), 0.0).leases
    for now in range(1, 400):
        asking = [poor, greedy]
        leases = assign_lanes(leases, asking, 1, float(now), others_wait=now > 1).leases
        if leases[0].holder == poor.holder:
            break
    assert now < 200


def test_tasks_that_come_wait_for_the_end_of_long_requests() -> None:
    world = World(SiteLimits(None, None, 2), 1, 60.0, 1)
    world.longest_s = LEAVE_S - 10
    for _ in range(4):
        world.run(60.0)
        world.tasks.append(Task(f"{len(world.tasks) + 1}.0.1"))
    world.run(60.0)
    world.check()
    assert len({lease.holder for lease in world.leases}) == 2, "they take turns"


@pytest.mark.parametrize("lanes_left", [1, 0])
def test_a_request_in_progress_may_end_long_after_its_lane_began_to_leave(lanes_left: int) -> None:
    """It began an hour after the lane was given, when another task came or a lane was removed."""
    begun = 3_600.0
    leases: Sequence[LaneLease] = [LaneLease(0, "1.0.1", 0.0, begun + LEASE_S)]
    keeps = LeaseRequest("1.0.1", 1, [0])
    comes = LeaseRequest("2.0.1", 1)
    for second in range(int(LEAVE_S)):
        now = begun + second
        assigned = assign_lanes(leases, [comes, keeps], lanes_left, now, others_wait=True)
        leases = assigned.leases
        [lease] = leases
        assert (lease.holder, lease.leaves) == ("1.0.1", True)
        assert assigned.leaves_s(lease, 6.0, now) == 0
    for second in range(math.ceil(LEASE_S) + 1):
        now = begun + LEAVE_S + second
        leases = assign_lanes(leases, [comes, keeps], lanes_left, now, others_wait=True).leases
    assert [lease.holder for lease in leases] == ["2.0.1"] * lanes_left


def test_a_task_alone_on_several_hosts_of_a_site_renews_seldom() -> None:
    held = [LaneLease(n, f"1.0.1/{n}", 0.0, 10.0 + LEASE_S) for n in range(2)]
    renewed = [LeaseRequest(lease.holder, 1, [lease.lane]) for lease in held]
    assert assign_lanes(held, renewed, 3, SETTLED_S).renew_s == LONG_RENEW_S
    other = [held[0], replace(held[1], holder="2.0.1/1")]
    both = [LeaseRequest(lease.holder, 1, [lease.lane]) for lease in other]
    assert assign_lanes(other, both, 3, SETTLED_S).renew_s == RENEW_S


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 1)), min_size=1))
def test_a_slow_answer_is_no_sign_of_a_clock_that_was_set(
    answers: list[tuple[float, float]],
) -> None:
    """``answers`` are seconds that each one took, and the part of them before the time was read."""
    clock = SteadyClock()
    now = 0.0
    for took, part in answers:
        assert clock.is_steady(1e9 + now + took * part, now, now + took)
        now += took + 1


@given(st.lists(st.floats(0, 20)), st.floats(1.1, 1e6) | st.floats(-1e6, -1.1))
def test_a_clock_that_was_set_is_noticed(slow: list[float], jump_s: float) -> None:
    clock = SteadyClock()
    assert clock.is_steady(1e9, 0.0, 0.0)
    now = 1.0
    for took in slow:
        assert clock.is_steady(1e9 + now, now, now + took)
        now += took
    assert not clock.is_steady(1e9 + now + jump_s, now, now)
    assert not clock.is_steady(1e9 + now + LONG_LEASE_S - 1 + jump_s, *[now + LONG_LEASE_S - 1] * 2)
    assert clock.is_steady(1e9 + now + LONG_LEASE_S + jump_s, *[now + LONG_LEASE_S] * 2)


def test_a_site_rests_longer_each_time_and_never_shorter() -> None:
    limits = SiteLimits(rest_s=60)
    state = blocked(SiteState(), Block(429), limits, 0.0)
    assert (state.closed_until, state.closures) == (60.0, 1)
    assert blocked(state, Block(429), limits, 1.0) == state, "it was in progress"
    assert blocked(state, Block(429, 5.0), limits, 1.0) == state
    assert blocked(state, Block(429, 100.0), limits, 1.0) == SiteState(101.0, 1)
    assert passed(state, 1.0) == state
    again = blocked(state, Block(503), limits, 60.0)
    assert (again.closed_until, again.closures) == (180.0, 2)
    assert passed(again, 180.0) == SiteState()


@given(st.none() | st.floats(0, 1e9), st.integers(0, 30))
def test_a_stranger_closes_a_site_for_an_hour_at_most(retry_s: float | None, before: int) -> None:
    state = SiteState(0.0, before)
    stranger = replace(Block.of(429, retry_s), most_s=STRANGER_MAX_S)
    after = blocked(state, stranger, SiteLimits(), 100.0)
    assert 1 <= after.closed_s(100.0) <= STRANGER_MAX_S
    own = blocked(state, Block.of(429, retry_s), SiteLimits(), 100.0)
    assert own.closed_until >= after.closed_until
    assert blocked(own, stranger, SiteLimits(), 101.0).closed_until >= own.closed_until
