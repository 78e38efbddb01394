"""Tries of activities that were given up for dead and go on: what they write late takes nothing
back.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from crawler_lifecycle.domain.crawlers.crawler import with_limits
from crawler_lifecycle.domain.errors import DuplicateRequest, Fenced
from crawler_lifecycle.domain.run import RunRequest, RunStatus
from crawler_lifecycle.domain.task import Counters, Phase, TaskStatus
from crawler_lifecycle.ports.polls import Details, Poll
from crawler_lifecycle.ports.runs import DeployedTask, Owner
from tests.contracts.store.world import OTHER, OWNER, START, World, closed, good_end, request, seen

UNTIL, LATER = START + timedelta(seconds=25), START + timedelta(seconds=60)


def test_a_late_offer_does_not_shorten_a_later_one(world: World) -> None:
    """Otherwise a stop would take for void what a call that is under way may still create."""
    fence = world.run(tasks=2)
    world.store.deployment.offer_tasks(fence, 2, None, LATER)
    late, _ = world.store.deployment.offer_tasks(fence, 2, None, UNTIL)
    assert [task.offered_until for task in late] == [LATER, LATER]
    world.store.stops.record_stop(fence.run_id, world.stop(), "s")
    world.clock.forward(40)
    world.poll(
        fence,
        [
            seen(t, Phase.ABSENT, world.clock.now)
            for t in world.store.polls.found_state(fence).tasks
        ],
    )
    assert world.store.stops.cancel_queued(fence, world.clock.now).queued == 2
    world.clock.forward(30)
    world.poll(
        fence,
        [
            seen(t, Phase.ABSENT, world.clock.now)
            for t in world.store.polls.found_state(fence).tasks
        ],
    )
    assert world.store.stops.cancel_queued(fence, world.clock.now).queued == 0


def test_nothing_that_a_late_offer_was_answered_settles_a_later_one(world: World) -> None:
    fence = world.run(tasks=2)
    world.store.deployment.offer_tasks(fence, 2, None, LATER)
    late, _ = world.store.deployment.offer_tasks(fence, 2, None, UNTIL)
    world.store.deployment.withdraw_offer(fence, late, UNTIL)
    answers = [
        DeployedTask(0, "deferred", reason="full"),
        DeployedTask(1, "deferred", reason="full"),
    ]
    world.store.deployment.record_deployed(fence, "local", answers, world.clock.now, UNTIL, late)
    world.store.deployment.refuse_queued(fence, "no", late, UNTIL)
    assert [task.offered_until for task in world.store.polls.found_state(fence).tasks] == [
        LATER,
        LATER,
    ]
    assert set(world.statuses(fence).values()) == {TaskStatus.QUEUED}


def test_late_details_leave_an_end_as_it_is_on_record(world: World) -> None:
    fence = world.executing(tasks=2)
    first, second = world.store.polls.found_state(fence).tasks
    older = Details(first.task_id, "half of it\n", Counters(3, 1, 0, 10))
    world.clock.forward(10)
    end = seen(first, Phase.ENDED, world.clock.now, uid=first.uid, end=good_end(world.clock.now))
    world.stage(fence, [end])
    world.store.polls.save_details(
        fence, [Details(first.task_id, "all of it\n", Counters(10, 5, 0, 100))]
    )
    world.store.polls.apply_details(fence)
    world.store.polls.apply_findings(fence, "look")
    # Fetched before the end, by a try that was given up.
    world.store.polls.save_details(fence, [older])
    world.clock.forward(10)
    world.poll(
        fence,
        [seen(second, Phase.ENDED, world.clock.now, uid=second.uid, end=good_end(world.clock.now))],
    )
    task = next(t for t in world.store.tasks.list_tasks(fence.run_id) if t.task_id == first.task_id)
    assert (task.pages, task.items, world.store.tasks.log_tail(first.task_id)) == (
        10,
        5,
        "all of it\n",
    )


def test_a_poll_that_fails_late_does_not_say_that_polls_fail(world: World) -> None:
    """It hung and was left behind; the poll that was ordered after it has succeeded meanwhile."""
    fence = world.deployed()
    task = world.store.polls.found_state(fence).tasks[0]
    poll = Poll(world.clock.now, 0.1, [seen(task, Phase.EXECUTING, world.clock.now, uid=task.uid)])
    world.store.polls.record_poll(fence, poll, [], LATER, "look", LATER)
    world.store.polls.record_poll_error(fence, "no answer within 60 s", UNTIL)
    assert (world.row(fence).look_error, world.row(fence).look_error_since) == (None, None)
    for ordered_at in (LATER, LATER + timedelta(seconds=1), None):
        world.store.polls.record_poll_error(fence, "no answer within 60 s", ordered_at)
        assert world.row(fence).look_error == "no answer within 60 s"
        world.store.polls.record_poll(fence, poll, [], LATER, "look")
        assert world.row(fence).look_error is None


@pytest.mark.parametrize("repair", [False, True])
def test_a_workflow_that_lost_a_run_does_not_claim_it_again(world: World, repair: bool) -> None:
    """Its first try was given up, a second one claimed the run; then others did, and now the first
    one goes on.
    """
    fence = world.deployed()
    world.finish(fence, failed=[0])
    second = world.resume(fence, OTHER)
    third = world.resume(second, Owner("crawl/services/third", "chain-3"))
    world.deploy(third)
    ended = world.finish(third, failed=[0])
    assert ended.status is RunStatus.FAILED
    for late in (OWNER, OTHER):
        with pytest.raises(Fenced, match="may not claim it again"):
            world.store.initiation.claim_run(
                RunRequest(run_id=fence.run_id), late, closed, repair=repair
            )
    assert world.row(fence) == ended
    again = world.store.initiation.claim_run(
        RunRequest(run_id=fence.run_id), Owner("crawl/services/new", "chain-4"), closed
    )
    assert again.attempt == 4


def test_a_second_try_that_knows_another_catalogue_finds_the_run_of_the_first(world: World) -> None:
    """The worker that made the run died before it could say so; the other one has read the
    catalogue anew.
    """
    first = world.store.initiation.create_run(
        with_limits(request(), {"stall_timeout_s": 60.0}), "r", OWNER
    )
    other = with_limits(request(), {"stall_timeout_s": 90.0})
    assert world.store.initiation.create_run(other, "r", OWNER) == first
    assert first.request.limits.stall_timeout_s == 60.0
    with pytest.raises(DuplicateRequest):
        world.store.initiation.create_run(other, "r", OTHER)
