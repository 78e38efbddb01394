"""Writers that were overtaken: by a later attempt, a later poll, the next step.

They change nothing and say so.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

import pytest

from crawler_lifecycle.domain.errors import Fenced, Overtaken, RowEdited
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.task import Counters, Phase
from crawler_lifecycle.ports.polls import Poll
from crawler_lifecycle.ports.runs import DeployedTask, Fence, Resumption
from crawler_lifecycle.store.runs.unit import check_fence
from tests.contracts.store.world import START, World, good_end, seen


def test_a_refusal_names_the_run_both_attempts_and_both_owners() -> None:
    row = {"run_id": 7, "run_uid": "u", "attempt": 3, "owner_run_id": "c3"}
    check_fence(row, Fence(7, 3, "c3", "u"))
    for attempt, owner in ((2, "c2"), (2, "c3"), (3, "c2"), (4, "c4")):
        with pytest.raises(Fenced) as caught:
            check_fence(row, Fence(7, attempt, owner, "u"))
        words = str(caught.value)
        assert "Run 7 is at attempt 3 of owner c3" in words
        assert f"attempt {attempt} of owner {owner} may no longer write" in words


def test_whatever_else_is_the_same_a_writer_of_another_run_is_refused_for_good() -> None:
    """Its number was given out again: no row is mended for it, as for one that another hand has
    edited.
    """
    row = {"run_id": 7, "run_uid": "u", "attempt": 1, "owner_run_id": "c"}
    for owner in ("c", "d"):
        with pytest.raises(Fenced, match="this run has the uid other") as caught:
            check_fence(row, Fence(7, 1, owner, "other"))
        assert not isinstance(caught.value, RowEdited)


def test_a_refused_write_is_told_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    fence = world.executing()
    world.finish(fence, failed=[0])
    world.resume(fence)
    with caplog.at_level(logging.WARNING), pytest.raises(Fenced):
        world.store.polls.apply_findings(fence, "look")
    [record] = [r for r in caplog.records if r.getMessage().startswith("refused a late write")]
    assert record.levelno == logging.WARNING
    assert f"Run {fence.run_id} is at attempt 2" in record.getMessage()
    assert "attempt 1 of owner" in record.getMessage()


def test_a_poll_that_was_ordered_earlier_takes_nothing_back(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The frozen one saw the task execute; its successor saw the end, and that is staged."""
    fence = world.executing()
    ordered = world.clock.now
    [task] = world.store.polls.found_state(fence).tasks
    frozen = Poll(
        world.clock.now,
        0.1,
        [seen(task, Phase.EXECUTING, ordered, uid=task.uid, counters=Counters(3))],
    )
    world.clock.forward(30)
    newer = [seen(task, Phase.ENDED, world.clock.now, uid=task.uid, end=good_end(world.clock.now))]
    world.stage(fence, newer)
    poll = Poll(world.clock.now, 0.1, newer)
    findings = world.store.polls.staged(fence)
    world.store.polls.record_poll(fence, poll, findings, None, "look", world.clock.now)
    before = (
        world.row(fence),
        world.store.polls.staged(fence),
        world.store.tasks.list_tasks(fence.run_id),
    )
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(Overtaken, match=f"run {fence.run_id}, attempt 1"),
    ):
        world.store.polls.record_poll(fence, frozen, [], world.clock.now, "look", ordered)
    assert (
        world.row(fence),
        world.store.polls.staged(fence),
        world.store.tasks.list_tasks(fence.run_id),
    ) == before
    assert "refused a late write" in caplog.text
    assert Overtaken.retryable, "a new try is a new poll"
    # The same order again, as after a lost answer, is no earlier one.
    world.store.polls.record_poll(fence, poll, findings, None, "look", world.clock.now)


def test_the_next_attempt_begins_with_polls_of_its_own_time(world: World) -> None:
    """Another workflow may be ordered by another server, whose clock differs."""
    fence = world.deployed()
    world.store.polls.record_poll(
        fence, Poll(START, 0.1, []), [], None, "look", START + timedelta(days=1)
    )
    after = world.resume(fence)
    world.store.polls.record_poll(after, Poll(START, 0.1, []), [], None, "resume", START)


