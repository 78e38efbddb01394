"""Observers that lie, and what happens between the two halves of a poll: nothing untrue is
recorded, and nothing twice.

An event is never evidence. It only says where to poll.
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
from tests.activities.world import OTHER, World
from tests.support.fakes.cluster import FINISHED, Behaviour

TASKS = FEW + 5


def recorder_of(world: World) -> Recorder:
    policies = Policies(world.store.retries, world.catalogue, Retries(), NO_ENDS)
    return Recorder(world.store.polls, world.store.retries, world.cluster, policies, world.clock)


def lie(rng: random.Random) -> frozenset[tuple[int, int]] | None:
    """Tasks that have not changed, that are not there, of other attempts, or all."""
    named = [
        (rng.randrange(-1, 2 * TASKS), rng.choice((0, 1, 1, 1, 2, 10**9)))
        for _ in range(rng.randrange(FEW + 9))
    ]
    return rng.choice((None, frozenset(), frozenset(named), frozenset(named)))


def untrue(world: World, fence: Fence) -> set[int]:
    """Tasks on record as ended whose process lives."""
    alive = {index for _, index, _ in world.cluster.alive(fence.run_id)}
    return {
        t.task_index
        for t in world.tasks(fence.run_id)
        if t.status.terminal and t.task_index in alive
    }


def ends_twice(world: World, fence: Fence) -> list[int]:
    moves = [
        t
        for t in world.store.runs.transitions(fence.run_id)
        if t.task_id and TaskStatus(t.to_status).terminal
    ]
    ids = [t.task_id for t in moves]
    return [one for one in ids if one is not None and ids.count(one) > 1]


@pytest.mark.parametrize("seed", range(6))
def test_an_observer_that_lies_costs_polls_and_no_truth(world: World, seed: int) -> None:
    """Events of tasks that did not change, replayed ones, and none of tasks that did.

    A planned poll finds the rest.
    """
    rng = random.Random(seed)
    world.cluster.behaviour = Behaviour(executes=None)
    fence, recorder = world.started(TASKS), recorder_of(world)
    ended = set[int]()
    for _ in range(25):
        world.forward(rng.uniform(0.1, 2))
        for index in rng.sample(range(TASKS), rng.randrange(3)):
            if index not in ended:
                world.cluster.end_now(fence.run_id, index, end=FINISHED)
                ended.add(index)
        recorder.record(fence, "wake", lie(rng))
        assert not untrue(world, fence)
    world.forward(2)
    world.round(fence)
    assert {t.task_index for t in world.tasks() if str(t.status) == "SUCCEEDED"} == ended
    assert {str(t.status) for t in world.tasks() if t.task_index not in ended} == {"RUNNING"}
    assert not ends_twice(world, fence)
    assert world.store.corrections.list_corrections(run_id=fence.run_id) == []


def resumed(world: World, fence: Fence) -> None:
    world.resumed(fence.run_id)


def stopped(world: World, fence: Fence) -> None:
    world.store.stops.record_stop(fence.run_id, StopIntent(world.clock(), requested_by="ann"), "s1")


def polled_at(world: World, fence: Fence) -> None:
    recorder_of(world).record(fence, "wake")


def judged(world: World, fence: Fence) -> None:
    world.round(fence)
    world.call("update_run_status", fence)


@pytest.mark.parametrize("meanwhile", [resumed, stopped, polled_at, judged])
def test_a_poll_counts_for_nothing_if_something_was_recorded_since_it_began(
    world: World, meanwhile: Callable[[World, Fence], None]
) -> None:
    """A resume, a stop, another poll, and the end of the run come between reading and writing."""
    fence = world.started(2)
    world.forward(40)
    step = PollStep(world.store.polls, world.cluster, fence)
    state = world.store.polls.found_state(fence)
    poll = world.cluster.poll(fence.run, [ref_of(task) for task in state.tasks])
    meanwhile(world, fence)
    before = world.tables()
    with contextlib.suppress(Fenced, Overtaken):
        step.record_at_once(state, poll, "wake", world.clock())
    assert world.tables() == before
    assert not ends_twice(world, fence)


def test_a_run_that_another_workflow_has_taken_is_recorded_for_that_one_alone(world: World) -> None:
    fence = world.started(2)
    world.resumed(fence.run_id, OTHER)
    world.forward(40)
    with pytest.raises(Fenced):
        recorder_of(world).record(fence, "wake")
    assert world.store.runs.transitions(fence.run_id)[-1].to_status != "SUCCEEDED"


def test_what_a_hand_has_ended_meanwhile_stays_as_it_is(world: World) -> None:
    fence = world.started(2)
    world.forward(40)
    step = PollStep(world.store.polls, world.cluster, fence)
    state = world.store.polls.found_state(fence)
    poll = world.cluster.poll(fence.run, [ref_of(task) for task in state.tasks])
    ended = "status = 'CANCELLED', outcome = 'cancelled', ended_at = CURRENT_TIMESTAMP"
    with world.store.database.writing() as conn:
        conn.execute(text(f"UPDATE task_history SET {ended} WHERE task_index = 0"))
    step.record_at_once(state, poll, "wake", world.clock())
    assert world.statuses() == ["CANCELLED", "SUCCEEDED"]
    ids = [t.task_id for t in world.store.runs.transitions(1) if t.to_status == "SUCCEEDED"]
    assert ids == [world.tasks()[1].task_id]
