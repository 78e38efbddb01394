"""Two processes poll one run while it is being stopped.

In any order, the record is true and contains each change once. One of them records at once, as an
observer's process does. The other stages what it finds and applies it later, as the activities of a
workflow do. Their clocks may differ by an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from pathlib import Path

import pytest

from crawler_lifecycle.activities.poll_step import PollStep, Recorder, ref_of
from crawler_lifecycle.activities.retries import Policies
from crawler_lifecycle.domain.ends import NO_ENDS
from crawler_lifecycle.domain.errors import ClusterUnavailable, Overtaken
from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports.polls import FoundState, Poll
from crawler_lifecycle.ports.runs import Fence, TaskRef
from crawler_lifecycle.store.runs.polls import FEW
from tests.activities.harness import Harness
from tests.support.covering import covering
from tests.support.fakes.cluster import FINISHED, Behaviour

#: What each step touches: the process that records at once reads the record, polls the cluster and
#: writes; the one that stages its findings also applies them. Capitals write.
A, B = ("r", "l", "R"), ("r", "l", "R", "R")
#: What happens meanwhile: a stop is recorded and sent to the recorded tasks; or a task ends,
#: followed by a stop.
STOPPED, ENDED = ("R", "rL"), ("L", "R")
#: What happens meanwhile, one step at a time.
Meanwhile = Callable[[Harness, Fence], Iterator[None]]
#: Hours by which the clock of the process that records at once differs.
SKEWS = (0, -1, 1)


def policies(harness: Harness) -> Policies:
    return Policies(harness.store.retries, harness.catalogue, Retries(), NO_ENDS)


def orders(left: dict[str, int], begun: str = "") -> Iterator[str]:
    """Return every order of these turns."""
    if not any(left.values()):
        yield begun
    for who, turns in left.items():
        if turns:
            yield from orders({**left, who: turns - 1}, begun + who)


#: For each two steps that touch the same, whether the first of them comes first.
Relations = tuple[bool, ...]


def different(meanwhile: Sequence[str]) -> dict[str, Relations]:
    """Return one of all orders that differ only in steps that are independent of each other, with
    what distinguishes it.
    """
    steps = [
        (who, n, what)
        for who, whats in (("a", A), ("b", B), ("c", meanwhile))
        for n, what in enumerate(whats)
    ]
    meeting = [
        (one[:2], two[:2])
        for one, two in combinations(steps, 2)
        if one[0] != two[0]
        and any(x.lower() == y.lower() and (x + y).lower() != x + y for x in one[2] for y in two[2])
    ]
    found: dict[Relations, str] = {}
    for order in orders({"a": len(A), "b": len(B), "c": len(meanwhile)}):
        at = {(who, order[:place].count(who)): place for place, who in enumerate(order)}
        found.setdefault(tuple(at[one] < at[two] for one, two in meeting), order)
    return {order: relations for relations, order in found.items()}


#: Those of 2 * 1,260 orders that can end differently.
ORDERS = {"stopped": different(STOPPED), "ended": different(ENDED)}


def some(events: str, together: int) -> list[str]:
    """Return the fewest orders in which any ``together`` relations occur in all combinations; 0
    returns all.
    """
    found = ORDERS[events]
    if not together:
        return list(found)
    return covering(found, lambda order: set(combinations(enumerate(found[order]), together)))


def test_the_orders_are_those_that_can_differ() -> None:
    assert {name: len(found) for name, found in ORDERS.items()} == {"stopped": 220, "ended": 118}
    assert [len(some("stopped", together)) for together in (2, 3)] == [12, 40]


def polled(harness: Harness, fence: Fence, state: FoundState, hours: int = 0) -> Poll:
    poll = harness.cluster.poll(fence.run, [ref_of(task) for task in state.tasks])
    return replace(poll, observed_at=poll.observed_at + timedelta(hours=hours))


def details(harness: Harness, step: PollStep) -> None:
    step.fetch_details()
    harness.store.polls.apply_details(step.fence)


def at_once(harness: Harness, fence: Fence, hours: int) -> Iterator[None]:
    step = PollStep(harness.store.polls, harness.cluster, fence)
    while True:
        state = harness.store.polls.found_state(fence)
        yield
        poll = polled(harness, fence, state, hours)
        yield
        try:
            step.record_at_once(state, poll, "wake", harness.clock())
        except Overtaken:
            continue
        break
    yield
    details(harness, step)


def staged(harness: Harness, fence: Fence) -> Iterator[None]:
    step = PollStep(harness.store.polls, harness.cluster, fence)
    while True:
        state = harness.store.polls.found_state(fence)
        yield
        poll = polled(harness, fence, state)
        yield
        try:
            step.record(state, poll, next_look_at=harness.clock() + timedelta(minutes=1), gap_s=60)
        except Overtaken:
            continue
        break
    yield
    harness.store.polls.apply_findings(fence, "look", poll.observed_at, details_follow=True)
    yield
    details(harness, step)


def stopped(harness: Harness, fence: Fence) -> Iterator[None]:
    harness.store.stops.record_stop(
        fence.run_id, StopIntent(harness.clock(), requested_by="ann"), "s1"
    )
    yield
    for task in harness.store.polls.found_state(fence).tasks:
        harness.cluster.stop(fence.run, ref_of(task))


def ended(harness: Harness, fence: Fence) -> Iterator[None]:
    harness.cluster.end_now(fence.run_id, 0, end=FINISHED)
    yield
    harness.store.stops.record_stop(
        fence.run_id, StopIntent(harness.clock(), requested_by="ann"), "s1"
    )


def check(harness: Harness, fence: Fence) -> None:
    """Check that no live task is recorded as ended."""
    alive = {index for _, index, _ in harness.cluster.alive(fence.run_id)}
    for task in harness.store.tasks.list_tasks(fence.run_id):
        assert not (TaskStatus(task.status).terminal and task.task_index in alive)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Harness, Fence]:
    """A run with two executing tasks, of which each order gets a copy."""
    harness = Harness.over(tmp_path_factory.mktemp("begun") / "harness")
    harness.cluster.behaviour = Behaviour(executes=None)
    fence = harness.started(2)
    harness.close()
    return harness, fence


@pytest.mark.parametrize("events", [stopped, ended])
@pytest.mark.parametrize(
    "together",
    [2, pytest.param(3, marks=pytest.mark.troubles), pytest.param(0, marks=pytest.mark.slow)],
)
def test_the_orders_of_two_pollers_and_a_stop(
    begun: tuple[Harness, Fence], tmp_path: Path, events: Meanwhile, together: int
) -> None:
    original, fence = begun
    for number, order in enumerate(some(events.__name__, together)):
        harness = original.twin(tmp_path / order)
        turns = {
            "a": at_once(harness, fence, SKEWS[number % 3]),
            "b": staged(harness, fence),
            "c": events(harness, fence),
        }
        for who in [*order, *"aaaaaabbbbbbbbcc"]:
            if who in turns:
                harness.forward(0.01)
                if next(turns[who], turns) is turns:
                    del turns[who]
                check(harness, fence)
        assert not turns, order
        harness.forward(5)
        harness.round(fence)
        tasks = harness.store.tasks.list_tasks(fence.run_id)
        moves = [t for t in harness.store.runs.transitions(fence.run_id) if t.task_id]
        for task in tasks:
            ends = [
                t.to_status
                for t in moves
                if t.task_id == task.task_id and TaskStatus(t.to_status).terminal
            ]
            assert ends in ([str(task.status)], []), order
        if events is stopped:
            assert {str(task.status) for task in tasks} == {"CANCELLED"}, order
        else:
            assert str(tasks[0].status) == "SUCCEEDED", order
        assert harness.store.tasks.log_tail(tasks[0].task_id), order
        assert harness.store.corrections.list_corrections(run_id=fence.run_id) == [], order
        harness.close()


def test_a_poll_of_few_tasks_of_a_wide_run_is_directed_at_these_and_verifies_nothing(
    harness: Harness,
) -> None:
    harness.cluster.behaviour = Behaviour(executes=None)
    fence = harness.started(FEW + 10)
    asked = list[int]()
    poll = harness.cluster.poll

    def counted(run: RunRef, tasks: Sequence[TaskRef]) -> Poll:
        asked.append(len(tasks))
        return poll(run, tasks)

    harness.cluster.poll = counted  # type: ignore[method-assign]
    recorder = Recorder(
        harness.store.polls, harness.store.retries, harness.cluster, policies(harness)
    )
    before = harness.row()
    harness.forward(3)
    harness.cluster.end_now(1, 7, end=FINISHED)
    recorded = recorder.record(fence, "wake", frozenset({(7, 1), (8, 1)}))
    assert recorded is not None
    assert (recorded.changed, asked) == (1, [2])
    assert [n for n, status in enumerate(harness.statuses()) if status == "SUCCEEDED"] == [7]
    assert (harness.row().verified_at, harness.row().next_look_at) == (
        before.verified_at,
        before.next_look_at,
    )
    recorder.record(fence, "wake", None)
    assert asked == [2, FEW + 9]
    assert harness.row().verified_at == harness.clock()


def test_the_run_starts_with_its_first_task_and_details_follow_the_status(harness: Harness) -> None:
    fence = harness.deployed()
    recorder = Recorder(
        harness.store.polls, harness.store.retries, harness.cluster, policies(harness)
    )
    harness.forward(1)
    recorder.record(fence, "wake")
    assert (str(harness.row().status), harness.statuses()) == ("PROCESSING", ["RUNNING"])
    starts = [
        t for t in harness.store.runs.transitions(1) if t.to_status in ("PROCESSING", "RUNNING")
    ]
    assert len({t.committed_at for t in starts}) == 1
    harness.forward(30)
    harness.cluster.fail_with(ClusterUnavailable("503"), "details")
    recorder.record(fence, "wake")
    assert harness.statuses() == ["SUCCEEDED"], "the status does not wait for the log"
    [task] = harness.tasks()
    assert harness.store.tasks.log_tail(task.task_id) is None
    [row] = harness.store.tasks.recorded_tasks([(1, 0, 1)])
    assert row.staged, "so its pod is kept"
    assert harness.call("count_alive_tasks", 1).details == 1, "the workflow fetches them"
    harness.cluster.fail_with(None)
    harness.call("get_bulk_task_history_data", fence)
    harness.call("reconcile_tasks", fence)
    assert harness.store.tasks.log_tail(task.task_id)
    assert harness.call("count_alive_tasks", 1).details == 0
