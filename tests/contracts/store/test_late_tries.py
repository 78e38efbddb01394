"""Tries of activities that were assumed dead and continue: what they write late undoes nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from crawler_lifecycle.domain.crawlers.crawler import with_limits
from crawler_lifecycle.domain.errors import DuplicateRequest, Fenced
from crawler_lifecycle.domain.run import RunRequest, RunStatus
from crawler_lifecycle.domain.task import Counters, Phase, TaskStatus
from crawler_lifecycle.ports.polls import Details, Poll
from crawler_lifecycle.ports.runs import DeployedTask, Owner
from tests.contracts.store.harness import (
    OTHER,
    OWNER,
    START,
    Harness,
    closed,
    good_end,
    request,
    seen,
)

UNTIL, LATER = START + timedelta(seconds=25), START + timedelta(seconds=60)


def test_a_late_offer_does_not_shorten_a_later_one(harness: Harness) -> None:
    """Otherwise a stop would ignore what a call in progress may still create."""
    fence = harness.run(tasks=2)
    harness.store.deployment.offer_tasks(fence, 2, None, LATER)
    late, _ = harness.store.deployment.offer_tasks(fence, 2, None, UNTIL)
    assert [task.offered_until for task in late] == [LATER, LATER]
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s")
    harness.clock.forward(40)
    harness.poll(
        fence,
        [
            seen(t, Phase.ABSENT, harness.clock.now)
            for t in harness.store.polls.found_state(fence).tasks
        ],
    )
    assert harness.store.stops.cancel_queued(fence, harness.clock.now).queued == 2
    harness.clock.forward(30)
    harness.poll(
        fence,
        [
            seen(t, Phase.ABSENT, harness.clock.now)
            for t in harness.store.polls.found_state(fence).tasks
        ],
    )
    assert harness.store.stops.cancel_queued(fence, harness.clock.now).queued == 0


def test_nothing_that_a_late_offer_was_answered_settles_a_later_one(harness: Harness) -> None:
    fence = harness.run(tasks=2)
    harness.store.deployment.offer_tasks(fence, 2, None, LATER)
    late, _ = harness.store.deployment.offer_tasks(fence, 2, None, UNTIL)
    harness.store.deployment.withdraw_offer(fence, late, UNTIL)
    answers = [
        DeployedTask(0, "deferred", reason="full"),
        DeployedTask(1, "deferred", reason="full"),
    ]
    harness.store.deployment.record_deployed(
        fence, "local", late, answers, harness.clock.now, UNTIL
    )
    harness.store.deployment.refuse_queued(fence, "no", late, UNTIL)
    assert [task.offered_until for task in harness.store.polls.found_state(fence).tasks] == [
        LATER,
        LATER,
    ]
    assert set(harness.statuses(fence).values()) == {TaskStatus.QUEUED}


def test_late_details_leave_an_end_as_it_is_on_record(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    first, second = harness.store.polls.found_state(fence).tasks
    older = Details(first.task_id, "half of it\n", Counters(3, 1, 0, 10))
    harness.clock.forward(10)
    end = seen(
        first, Phase.ENDED, harness.clock.now, uid=first.uid, end=good_end(harness.clock.now)
    )
    harness.stage(fence, [end])
    harness.store.polls.save_details(
        fence, [Details(first.task_id, "all of it\n", Counters(10, 5, 0, 100))]
    )
    harness.store.polls.apply_details(fence)
    harness.store.polls.apply_findings(fence, "look")
    # Fetched before the end, by an abandoned try.
    harness.store.polls.save_details(fence, [older])
    harness.clock.forward(10)
    harness.poll(
        fence,
        [
            seen(
                second,
                Phase.ENDED,
                harness.clock.now,
                uid=second.uid,
                end=good_end(harness.clock.now),
            )
        ],
    )
    task = next(
        t for t in harness.store.tasks.list_tasks(fence.run_id) if t.task_id == first.task_id
    )
    assert (task.pages, task.items, harness.store.tasks.log_tail(first.task_id)) == (
        10,
        5,
        "all of it\n",
    )


def test_a_poll_that_fails_late_does_not_say_that_polls_fail(harness: Harness) -> None:
    """The poll hung and was abandoned; a poll that was ordered later has succeeded since."""
    fence = harness.deployed()
    task = harness.store.polls.found_state(fence).tasks[0]
    poll = Poll(
        harness.clock.now, 0.1, [seen(task, Phase.EXECUTING, harness.clock.now, uid=task.uid)]
    )
    harness.store.polls.record_poll(fence, poll, [], LATER, LATER)
    harness.store.polls.record_poll_error(fence, "no answer within 60 s", UNTIL)
    assert (harness.row(fence).look_error, harness.row(fence).look_error_since) == (None, None)
    for ordered_at in (LATER, LATER + timedelta(seconds=1), None):
        harness.store.polls.record_poll_error(fence, "no answer within 60 s", ordered_at)
        assert harness.row(fence).look_error == "no answer within 60 s"
        harness.store.polls.record_poll(fence, poll, [], LATER)
        assert harness.row(fence).look_error is None


@pytest.mark.parametrize("repair", [False, True])
def test_a_workflow_that_lost_a_run_does_not_claim_it_again(harness: Harness, repair: bool) -> None:
    """Its first try was abandoned, and a second one claimed the run. Then others did, and now the
    first one continues.
    """
    fence = harness.deployed()
    harness.finish(fence, failed=[0])
    second = harness.resume(fence, OTHER)
    third = harness.resume(second, Owner("crawl/services/third", "chain-3"))
    harness.deploy(third)
    ended = harness.finish(third, failed=[0])
    assert ended.status is RunStatus.FAILED
    for late in (OWNER, OTHER):
        with pytest.raises(Fenced, match="may not claim it again"):
            harness.store.initiation.claim_run(
                RunRequest(run_id=fence.run_id), late, closed, repair=repair
            )
    assert harness.row(fence) == ended
    again = harness.store.initiation.claim_run(
        RunRequest(run_id=fence.run_id), Owner("crawl/services/new", "chain-4"), closed
    )
    assert again.attempt == 4


def test_a_second_try_that_knows_another_catalogue_finds_the_run_of_the_first(
    harness: Harness,
) -> None:
    """The worker that created the run died before it responded, and the other worker has reloaded
    the catalogue.
    """
    first = harness.store.initiation.create_run(
        with_limits(request(), {"stall_timeout_s": 60.0}), "r", OWNER
    )
    other = with_limits(request(), {"stall_timeout_s": 90.0})
    assert harness.store.initiation.create_run(other, "r", OWNER) == first
    assert first.request.limits.stall_timeout_s == 60.0
    with pytest.raises(DuplicateRequest):
        harness.store.initiation.create_run(other, "r", OTHER)
