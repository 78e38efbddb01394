"""Observers that report wrong events, and changes between the two halves of a poll: nothing untrue
is recorded, and nothing twice.

An event is never evidence; it only triggers a poll.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
from sqlalchemy import text

from crawler_lifecycle.activities.poll_step import PollStep, Recorder, ref_of
from crawler_lifecycle.activities.retries import Policies
from crawler_lifecycle.domain.ends import NO_ENDS
from crawler_lifecycle.domain.errors import Fenced, Overtaken
from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.runs.polls import FEW
from tests.activities.harness import OTHER, Harness
from tests.support.fakes.cluster import FINISHED, Behaviour

TASKS = FEW + 5


def recorder_of(harness: Harness) -> Recorder:
    policies = Policies(harness.store.retries, harness.catalogue, Retries(), NO_ENDS)
    return Recorder(
        harness.store.polls, harness.store.retries, harness.cluster, policies, harness.clock
    )


def lie(rng: random.Random) -> frozenset[tuple[int, int]] | None:
    """Return tasks that have not changed, do not exist, or belong to other attempts, or all tasks."""
    named = [
        (rng.randrange(-1, 2 * TASKS), rng.choice((0, 1, 1, 1, 2, 10**9)))
        for _ in range(rng.randrange(FEW + 9))
    ]
    return rng.choice((None, frozenset(), frozenset(named), frozenset(named)))


def untrue(harness: Harness, fence: Fence) -> set[int]:
    """Return the tasks that are recorded as ended while their process is alive."""
    alive = {index for _, index, _ in harness.cluster.alive(fence.run_id)}
    return {
        t.task_index
        for t in harness.tasks(fence.run_id)
        if t.status.terminal and t.task_index in alive
    }


def ends_twice(harness: Harness, fence: Fence) -> list[int]:
    moves = [
        t
        for t in harness.store.runs.transitions(fence.run_id)
        if t.task_id and TaskStatus(t.to_status).terminal
    ]
    ids = [t.task_id for t in moves]
    return [one for one in ids if one is not None and ids.count(one) > 1]


@pytest.mark.parametrize("seed", range(6))
def test_an_observer_that_lies_costs_polls_and_no_truth(harness: Harness, seed: int) -> None:
    """Events are sent for unchanged tasks, repeated, and omitted for changed tasks.

    A planned poll finds the changes.
    """
    rng = random.Random(seed)
    harness.cluster.behaviour = Behaviour(executes=None)
    fence, recorder = harness.started(TASKS), recorder_of(harness)
    ended = set[int]()
    for _ in range(25):
        harness.forward(rng.uniform(0.1, 2))
        for index in rng.sample(range(TASKS), rng.randrange(3)):
            if index not in ended:
                harness.cluster.end_now(fence.run_id, index, end=FINISHED)
                ended.add(index)
        recorder.record(fence, "wake", lie(rng))
        assert not untrue(harness, fence)
    harness.forward(2)
    harness.round(fence)
    assert {t.task_index for t in harness.tasks() if str(t.status) == "SUCCEEDED"} == ended
    assert {str(t.status) for t in harness.tasks() if t.task_index not in ended} == {"RUNNING"}
    assert not ends_twice(harness, fence)
    assert harness.store.corrections.list_corrections(run_id=fence.run_id) == []


def resumed(harness: Harness, fence: Fence) -> None:
    harness.resumed(fence.run_id)


def stopped(harness: Harness, fence: Fence) -> None:
    harness.store.stops.record_stop(
        fence.run_id, StopIntent(harness.clock(), requested_by="ann"), "s1"
    )


def polled_at(harness: Harness, fence: Fence) -> None:
    recorder_of(harness).record(fence, "wake")


def judged(harness: Harness, fence: Fence) -> None:
    harness.round(fence)
    harness.call("update_run_status", fence)


@pytest.mark.parametrize("meanwhile", [resumed, stopped, polled_at, judged])
def test_a_poll_counts_for_nothing_if_something_was_recorded_since_it_began(
    harness: Harness, meanwhile: Callable[[Harness, Fence], None]
) -> None:
    """A resume, a stop, another poll, and the end of the run happen between reading and writing."""
    fence = harness.started(2)
    harness.forward(40)
    step = PollStep(harness.store.polls, harness.cluster, fence)
    state = harness.store.polls.found_state(fence)
    poll = harness.cluster.poll(fence.run, [ref_of(task) for task in state.tasks])
    meanwhile(harness, fence)
    before = harness.tables()
    with contextlib.suppress(Fenced, Overtaken):
        step.record_at_once(state, poll, "wake", harness.clock())
    assert harness.tables() == before
    assert not ends_twice(harness, fence)


def test_a_run_that_another_workflow_has_taken_is_recorded_for_that_one_alone(
    harness: Harness,
) -> None:
    fence = harness.started(2)
    harness.resumed(fence.run_id, OTHER)
    harness.forward(40)
    with pytest.raises(Fenced):
        recorder_of(harness).record(fence, "wake")
    assert harness.store.runs.transitions(fence.run_id)[-1].to_status != "SUCCEEDED"


def test_what_a_hand_has_ended_meanwhile_stays_as_it_is(harness: Harness) -> None:
    fence = harness.started(2)
    harness.forward(40)
    step = PollStep(harness.store.polls, harness.cluster, fence)
    state = harness.store.polls.found_state(fence)
    poll = harness.cluster.poll(fence.run, [ref_of(task) for task in state.tasks])
    ended = "status = 'CANCELLED', outcome = 'cancelled', ended_at = CURRENT_TIMESTAMP"
    with harness.store.database.writing() as conn:
        conn.execute(text(f"UPDATE task_history SET {ended} WHERE task_index = 0"))
    step.record_at_once(state, poll, "wake", harness.clock())
    assert harness.statuses() == ["CANCELLED", "SUCCEEDED"]
    ids = [t.task_id for t in harness.store.runs.transitions(1) if t.to_status == "SUCCEEDED"]
    assert ids == [harness.tasks()[1].task_id]