def test_a_sync_applies_what_its_own_poll_found_and_nothing_else(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    fence = world.executing()
    before = world.clock.now
    world.clock.forward(30)
    [task] = world.store.polls.found_state(fence).tasks
    world.stage(
        fence,
        [seen(task, Phase.ENDED, world.clock.now, uid=task.uid, end=good_end(world.clock.now))],
    )
    with caplog.at_level(logging.WARNING):
        world.store.polls.apply_findings(fence, "look", before)
    assert "refused to apply the poll" in caplog.text
    assert world.statuses(fence) == {0: "RUNNING"}
    assert len(world.store.polls.staged(fence)) == 1, "they are left to whoever ordered that poll"
    world.store.polls.apply_findings(fence, "look", world.clock.now)
    assert world.statuses(fence) == {0: "SUCCEEDED"}


def test_a_late_word_about_waiting_is_not_believed(world: World) -> None:
    fence = world.deployed()
    world.store.deployment.note_waiting(fence, "waiting: 1 of 1 slots in use")
    assert world.row(fence).waiting_for == "waiting: 1 of 1 slots in use"
    world.execute(fence)
    world.store.deployment.note_waiting(fence, "scheduler service: the deployment call expired")
    assert world.row(fence).waiting_for is None


def test_what_a_later_wave_waited_for_is_over_when_it_is_deployed(world: World) -> None:
    fence = world.run(tasks=2)
    world.deploy(fence, limit=1)
    [first, _] = world.store.polls.found_state(fence).tasks
    world.poll(fence, [seen(first, Phase.EXECUTING, world.clock.now, uid=first.uid)])
    world.store.deployment.mark_started(fence, world.clock.now)
    world.store.deployment.note_waiting(fence, "scheduler service: refused")
    assert world.row(fence).waiting_for == "scheduler service: refused"
    assert world.deploy(fence) == [1]
    assert world.row(fence).waiting_for is None


def test_a_late_start_moves_no_plan(world: World) -> None:
    fence = world.executing()
    planned = world.clock.forward(900)
    world.stage(fence, [])
    row = world.row(fence)
    assert row.next_look_at == planned + timedelta(minutes=1)
    assert world.store.deployment.mark_started(fence, START, START) is RunStatus.PROCESSING
    assert world.row(fence) == row


def test_what_tasks_say_about_going_on_is_kept_with_them(world: World) -> None:
    first = world.executing(tasks=4)
    assert world.store.runs.resumption(first.run_id) == []
    world.finish(first, failed=[0, 1, 2])
    fence = world.resume(first)
    world.deploy(fence)
    said = {0: (False, "It began anew"), 1: (True, "It went on"), 2: (False, "It began anew")}
    tasks = {task.index: task for task in world.store.polls.found_state(fence).tasks}
    observed = [
        seen(
            tasks[index],
            Phase.EXECUTING,
            world.clock.now,
            uid=tasks[index].uid,
            resumed=resumed,
            resume_note=note,
        )
        for index, (resumed, note) in said.items()
    ]
    world.poll(fence, observed)
    world.poll(fence, [replace(o, resumed=None, resume_note=None) for o in observed])
    expected = [Resumption(False, "It began anew", 2), Resumption(True, "It went on", 1)]
    assert world.store.runs.resumption(fence.run_id) == expected
    rows = {
        t.task_index: (t.resumed, t.resume_note) for t in world.store.tasks.list_tasks(fence.run_id)
    }
    assert rows == {**said, 3: (None, None)}, "a task that says nothing any more keeps what it said"


def test_an_answer_about_another_task_is_nobodys(world: World) -> None:
    """The frozen deployment call wakes when its tasks are recorded: nothing is taken back."""
    fence = world.deployed(tasks=2)
    before = (
        world.row(fence),
        world.store.tasks.list_tasks(fence.run_id),
        world.store.runs.transitions(fence.run_id),
    )
    late = [
        DeployedTask(0, "created", "other", "another-uid"),
        DeployedTask(1, "deferred", reason="quota"),
    ]
    world.store.deployment.record_deployed(fence, "local", late, world.clock.forward(60))
    assert (
        world.row(fence),
        world.store.tasks.list_tasks(fence.run_id),
        world.store.runs.transitions(fence.run_id),
    ) == before


def test_a_task_that_was_offered_again_is_not_put_off_by_the_answer_to_the_offer_before(
    world: World,
) -> None:
    """Otherwise a stop would take it for one that nobody has on the way, and cancel it."""
    fence = world.run()
    first = world.clock.now + timedelta(seconds=25)
    world.store.deployment.offer_tasks(fence, 10, None, first)
    second = world.clock.forward(30) + timedelta(seconds=25)
    world.store.deployment.offer_tasks(fence, 10, None, second)
    deferred = [DeployedTask(0, "deferred", reason="quota")]
    world.store.deployment.record_deployed(fence, "local", deferred, world.clock.now, first)
    assert world.store.stops.cancel_queued(fence, world.clock.now).queued == 1, (
        "it may be on its way"
    )
    world.store.deployment.record_deployed(fence, "local", deferred, world.clock.now, second)
    assert world.store.stops.cancel_queued(fence, world.clock.now).queued == 0
