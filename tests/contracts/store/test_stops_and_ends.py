"""Stops, verdicts, resumption, events and exports."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from crawler_lifecycle.domain.coverage import Coverage, ExpectedCoverage
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import EVENT_RUN_ENDED, WAITING_FOR_START
from crawler_lifecycle.domain.run import EndedTasks, ExportResult, RunStatus, StopIntent, Verdict
from crawler_lifecycle.domain.task import Counters, End, Phase, TaskStatus
from crawler_lifecycle.ports.polls import Details
from tests.contracts.store.harness import START, Harness, seen

# --- stops ----------------------------------------------------------------------------------------


def test_a_stop_is_recorded_once(harness: Harness) -> None:
    fence = harness.deployed()
    rows = [
        harness.store.stops.record_stop(fence.run_id, harness.stop(reason="enough"), "s1")
        for _ in range(2)
    ]
    assert rows[0] == rows[1] == harness.row(fence)
    assert (rows[0].status, rows[0].stop) == (RunStatus.STOPPING, harness.stop(reason="enough"))
    [log] = harness.store.runs.cancellations(fence.run_id)
    assert (log["request_id"], log["requested_by"], log["reason"], log["force"]) == (
        "s1",
        "ann",
        "enough",
        False,
    )
    assert (log["requested_at"], log["acted_at"], log["attempt"]) == (START, None, 1)
    [moved] = [t for t in harness.store.runs.transitions(fence.run_id) if t.to_status == "STOPPING"]
    assert (moved.source, moved.cluster_time, moved.lag_ms) == ("stop", None, None)


def test_a_second_stop_adds_force_and_keeps_the_time(harness: Harness) -> None:
    fence = harness.deployed()
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    harness.clock.forward(5)
    row = harness.store.stops.record_stop(
        fence.run_id, harness.stop(by="bob", force=True), "s2", fence
    )
    assert row.stop == StopIntent(START, force=True, requested_by="ann")
    row = harness.store.stops.record_stop(fence.run_id, harness.stop(escalated=True), None, fence)
    assert row.stop == StopIntent(START, force=True, requested_by="ann", escalated=True)
    assert [log["request_id"] for log in harness.store.runs.cancellations(fence.run_id)] == [
        "s1",
        "s2",
    ]


def test_a_person_outweighs_a_limit(harness: Harness) -> None:
    fence = harness.deployed()
    limit = StopIntent(START, limit="timed_out", reason="2 h")
    assert harness.store.stops.record_stop(fence.run_id, limit, "x", fence).stop == limit
    assert harness.store.runs.cancellations(fence.run_id) == []
    harness.clock.forward(5)
    row = harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    assert row.stop == StopIntent(START, requested_by="ann")
    row = harness.store.stops.record_stop(fence.run_id, replace(limit, force=True), None, fence)
    assert row.stop == StopIntent(START, requested_by="ann", force=True)


def test_a_stop_after_the_end_writes_nothing(harness: Harness) -> None:
    fence = harness.deployed()
    ended = harness.finish(fence)
    events = len(harness.store.events.events_after(0))
    assert harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1") == ended
    assert harness.store.runs.cancellations(fence.run_id) == []
    assert len(harness.store.events.events_after(0)) == events


def test_queued_tasks_are_cancelled_when_a_poll_proves_that_no_call_brought_them_to_the_cluster(
    harness: Harness,
) -> None:
    fence = harness.run(tasks=3)
    harness.store.deployment.offer_tasks(fence, 1, None, START + timedelta(seconds=25))
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    for _ in range(2):
        assert harness.store.stops.cancel_queued(fence, START).by_status == {
            "QUEUED": 1,
            "CANCELLED": 2,
        }
    harness.poll(fence, [])
    later = harness.clock.forward(26)
    assert harness.store.stops.cancel_queued(fence, later).by_status == {
        "QUEUED": 1,
        "CANCELLED": 2,
    }, "polled too early"
    harness.poll(fence, [])
    assert harness.store.stops.cancel_queued(fence, later).by_status == {"CANCELLED": 3}
    task = harness.store.tasks.list_tasks(fence.run_id)[0]
    assert (task.outcome, task.cause) == ("cancelled", "Stopped by ann before it was deployed")


def test_an_offered_task_that_a_poll_has_seen_is_not_cancelled_before_that_is_applied(
    harness: Harness,
) -> None:
    """The call's response was lost; the stop interrupts the poll that finds the task, and then
    takes its next turn.
    """
    fence = harness.run()
    harness.store.deployment.offer_tasks(fence, 1, None, START + timedelta(seconds=25))
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    later = harness.clock.forward(60)
    (task,) = harness.store.polls.found_state(fence).tasks
    harness.stage(fence, [seen(task, Phase.EXECUTING, later, changed_at=later, uid="u", name="n")])
    assert harness.store.stops.cancel_queued(fence, later).by_status == {"QUEUED": 1}
    harness.store.polls.apply_findings(fence, "stop")
    assert harness.store.stops.cancel_queued(fence, later).by_status == {"RUNNING": 1}


def test_queued_tasks_under_a_limit(harness: Harness) -> None:
    fence = harness.run()
    harness.store.stops.record_stop(
        fence.run_id, StopIntent(START, limit="start_timeout"), None, fence
    )
    harness.store.stops.cancel_queued(fence, START)
    assert harness.store.tasks.list_tasks(fence.run_id)[0].outcome == "start_timeout"


def test_tasks_that_are_being_stopped(harness: Harness) -> None:
    fence = harness.run(tasks=3)
    harness.deploy(fence, limit=2)
    ids = [task.task_id for task in harness.store.tasks.list_tasks(fence.run_id)]
    for _ in range(2):
        harness.store.stops.mark_stopping(fence, ids)
    assert list(harness.statuses(fence).values()) == [
        TaskStatus.STOPPING,
        TaskStatus.STOPPING,
        TaskStatus.QUEUED,
    ]
    expected = ["stop", "stop"]
    assert [
        t.source for t in harness.store.runs.transitions(fence.run_id) if t.to_status == "STOPPING"
    ] == expected


def test_stops_that_nobody_heard(harness: Harness) -> None:
    fence = harness.deployed()
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    later = harness.clock.forward(30)
    assert harness.store.sweep.unheard_stops(START) == []
    assert [r.run_id for r in harness.store.sweep.unheard_stops(later)] == [fence.run_id]
    for at in (later, later + timedelta(seconds=9)):
        harness.store.stops.acted_on_stop(fence, at)
    assert harness.store.sweep.unheard_stops(later) == []
    assert harness.store.runs.cancellations(fence.run_id)[0]["acted_at"] == later
    # A stop that bypasses the workflow and asks for more has to be received again; the workflow's
    # own has not.
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    harness.store.stops.record_stop(fence.run_id, harness.stop(escalated=True), None, fence)
    assert harness.store.sweep.unheard_stops(later) == []
    harness.store.stops.record_stop(fence.run_id, harness.stop(force=True), "s2")
    assert [r.run_id for r in harness.store.sweep.unheard_stops(later)] == [fence.run_id]


def test_a_stop_by_a_clock_that_is_ahead_is_sent_again_in_time(harness: Harness) -> None:
    """The database dates stops, and may be ahead of the gateway that sends them again."""
    fence = harness.deployed()
    harness.clock.forward(600)
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    harness.clock.forward(-600)
    harness.store.stops.record_stop(fence.run_id, harness.stop(force=True), "s2")
    assert harness.store.sweep.unheard_stops(harness.clock.now) == []
    assert [r.run_id for r in harness.store.sweep.unheard_stops(harness.clock.forward(1))] == [
        fence.run_id
    ]


def test_a_stop_that_a_later_attempt_carries_out_was_acted_on(harness: Harness) -> None:
    """The workflow that received the stop is gone. Its successor carries it out, and the log says
    so.
    """
    fence = harness.deployed()
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    later = harness.clock.forward(30)
    harness.store.stops.acted_on_stop(harness.resume(fence), later)
    (logged,) = harness.store.runs.cancellations(fence.run_id)
    assert (logged["attempt"], logged["acted_at"]) == (1, later)


def test_a_stop_that_a_later_attempt_is_told_of_again_is_logged_once(harness: Harness) -> None:
    """No workflow was there to receive it: the gateway recorded it, and starts one that receives it
    with the same id.
    """
    fence = harness.deployed()
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    harness.clock.forward(30)
    second = harness.resume(fence)
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1", second)
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s2", second)
    logged = harness.store.runs.cancellations(fence.run_id)
    assert [(row["request_id"], row["attempt"]) for row in logged] == [("s1", 1), ("s2", 2)]


def test_a_stop_that_nobody_heard_before_the_verdict_is_over_with_it(harness: Harness) -> None:
    fence = harness.executing()
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    harness.clock.forward(10)
    harness.finish(fence)
    (logged,) = harness.store.runs.cancellations(fence.run_id)
    assert logged["acted_at"] is not None
    # It belongs to that attempt of the run: a stop of the next one does not affect it, even with
    # the same id.
    second = harness.resume(fence, rerun=True)
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    harness.store.stops.acted_on_stop(second, harness.clock.forward(10))
    first, later = harness.store.runs.cancellations(fence.run_id)
    assert (first, later["attempt"], later["acted_at"]) == (logged, 2, harness.clock.now)


# --- verdict --------------------------------------------------------------------------------------


def test_what_is_counted_last_counts_for_the_run(harness: Harness) -> None:
    """A task is gone; its log and counters were read once more, and no poll follows."""
    fence = harness.executing()
    [task] = harness.store.polls.found_state(fence).tasks
    harness.clock.forward(60)
    gone = seen(task, Phase.GONE, harness.clock.now, uid=task.uid)
    harness.stage(fence, [gone])
    harness.store.polls.save_details(fence, [Details(task.task_id, "x", Counters(9, 7, 1, 10))])
    harness.store.polls.apply_details(fence)
    harness.store.polls.apply_findings(fence, "look")
    assert harness.row(fence).items == 7
    row = harness.end(fence)
    assert (row.pages, row.items, row.errors) == (9, 7, 1)
    assert harness.store.tasks.list_tasks(fence.run_id)[0].items == 7


def test_a_run_says_its_most_frequent_error_and_how_often(harness: Harness) -> None:
    """A log says more than an exit code, a runner's report counts before both, and successful runs
    have no error.
    """
    fence = harness.executing(tasks=6)
    tasks = harness.store.polls.found_state(fence).tasks
    ends = [
        End(1),
        End(1),
        End(1, message="no start page"),
        End(2),
        End(0, finish_reason="finished"),
        End(1),
    ]
    logs = [
        "KeyError: 'a'",
        "KeyError: 'b'\n",
        "KeyError: 'c'",
        "KeyError: 'b'",
        "KeyError: 'd'",
        "x\nKeyError: 'b'",
    ]
    pairs = list(zip(tasks, ends, strict=True))
    harness.stage(
        fence,
        [seen(task, Phase.ENDED, harness.clock.now, uid=task.uid, end=end) for task, end in pairs],
    )
    harness.store.polls.save_details(
        fence, [Details(t.task_id, log) for t, log in zip(tasks, logs, strict=True)]
    )
    for _ in range(2):  # again: the same
        harness.store.polls.apply_details(fence)
        harness.store.polls.apply_findings(fence, "look")
    rows = harness.store.tasks.list_tasks(fence.run_id)
    failed = "The crawler failed, exit"
    assert [(row.error, row.cause) for row in rows] == [
        ("KeyError: 'a'", f"{failed} 1: KeyError: 'a'"),
        ("KeyError: 'b'", f"{failed} 1: KeyError: 'b'"),
        ("no start page", f"{failed} 1: no start page"),
        ("KeyError: 'b'", f"{failed} 2: KeyError: 'b'"),
        (None, "The crawler finished, exit 0"),
        ("KeyError: 'b'", f"{failed} 1: KeyError: 'b'"),
    ]
    row = harness.end(fence)
    assert row.cause == f"5 of 6 tasks did not succeed; 2 of them: {failed} 1: KeyError: 'b'"
    told = harness.store.events.last_event(fence.run_id, EVENT_RUN_ENDED)
    assert told is not None
    assert told.body["cause"] == row.cause


def test_the_verdict_is_passed_once(harness: Harness) -> None:
    fence = harness.executing(tasks=3)
    last_end = harness.clock.forward(10)
    row = harness.finish(fence, failed=[1])
    harness.clock.forward(10)
    assert (row.status, row.outcome, row.stage, row.ended_at) == (
        RunStatus.FAILED,
        "partial",
        "completion",
        last_end,
    )
    assert (row.next_look_at, row.waiting_for, row.pages) == (None, None, 30)

    def never(groups: object, stop: object) -> Verdict:
        raise AssertionError("judged twice")

    assert harness.store.completion.end_run(fence, never) == row == harness.row(fence)
    [moved] = [
        t
        for t in harness.store.runs.transitions(fence.run_id)
        if t.to_status == "FAILED" and t.task_id is None
    ]
    assert (moved.from_status, moved.cluster_time, moved.lag_ms) == ("PROCESSING", last_end, 0)
    assert moved.evidence["tasks"] == {"SUCCEEDED": 2, "FAILED": 1}
    assert harness.store.deployment.ended_groups(fence.run_id) == [
        EndedTasks("FAILED", "failed", 1, "The crawler failed, exit 1: boom", 1, EndedBy.CRAWLER),
        EndedTasks(
            "SUCCEEDED", "finished", 2, "The crawler finished, exit 0", ended_by=EndedBy.CRAWLER
        ),
    ]


@pytest.mark.parametrize("waited", [None, WAITING_FOR_START, "The image x cannot be pulled"])
def test_a_run_that_did_not_start_says_what_it_waited_for(
    harness: Harness, waited: str | None
) -> None:
    fence = harness.deployed()
    harness.store.deployment.note_waiting(fence, waited)
    harness.store.stops.record_stop(
        fence.run_id, StopIntent(START, limit="start_timeout"), None, fence
    )
    [task] = harness.store.polls.found_state(fence).tasks
    harness.poll(fence, [seen(task, Phase.ENDED, START, uid=task.uid, end=End(finished_at=START))])
    row = harness.end(fence)
    said = (
        "; the reason for its wait was: The image x cannot be pulled"
        if waited and waited != WAITING_FOR_START
        else ""
    )
    assert (row.outcome, row.waiting_for) == ("start_timeout", None)
    assert row.cause == f"It did not start in time (start_timeout_s), exit code unknown{said}"


def test_a_judge_that_fails_changes_nothing(harness: Harness) -> None:
    fence = harness.deployed()
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    harness.see_ends(fence)
    asked: list[StopIntent | None] = []

    def judge(groups: object, stop: StopIntent | None) -> Verdict:
        asked.append(stop)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        harness.store.completion.end_run(fence, judge)
    assert asked == [harness.stop()]
    assert harness.status(fence) is RunStatus.STOPPING


def test_a_poll_after_the_end_writes_nothing(harness: Harness) -> None:
    fence = harness.deployed()
    [task] = harness.store.polls.found_state(fence).tasks
    row = harness.finish(fence)
    harness.clock.forward(9)
    harness.stage(fence, [seen(task, Phase.EXECUTING, harness.clock.now, uid=task.uid)])
    harness.store.polls.record_poll_error(fence, "x")
    harness.store.deployment.note_waiting(fence, "x")
    assert harness.store.deployment.mark_started(fence, harness.clock.now) is RunStatus.COMPLETED
    assert harness.row(fence) == row


# --- resumption -----------------------------------------------------------------------------------


def test_resume_runs_again_only_what_did_not_succeed(harness: Harness) -> None:
    fence = harness.deployed(tasks=4)
    harness.finish(fence, failed=[1, 3])
    second = harness.resume(fence)
    assert harness.store.tasks.count_tasks(fence.run_id).by_status == {"SUCCEEDED": 2, "QUEUED": 2}
    rows = harness.store.tasks.list_tasks(fence.run_id, superseded=True)
    old = {t.task_index: t for t in rows if t.attempt == 1}
    new = {t.task_index: t for t in rows if t.attempt == 2}
    assert sorted(new) == [1, 3]
    assert [old[n].superseded_by for n in range(4)] == [None, new[1].task_id, None, new[3].task_id]
    assert new[3].args == old[3].args == {"part": "3"}
    assert (new[1].status, new[1].cluster_uid) == (TaskStatus.QUEUED, None)
    assert new[1].pages == 10, "what it goes on from, until it says that it does not"
    for _ in range(2):
        harness.store.deployment.requeue_ended(second, False)
    assert len(harness.store.tasks.list_tasks(fence.run_id, superseded=True)) == 6
    assert harness.deploy(second) == [1, 3]
    assert harness.finish(second).status is RunStatus.COMPLETED
    assert harness.row(fence).pages == 40


def test_what_still_executes_is_adopted_and_not_run_again_when_it_ends(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    second = harness.resume(fence)
    assert {t.attempt for t in harness.store.polls.found_state(second).tasks} == {1}
    harness.finish(second, failed=[0])
    harness.store.deployment.requeue_ended(second, False)
    assert harness.statuses(fence) == {0: TaskStatus.FAILED, 1: TaskStatus.SUCCEEDED}


def test_queued_rows_go_on_under_the_new_attempt(harness: Harness) -> None:
    fence = harness.run(tasks=2)
    harness.store.deployment.offer_tasks(fence, 1, None, START + timedelta(seconds=25))
    second = harness.resume(fence)
    # The call for the first one may still be in progress with the old attempt's name.
    assert [t.attempt for t in harness.store.polls.found_state(second).tasks] == [1, 2]
    assert harness.deploy(second) == [1]
    harness.clock.forward(26)
    assert harness.deploy(second) == [0]
    assert {t.attempt for t in harness.store.tasks.list_tasks(fence.run_id)} == {2}


def test_no_new_rows_under_a_stop(harness: Harness) -> None:
    fence = harness.deployed(tasks=2)
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    tasks = harness.store.polls.found_state(fence).tasks
    harness.poll(fence, [seen(tasks[0], Phase.GONE, START)])
    second = harness.resume(fence)
    assert harness.store.tasks.count_tasks(fence.run_id).by_status == {"CANCELLED": 1, "PENDING": 1}
    assert harness.status(second) is RunStatus.STOPPING


def test_a_takeover_forgets_what_the_former_owner_staged(harness: Harness) -> None:
    fence = harness.deployed()
    [task] = harness.store.polls.found_state(fence).tasks
    harness.stage(fence, [seen(task, Phase.GONE, START)])
    harness.store.polls.save_details(fence, [Details(task.task_id, "x")])
    second = harness.resume(fence)
    assert harness.store.polls.staged(second) == []
    assert harness.store.polls.apply_details(second) == 0


# --- events, deliveries, exports ------------------------------------------------------------------


def test_events_have_numbers_without_gaps(harness: Harness) -> None:
    fence = harness.deployed()
    harness.finish(fence)
    events = harness.store.events.events_after(0)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert {e.type for e in events} == {"run.changed", "run.ended"}
    assert harness.store.events.events_after(events[1].seq, limit=1) == [events[2]]
    last = events[-1]
    assert last.body == {
        "run_id": fence.run_id,
        "run_uid": fence.run_uid,
        "project": "default",
        "attempt": 1,
        "crawler": "services",
        "trigger": "manual",
        "status": "COMPLETED",
        "stage": "completion",
        "outcome": "finished",
        "ended_by": "crawler",
        "tasks": {"SUCCEEDED": 1},
        "pages": 10,
        "items": 5,
        "errors": 0,
        "verified_at": START.isoformat(),
        "next_poll_at": None,
        "poll_error": None,
        "poll_error_since": None,
        "waiting": None,
    }


def test_an_event_with_a_key_happens_once(harness: Harness) -> None:
    fence = harness.deployed()
    key = f"{fence.run}/1/run.ended"
    assert harness.store.events.find_event(key) is None
    first = harness.store.events.append_event(fence, "run.ended", key, {"status": "COMPLETED"})
    assert harness.store.events.append_event(fence, "run.ended", key, {"status": "FAILED"}) == first
    assert harness.store.events.find_event(key) == first
    assert harness.store.events.events_after(first.seq - 1) == [first]


def test_nothing_new_is_no_event(harness: Harness) -> None:
    fence = harness.executing()
    count = len(harness.store.events.events_after(0))
    harness.execute(fence)
    harness.store.stops.cancel_queued(fence, START)
    harness.store.deployment.note_waiting(fence, None)
    assert len(harness.store.events.events_after(0)) == count


def test_deliveries(harness: Harness) -> None:
    fence = harness.run()
    event = harness.store.events.append_event(fence, "run.ended", "k", {})
    for error in ("refused", "refused", None, "late duplicate"):
        harness.store.events.record_delivery(event.seq, "pusher", error)
    harness.store.events.record_delivery(event.seq, "other", "refused")
    assert harness.store.events.delivered_by(event.seq) == {"pusher"}
    with pytest.raises(InvalidRequest, match="seq: 1000000000"):
        harness.store.events.record_delivery(10**9, "pusher", None)


def test_exports(harness: Harness) -> None:
    fence = harness.run()
    harness.store.exports.record_export(fence, "running", None, None)
    harness.store.exports.record_export(fence, "failed", None, "bucket is gone")
    result = ExportResult("s3://b/k", 10, 2, "a" * 64)
    for _ in range(2):
        harness.store.exports.record_export(fence, "done", result, None)
    [row] = harness.store.exports.list_exports(fence.run_id)
    assert (row["status"], row["url"], row["bytes"], row["files"], row["error"]) == (
        "done",
        "s3://b/k",
        10,
        2,
        None,
    )
    harness.store.exports.record_export(fence, "failed", None, "the files are gone")
    [row] = harness.store.exports.list_exports(fence.run_id)
    assert (row["status"], row["url"], row["error"]) == (
        "done",
        "s3://b/k",
        "the files are gone",
    ), "it is still there"


def test_the_verdict_and_its_event_are_one(harness: Harness) -> None:
    """Whoever sees the verdict finds exactly one event, even after the run was resumed."""
    fence = harness.deployed()
    key = f"{fence.run}/1/run.ended"
    assert harness.store.events.find_event(key) is None
    row = harness.finish(fence)
    event = harness.store.events.find_event(key)
    assert (event.body["status"], event.body["outcome"]) == (row.status, row.outcome)
    assert event.body["supporting_files"] == f"{fence.run}/1/supporting-files.zip"
    assert event.body["ended_at"] == row.ended_at.isoformat()
    harness.finish(fence)
    harness.resume(fence, rerun=True)
    assert harness.store.events.find_event(key) == event
    assert [e.type for e in harness.store.events.events_after(0)].count("run.ended") == 1


def test_an_attempt_that_was_resumed_says_how_its_own_export_went(harness: Harness) -> None:
    fence = harness.deployed()
    harness.finish(fence)
    second = harness.resume(fence, rerun=True)
    harness.store.exports.record_export(second, "writing", None, None)
    harness.store.exports.record_export(fence, "failed", None, "no space")
    found = {
        x["attempt"]: (x["status"], x["error"])
        for x in harness.store.exports.list_exports(fence.run_id)
    }
    assert found == {1: ("failed", "no space"), 2: ("writing", None)}


# --- fields of items ------------------------------------------------------------------------------

GOOD, LESS = Coverage(100, {"price": 1.0, "title": 1.0}), Coverage(300, {"price": 0.2})
EXPECTED = ExpectedCoverage({"price": 0.9})


def test_a_run_is_judged_by_its_tasks_and_the_last_completed_runs_before_it(
    harness: Harness,
) -> None:
    for n in range(12):  # the first two are too old
        harness.brings(f"g{n}", LESS if n < 2 else GOOD, expected=EXPECTED)
    harness.brings("other", LESS, LESS, crawler="another", expected=EXPECTED)
    late = harness.executing("late")
    for n in range(3):
        harness.brings(f"l{n}", LESS, expected=EXPECTED)
    harness.brings("untold", None, expected=EXPECTED)
    assert harness.store.runs.find_run("untold").fields is None
    harness.tell(late, [LESS])
    row = harness.end(late, EXPECTED)
    assert (row.outcome, row.fields) == ("coverage", LESS)
    assert (
        row.cause
        == "price: 20 % of 300 items have it, the usual share is 100 % (median of 10 runs), expected at least 90 %"
    )
    assert harness.end(late, ExpectedCoverage()) == row, "the verdict stands"
    several = harness.row(harness.brings("several", GOOD, None, LESS, expected=EXPECTED))
    assert several.fields == Coverage(400, {"price": 0.4, "title": 0.25})
    assert several.outcome == "coverage"


def test_no_run_is_judged_by_those_of_another_project(harness: Harness) -> None:
    for n in range(3):
        harness.brings(f"a{n}", GOOD, project="a", expected=EXPECTED)
    for project, outcome in (("b", "finished"), ("a", "coverage")):
        row = harness.row(
            harness.brings(f"less-{project}", LESS, project=project, expected=EXPECTED)
        )
        assert (row.outcome, "usual" in str(row.cause)) == (outcome, project == "a")


@pytest.mark.parametrize(("resumed", "judged"), [
    (False, ("finished", Coverage(200, GOOD.shares))),
    (True, ("coverage", Coverage(500, {"price": 0.52, "title": 0.4}))),
])  # fmt: skip
def test_a_resumed_run_is_judged_by_all_tries_that_count(
    harness: Harness, resumed: bool, judged: tuple[str, Coverage]
) -> None:
    for n in range(3):
        harness.brings(f"g{n}", GOOD, expected=EXPECTED)
    first = harness.executing("r", tasks=2)
    harness.tell(first, [GOOD, LESS], failed=[1])
    assert (harness.end(first, EXPECTED).outcome, harness.row(first).fields.items) == (
        "partial",
        400,
    )
    second = harness.resume(first)
    assert harness.row(second).fields is None, "the verdict is taken back"
    harness.begin(second)
    harness.tell(second, [GOOD, GOOD], resumed=resumed)
    assert (harness.end(second, EXPECTED).outcome, harness.row(second).fields) == judged


def test_a_stopped_run_is_not_judged_by_its_fields(harness: Harness) -> None:
    for n in range(3):
        harness.brings(f"g{n}", GOOD, expected=EXPECTED)
    fence = harness.executing("stopped")
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s")
    harness.tell(fence, [LESS])
    assert (harness.end(fence, EXPECTED).outcome, harness.row(fence).fields) == ("finished", LESS)


def test_fields_that_another_hand_wrote_are_no_fields(harness: Harness) -> None:
    for n in range(3):
        harness.brings(f"g{n}", GOOD, expected=EXPECTED)
    harness.write("UPDATE run_history SET fields = :made", made='{"items": "many", "shares": [1]}')
    fence = harness.executing("r", tasks=2)
    harness.tell(fence, [LESS, LESS])
    harness.write(
        "UPDATE task_history SET fields = :made WHERE task_index = 0", made='{"items": -1}'
    )
    assert (harness.end(fence, EXPECTED).outcome, harness.row(fence).fields) == ("finished", LESS)
