"""Writers that were overtaken by a later attempt, poll or step change nothing and report this."""

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
from tests.contracts.store.harness import START, Harness, good_end, seen


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
    """The number was assigned again: no row is repaired for it, as after an edit."""
    row = {"run_id": 7, "run_uid": "u", "attempt": 1, "owner_run_id": "c"}
    for owner in ("c", "d"):
        with pytest.raises(Fenced, match="this run has the uid other") as caught:
            check_fence(row, Fence(7, 1, owner, "other"))
        assert not isinstance(caught.value, RowEdited)


def test_a_refused_write_is_told_in_the_log(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    fence = harness.executing()
    harness.finish(fence, failed=[0])
    harness.resume(fence)
    with caplog.at_level(logging.WARNING), pytest.raises(Fenced):
        harness.store.polls.apply_findings(fence, "look")
    [record] = [r for r in caplog.records if r.getMessage().startswith("refused a late write")]
    assert record.levelno == logging.WARNING
    assert f"Run {fence.run_id} is at attempt 2" in record.getMessage()
    assert "attempt 1 of owner" in record.getMessage()


def test_a_poll_that_was_ordered_earlier_takes_nothing_back(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """The frozen poll saw the task executing; its successor saw the end, and that is staged."""
    fence = harness.executing()
    ordered = harness.clock.now
    [task] = harness.store.polls.found_state(fence).tasks
    frozen = Poll(
        harness.clock.now,
        0.1,
        [seen(task, Phase.EXECUTING, ordered, uid=task.uid, counters=Counters(3))],
    )
    harness.clock.forward(30)
    newer = [
        seen(task, Phase.ENDED, harness.clock.now, uid=task.uid, end=good_end(harness.clock.now))
    ]
    harness.stage(fence, newer)
    poll = Poll(harness.clock.now, 0.1, newer)
    findings = harness.store.polls.staged(fence)
    harness.store.polls.record_poll(fence, poll, findings, None, harness.clock.now)
    before = (
        harness.row(fence),
        harness.store.polls.staged(fence),
        harness.store.tasks.list_tasks(fence.run_id),
    )
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(Overtaken, match=f"run {fence.run_id}, attempt 1"),
    ):
        harness.store.polls.record_poll(fence, frozen, [], harness.clock.now, ordered)
    assert (
        harness.row(fence),
        harness.store.polls.staged(fence),
        harness.store.tasks.list_tasks(fence.run_id),
    ) == before
    assert "refused a late write" in caplog.text
    assert Overtaken.retryable, "a new try is a new poll"
    # The same order again, as after a lost response, is not an earlier one.
    harness.store.polls.record_poll(fence, poll, findings, None, harness.clock.now)


def test_the_next_attempt_begins_with_polls_of_its_own_time(harness: Harness) -> None:
    """Another workflow may be ordered by another server, whose clock differs."""
    fence = harness.deployed()
    harness.store.polls.record_poll(
        fence, Poll(START, 0.1, []), [], None, START + timedelta(days=1)
    )
    after = harness.resume(fence)
    harness.store.polls.record_poll(after, Poll(START, 0.1, []), [], None, START)


def test_a_sync_applies_what_its_own_poll_found_and_nothing_else(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    fence = harness.executing()
    before = harness.clock.now
    harness.clock.forward(30)
    [task] = harness.store.polls.found_state(fence).tasks
    harness.stage(
        fence,
        [seen(task, Phase.ENDED, harness.clock.now, uid=task.uid, end=good_end(harness.clock.now))],
    )
    with caplog.at_level(logging.WARNING):
        harness.store.polls.apply_findings(fence, "look", before)
    assert "refused to apply the poll" in caplog.text
    assert harness.statuses(fence) == {0: "RUNNING"}
    assert len(harness.store.polls.staged(fence)) == 1, "they are left to whoever ordered that poll"
    harness.store.polls.apply_findings(fence, "look", harness.clock.now)
    assert harness.statuses(fence) == {0: "SUCCEEDED"}


def test_a_late_word_about_waiting_is_not_believed(harness: Harness) -> None:
    fence = harness.deployed()
    harness.store.deployment.note_waiting(fence, "waiting: 1 of 1 slots in use")
    assert harness.row(fence).waiting_for == "waiting: 1 of 1 slots in use"
    harness.execute(fence)
    harness.store.deployment.note_waiting(fence, "scheduler service: the deployment call expired")
    assert harness.row(fence).waiting_for is None


def test_what_a_later_wave_waited_for_is_over_when_it_is_deployed(harness: Harness) -> None:
    fence = harness.run(tasks=2)
    harness.deploy(fence, limit=1)
    [first, _] = harness.store.polls.found_state(fence).tasks
    harness.poll(fence, [seen(first, Phase.EXECUTING, harness.clock.now, uid=first.uid)])
    harness.store.deployment.mark_started(fence, harness.clock.now)
    harness.store.deployment.note_waiting(fence, "scheduler service: refused")
    assert harness.row(fence).waiting_for == "scheduler service: refused"
    assert harness.deploy(fence) == [1]
    assert harness.row(fence).waiting_for is None


def test_a_late_start_moves_no_plan(harness: Harness) -> None:
    fence = harness.executing()
    planned = harness.clock.forward(900)
    harness.stage(fence, [])
    row = harness.row(fence)
    assert row.next_look_at == planned + timedelta(minutes=1)
    assert harness.store.deployment.mark_started(fence, START, START) is RunStatus.PROCESSING
    assert harness.row(fence) == row


def test_what_tasks_say_about_going_on_is_kept_with_them(harness: Harness) -> None:
    first = harness.executing(tasks=4)
    assert harness.store.runs.resumption(first.run_id) == []
    harness.finish(first, failed=[0, 1, 2])
    fence = harness.resume(first)
    harness.deploy(fence)
    said = {0: (False, "It began anew"), 1: (True, "It went on"), 2: (False, "It began anew")}
    tasks = {task.index: task for task in harness.store.polls.found_state(fence).tasks}
    observed = [
        seen(
            tasks[index],
            Phase.EXECUTING,
            harness.clock.now,
            uid=tasks[index].uid,
            resumed=resumed,
            resume_note=note,
        )
        for index, (resumed, note) in said.items()
    ]
    harness.poll(fence, observed)
    harness.poll(fence, [replace(o, resumed=None, resume_note=None) for o in observed])
    expected = [Resumption(False, "It began anew", 2), Resumption(True, "It went on", 1)]
    assert harness.store.runs.resumption(fence.run_id) == expected
    rows = {
        t.task_index: (t.resumed, t.resume_note)
        for t in harness.store.tasks.list_tasks(fence.run_id)
    }
    assert rows == {**said, 3: (None, None)}, "a task that says nothing any more keeps what it said"


def test_an_answer_about_another_task_is_nobodys(harness: Harness) -> None:
    """The frozen deployment call continues when its tasks are already recorded: nothing is undone."""
    fence = harness.run(tasks=2)
    offered, _ = harness.store.deployment.offer_tasks(fence, 2, None, harness.clock.now)
    harness.deploy(fence)
    before = (
        harness.row(fence),
        harness.store.tasks.list_tasks(fence.run_id),
        harness.store.runs.transitions(fence.run_id),
    )
    late = [
        DeployedTask(0, "created", "other", "another-uid"),
        DeployedTask(1, "deferred", reason="quota"),
    ]
    harness.store.deployment.record_deployed(
        fence, "local", offered, late, harness.clock.forward(60)
    )
    assert (
        harness.row(fence),
        harness.store.tasks.list_tasks(fence.run_id),
        harness.store.runs.transitions(fence.run_id),
    ) == before


def test_a_task_that_was_offered_again_is_not_put_off_by_the_answer_to_the_offer_before(
    harness: Harness,
) -> None:
    """Otherwise a stop would consider it free of calls in progress, and cancel it."""
    fence = harness.run()
    first = harness.clock.now + timedelta(seconds=25)
    offered, _ = harness.store.deployment.offer_tasks(fence, 10, None, first)
    second = harness.clock.forward(30) + timedelta(seconds=25)
    harness.store.deployment.offer_tasks(fence, 10, None, second)
    deferred = [DeployedTask(0, "deferred", reason="quota")]
    answered = (fence, "local", offered, deferred, harness.clock.now)
    harness.store.deployment.record_deployed(*answered, first)
    assert harness.store.stops.cancel_queued(fence, harness.clock.now).queued == 1, (
        "it may be on its way"
    )
    harness.store.deployment.record_deployed(*answered, second)
    assert harness.store.stops.cancel_queued(fence, harness.clock.now).queued == 0
