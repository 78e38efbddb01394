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
from tests.contracts.store.world import START, World, seen

# --- stops ----------------------------------------------------------------------------------------


def test_a_stop_is_recorded_once(world: World) -> None:
    fence = world.deployed()
    rows = [
        world.store.stops.record_stop(fence.run_id, world.stop(reason="enough"), "s1")
        for _ in range(2)
    ]
    assert rows[0] == rows[1] == world.row(fence)
    assert (rows[0].status, rows[0].stop) == (RunStatus.STOPPING, world.stop(reason="enough"))
    [log] = world.store.runs.cancellations(fence.run_id)
    assert (log["request_id"], log["requested_by"], log["reason"], log["force"]) == (
        "s1",
        "ann",
        "enough",
        False,
    )
    assert (log["requested_at"], log["acted_at"], log["attempt"]) == (START, None, 1)
    [moved] = [t for t in world.store.runs.transitions(fence.run_id) if t.to_status == "STOPPING"]
    assert (moved.source, moved.cluster_time, moved.lag_ms) == ("stop", None, None)


def test_a_second_stop_adds_force_and_keeps_the_time(world: World) -> None:
    fence = world.deployed()
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    world.clock.forward(5)
    row = world.store.stops.record_stop(fence.run_id, world.stop(by="bob", force=True), "s2", fence)
    assert row.stop == StopIntent(START, force=True, requested_by="ann")
    row = world.store.stops.record_stop(fence.run_id, world.stop(escalated=True), None, fence)
    assert row.stop == StopIntent(START, force=True, requested_by="ann", escalated=True)
    assert [log["request_id"] for log in world.store.runs.cancellations(fence.run_id)] == [
        "s1",
        "s2",
    ]


def test_a_person_outweighs_a_limit(world: World) -> None:
    fence = world.deployed()
    limit = StopIntent(START, limit="timed_out", reason="2 h")
    assert world.store.stops.record_stop(fence.run_id, limit, "x", fence).stop == limit
    assert world.store.runs.cancellations(fence.run_id) == []
    world.clock.forward(5)
    row = world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    assert row.stop == StopIntent(START, requested_by="ann")
    row = world.store.stops.record_stop(fence.run_id, replace(limit, force=True), None, fence)
    assert row.stop == StopIntent(START, requested_by="ann", force=True)


def test_a_stop_after_the_end_writes_nothing(world: World) -> None:
    fence = world.deployed()
    ended = world.finish(fence)
    events = len(world.store.events.events_after(0))
    assert world.store.stops.record_stop(fence.run_id, world.stop(), "s1") == ended
    assert world.store.runs.cancellations(fence.run_id) == []
    assert len(world.store.events.events_after(0)) == events


def test_queued_tasks_are_cancelled_when_a_poll_proves_that_no_call_brought_them_to_the_cluster(
    world: World,
) -> None:
    fence = world.run(tasks=3)
    world.store.deployment.offer_tasks(fence, 1, None, START + timedelta(seconds=25))
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    for _ in range(2):
        assert world.store.stops.cancel_queued(fence, START).by_status == {
            "QUEUED": 1,
            "CANCELLED": 2,
        }
    world.poll(fence, [])
    later = world.clock.forward(26)
    assert world.store.stops.cancel_queued(fence, later).by_status == {
        "QUEUED": 1,
        "CANCELLED": 2,
    }, "polled too early"
    world.poll(fence, [])
    assert world.store.stops.cancel_queued(fence, later).by_status == {"CANCELLED": 3}
    task = world.store.tasks.list_tasks(fence.run_id)[0]
    assert (task.outcome, task.cause) == ("cancelled", "Stopped by ann before it was deployed")


def test_an_offered_task_that_a_poll_has_seen_is_not_cancelled_before_that_is_applied(
    world: World,
) -> None:
    """The call's answer was lost, the stop interrupts the poll that finds the task, and then takes
    its next turn.
    """
    fence = world.run()
    world.store.deployment.offer_tasks(fence, 1, None, START + timedelta(seconds=25))
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    later = world.clock.forward(60)
    (task,) = world.store.polls.found_state(fence).tasks
    world.stage(fence, [seen(task, Phase.EXECUTING, later, changed_at=later, uid="u", name="n")])
    assert world.store.stops.cancel_queued(fence, later).by_status == {"QUEUED": 1}
    world.store.polls.apply_findings(fence, "stop")
    assert world.store.stops.cancel_queued(fence, later).by_status == {"RUNNING": 1}


def test_queued_tasks_under_a_limit(world: World) -> None:
    fence = world.run()
    world.store.stops.record_stop(
        fence.run_id, StopIntent(START, limit="start_timeout"), None, fence
    )
    world.store.stops.cancel_queued(fence, START)
    assert world.store.tasks.list_tasks(fence.run_id)[0].outcome == "start_timeout"


def test_tasks_that_are_being_stopped(world: World) -> None:
    fence = world.run(tasks=3)
    world.deploy(fence, limit=2)
    ids = [task.task_id for task in world.store.tasks.list_tasks(fence.run_id)]
    for _ in range(2):
        world.store.stops.mark_stopping(fence, ids)
    assert list(world.statuses(fence).values()) == [
        TaskStatus.STOPPING,
        TaskStatus.STOPPING,
        TaskStatus.QUEUED,
    ]
    expected = ["stop", "stop"]
    assert [
        t.source for t in world.store.runs.transitions(fence.run_id) if t.to_status == "STOPPING"
    ] == expected


def test_stops_that_nobody_heard(world: World) -> None:
    fence = world.deployed()
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    later = world.clock.forward(30)
    assert world.store.sweep.unheard_stops(START) == []
    assert [r.run_id for r in world.store.sweep.unheard_stops(later)] == [fence.run_id]
    for at in (later, later + timedelta(seconds=9)):
        world.store.stops.acted_on_stop(fence, at)
    assert world.store.sweep.unheard_stops(later) == []
    assert world.store.runs.cancellations(fence.run_id)[0]["acted_at"] == later
    # A stop that comes past the workflow and asks for more has to be heard anew; the workflow's own
    # has not.
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    world.store.stops.record_stop(fence.run_id, world.stop(escalated=True), None, fence)
    assert world.store.sweep.unheard_stops(later) == []
    world.store.stops.record_stop(fence.run_id, world.stop(force=True), "s2")
    assert [r.run_id for r in world.store.sweep.unheard_stops(later)] == [fence.run_id]


def test_a_stop_by_a_clock_that_is_ahead_is_sent_again_in_time(world: World) -> None:
    """The database dates stops, and may be ahead of the gateway that sends them again."""
    fence = world.deployed()
    world.clock.forward(600)
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    world.clock.forward(-600)
    world.store.stops.record_stop(fence.run_id, world.stop(force=True), "s2")
    assert world.store.sweep.unheard_stops(world.clock.now) == []
    assert [r.run_id for r in world.store.sweep.unheard_stops(world.clock.forward(1))] == [
        fence.run_id
    ]


def test_a_stop_that_a_later_attempt_carries_out_was_acted_on(world: World) -> None:
    """The workflow that was asked is gone; who takes the run over does what it was asked, and the
    log says so.
    """
    fence = world.deployed()
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    later = world.clock.forward(30)
    world.store.stops.acted_on_stop(world.resume(fence), later)
    (logged,) = world.store.runs.cancellations(fence.run_id)
    assert (logged["attempt"], logged["acted_at"]) == (1, later)


def test_a_stop_that_a_later_attempt_is_told_of_again_is_logged_once(world: World) -> None:
    """No workflow was there to hear it: the gateway recorded it, and starts one that hears it under
    the same id.
    """
    fence = world.deployed()
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    world.clock.forward(30)
    second = world.resume(fence)
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1", second)
    world.store.stops.record_stop(fence.run_id, world.stop(), "s2", second)
    logged = world.store.runs.cancellations(fence.run_id)
    assert [(row["request_id"], row["attempt"]) for row in logged] == [("s1", 1), ("s2", 2)]


def test_a_stop_that_nobody_heard_before_the_verdict_is_over_with_it(world: World) -> None:
    fence = world.executing()
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    world.clock.forward(10)
    world.finish(fence)
    (logged,) = world.store.runs.cancellations(fence.run_id)
    assert logged["acted_at"] is not None
    # It belongs to that life of the run: a stop of the next one does not touch it, not even under
    # the same id.
    second = world.resume(fence, rerun=True)
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    world.store.stops.acted_on_stop(second, world.clock.forward(10))
    first, later = world.store.runs.cancellations(fence.run_id)
    assert (first, later["attempt"], later["acted_at"]) == (logged, 2, world.clock.now)


# --- verdict --------------------------------------------------------------------------------------


def test_what_is_counted_last_counts_for_the_run(world: World) -> None:
    """A task is gone; its log and counters were read once more, and no poll comes after that."""
    fence = world.executing()
    [task] = world.store.polls.found_state(fence).tasks
    world.clock.forward(60)
    gone = seen(task, Phase.GONE, world.clock.now, uid=task.uid)
    world.stage(fence, [gone])
    world.store.polls.save_details(fence, [Details(task.task_id, "x", Counters(9, 7, 1, 10))])
    world.store.polls.apply_details(fence)
    world.store.polls.apply_findings(fence, "look")
    assert world.row(fence).items == 7
    row = world.end(fence)
    assert (row.pages, row.items, row.errors) == (9, 7, 1)
    assert world.store.tasks.list_tasks(fence.run_id)[0].items == 7


def test_a_run_says_its_most_frequent_error_and_how_often(world: World) -> None:
    """A log says more than an exit code; a runner's word counts before it, and what succeeded has
    no error.
    """
    fence = world.executing(tasks=6)
    tasks = world.store.polls.found_state(fence).tasks
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
    world.stage(
        fence,
        [seen(task, Phase.ENDED, world.clock.now, uid=task.uid, end=end) for task, end in pairs],
    )
    world.store.polls.save_details(
        fence, [Details(t.task_id, log) for t, log in zip(tasks, logs, strict=True)]
    )
    for _ in range(2):  # again: the same
        world.store.polls.apply_details(fence)
        world.store.polls.apply_findings(fence, "look")
    rows = world.store.tasks.list_tasks(fence.run_id)
    failed = "The crawler failed, exit"
    assert [(row.error, row.cause) for row in rows] == [
        ("KeyError: 'a'", f"{failed} 1: KeyError: 'a'"),
        ("KeyError: 'b'", f"{failed} 1: KeyError: 'b'"),
        ("no start page", f"{failed} 1: no start page"),
        ("KeyError: 'b'", f"{failed} 2: KeyError: 'b'"),
        (None, "The crawler finished, exit 0"),
        ("KeyError: 'b'", f"{failed} 1: KeyError: 'b'"),
    ]
    row = world.end(fence)
    assert row.cause == f"5 of 6 tasks did not succeed; 2 of them: {failed} 1: KeyError: 'b'"
    told = world.store.events.last_event(fence.run_id, EVENT_RUN_ENDED)
    assert told is not None
    assert told.body["cause"] == row.cause


def test_the_verdict_is_passed_once(world: World) -> None:
    fence = world.executing(tasks=3)
    last_end = world.clock.forward(10)
    row = world.finish(fence, failed=[1])
    world.clock.forward(10)
    assert (row.status, row.outcome, row.stage, row.ended_at) == (
        RunStatus.FAILED,
        "partial",
        "completion",
        last_end,
    )
    assert (row.next_look_at, row.waiting_for, row.pages) == (None, None, 30)

    def never(groups: object, stop: object) -> Verdict:
        raise AssertionError("judged twice")

    assert world.store.completion.end_run(fence, never) == row == world.row(fence)
    [moved] = [
        t
        for t in world.store.runs.transitions(fence.run_id)
        if t.to_status == "FAILED" and t.task_id is None
    ]
    assert (moved.from_status, moved.cluster_time, moved.lag_ms) == ("PROCESSING", last_end, 0)
    assert moved.evidence["tasks"] == {"SUCCEEDED": 2, "FAILED": 1}
    assert world.store.deployment.ended_groups(fence.run_id) == [
        EndedTasks("FAILED", "failed", 1, "The crawler failed, exit 1: boom", 1, EndedBy.CRAWLER),
        EndedTasks(
            "SUCCEEDED", "finished", 2, "The crawler finished, exit 0", ended_by=EndedBy.CRAWLER
        ),
    ]


@pytest.mark.parametrize("waited", [None, WAITING_FOR_START, "The image x cannot be pulled"])
def test_a_run_that_did_not_start_says_what_it_waited_for(world: World, waited: str | None) -> None:
    fence = world.deployed()
    world.store.deployment.note_waiting(fence, waited)
    world.store.stops.record_stop(
        fence.run_id, StopIntent(START, limit="start_timeout"), None, fence
    )
    [task] = world.store.polls.found_state(fence).tasks
    world.poll(fence, [seen(task, Phase.ENDED, START, uid=task.uid, end=End(finished_at=START))])
    row = world.end(fence)
    said = (
        "; it waited for this: The image x cannot be pulled"
        if waited and waited != WAITING_FOR_START
        else ""
    )
    assert (row.outcome, row.waiting_for) == ("start_timeout", None)
    assert row.cause == f"It did not start in time (start_timeout_s), exit code unknown{said}"


def test_a_judge_that_fails_changes_nothing(world: World) -> None:
    fence = world.deployed()
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    world.see_ends(fence)
    asked: list[StopIntent | None] = []

    def judge(groups: object, stop: StopIntent | None) -> Verdict:
        asked.append(stop)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        world.store.completion.end_run(fence, judge)
    assert asked == [world.stop()]
    assert world.status(fence) is RunStatus.STOPPING


def test_a_poll_after_the_end_writes_nothing(world: World) -> None:
    fence = world.deployed()
    [task] = world.store.polls.found_state(fence).tasks
    row = world.finish(fence)
    world.clock.forward(9)
    world.stage(fence, [seen(task, Phase.EXECUTING, world.clock.now, uid=task.uid)])
    world.store.polls.record_poll_error(fence, "x")
    world.store.deployment.note_waiting(fence, "x")
    assert world.store.deployment.mark_started(fence, world.clock.now) is RunStatus.COMPLETED
    assert world.row(fence) == row


# --- resumption -----------------------------------------------------------------------------------


def test_resume_runs_again_only_what_did_not_succeed(world: World) -> None:
    fence = world.deployed(tasks=4)
    world.finish(fence, failed=[1, 3])
    second = world.resume(fence)
    assert world.store.tasks.count_tasks(fence.run_id).by_status == {"SUCCEEDED": 2, "QUEUED": 2}
    rows = world.store.tasks.list_tasks(fence.run_id, superseded=True)
    old = {t.task_index: t for t in rows if t.attempt == 1}
    new = {t.task_index: t for t in rows if t.attempt == 2}
    assert sorted(new) == [1, 3]
    assert [old[n].superseded_by for n in range(4)] == [None, new[1].task_id, None, new[3].task_id]
    assert new[3].args == old[3].args == {"part": "3"}
    assert (new[1].status, new[1].cluster_uid) == (TaskStatus.QUEUED, None)
    assert new[1].pages == 10, "what it goes on from, until it says that it does not"
    for _ in range(2):
        world.store.deployment.requeue_ended(second, False)
    assert len(world.store.tasks.list_tasks(fence.run_id, superseded=True)) == 6
    assert world.deploy(second) == [1, 3]
    assert world.finish(second).status is RunStatus.COMPLETED
    assert world.row(fence).pages == 40


def test_what_still_executes_is_adopted_and_not_run_again_when_it_ends(world: World) -> None:
    fence = world.executing(tasks=2)
    second = world.resume(fence)
    assert {t.attempt for t in world.store.polls.found_state(second).tasks} == {1}
    world.finish(second, failed=[0])
    world.store.deployment.requeue_ended(second, False)
    assert world.statuses(fence) == {0: TaskStatus.FAILED, 1: TaskStatus.SUCCEEDED}


def test_queued_rows_go_on_under_the_new_attempt(world: World) -> None:
    fence = world.run(tasks=2)
    world.store.deployment.offer_tasks(fence, 1, None, START + timedelta(seconds=25))
    second = world.resume(fence)
    # The call for the first one may still be on its way under the old attempt's name.
    assert [t.attempt for t in world.store.polls.found_state(second).tasks] == [1, 2]
    assert world.deploy(second) == [1]
    world.clock.forward(26)
    assert world.deploy(second) == [0]
    assert {t.attempt for t in world.store.tasks.list_tasks(fence.run_id)} == {2}


def test_no_new_rows_under_a_stop(world: World) -> None:
    fence = world.deployed(tasks=2)
    world.store.stops.record_stop(fence.run_id, world.stop(), "s1")
    tasks = world.store.polls.found_state(fence).tasks
    world.poll(fence, [seen(tasks[0], Phase.GONE, START)])
    second = world.resume(fence)
    assert world.store.tasks.count_tasks(fence.run_id).by_status == {"CANCELLED": 1, "PENDING": 1}
    assert world.status(second) is RunStatus.STOPPING


def test_a_takeover_forgets_what_the_former_owner_staged(world: World) -> None:
    fence = world.deployed()
    [task] = world.store.polls.found_state(fence).tasks
    world.stage(fence, [seen(task, Phase.GONE, START)])
    world.store.polls.save_details(fence, [Details(task.task_id, "x")])
    second = world.resume(fence)
    assert world.store.polls.staged(second) == []
    assert world.store.polls.apply_details(second) == 0


# --- events, deliveries, exports ------------------------------------------------------------------


def test_events_have_numbers_without_gaps(world: World) -> None:
    fence = world.deployed()
    world.finish(fence)
    events = world.store.events.events_after(0)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert {e.type for e in events} == {"run.changed", "run.ended"}
    assert world.store.events.events_after(events[1].seq, limit=1) == [events[2]]
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


def test_an_event_with_a_key_happens_once(world: World) -> None:
    fence = world.deployed()
    key = f"{fence.run}/1/run.ended"
    assert world.store.events.find_event(key) is None
    first = world.store.events.append_event(fence, "run.ended", key, {"status": "COMPLETED"})
    assert world.store.events.append_event(fence, "run.ended", key, {"status": "FAILED"}) == first
    assert world.store.events.find_event(key) == first
    assert world.store.events.events_after(first.seq - 1) == [first]


def test_nothing_new_is_no_event(world: World) -> None:
    fence = world.executing()
    count = len(world.store.events.events_after(0))
    world.execute(fence)
    world.store.stops.cancel_queued(fence, START)
    world.store.deployment.note_waiting(fence, None)
    assert len(world.store.events.events_after(0)) == count


def test_deliveries(world: World) -> None:
    fence = world.run()
    event = world.store.events.append_event(fence, "run.ended", "k", {})
    for error in ("refused", "refused", None, "late duplicate"):
        world.store.events.record_delivery(event.seq, "pusher", error)
    world.store.events.record_delivery(event.seq, "other", "refused")
    assert world.store.events.delivered_by(event.seq) == {"pusher"}
    with pytest.raises(InvalidRequest, match="seq: 1000000000"):
        world.store.events.record_delivery(10**9, "pusher", None)


def test_exports(world: World) -> None:
    fence = world.run()
    world.store.exports.record_export(fence, "running", None, None)
    world.store.exports.record_export(fence, "failed", None, "bucket is gone")
    result = ExportResult("s3://b/k", 10, 2, "a" * 64)
    for _ in range(2):
        world.store.exports.record_export(fence, "done", result, None)
    [row] = world.store.exports.list_exports(fence.run_id)
    assert (row["status"], row["url"], row["bytes"], row["files"], row["error"]) == (
        "done",
        "s3://b/k",
        10,
        2,
        None,
    )
    world.store.exports.record_export(fence, "failed", None, "the files are gone")
    [row] = world.store.exports.list_exports(fence.run_id)
    assert (row["status"], row["url"], row["error"]) == (
        "done",
        "s3://b/k",
        "the files are gone",
    ), "it is still there"


def test_the_verdict_and_its_event_are_one(world: World) -> None:
    """Whoever sees the verdict finds the event, also after the run was resumed, and never two of
    them.
    """
    fence = world.deployed()
    key = f"{fence.run}/1/run.ended"
    assert world.store.events.find_event(key) is None
    row = world.finish(fence)
    event = world.store.events.find_event(key)
    assert (event.body["status"], event.body["outcome"]) == (row.status, row.outcome)
    assert event.body["supporting_files"] == f"{fence.run}/1/supporting-files.zip"
    assert event.body["ended_at"] == row.ended_at.isoformat()
    world.finish(fence)
    world.resume(fence, rerun=True)
    assert world.store.events.find_event(key) == event
    assert [e.type for e in world.store.events.events_after(0)].count("run.ended") == 1


def test_an_attempt_that_was_resumed_says_how_its_own_export_went(world: World) -> None:
    fence = world.deployed()
    world.finish(fence)
    second = world.resume(fence, rerun=True)
    world.store.exports.record_export(second, "writing", None, None)
    world.store.exports.record_export(fence, "failed", None, "no space")
    found = {
        x["attempt"]: (x["status"], x["error"])
        for x in world.store.exports.list_exports(fence.run_id)
    }
    assert found == {1: ("failed", "no space"), 2: ("writing", None)}


# --- fields of items ------------------------------------------------------------------------------

GOOD, LESS = Coverage(100, {"price": 1.0, "title": 1.0}), Coverage(300, {"price": 0.2})
EXPECTED = ExpectedCoverage({"price": 0.9})


def test_a_run_is_judged_by_its_tasks_and_the_last_completed_runs_before_it(world: World) -> None:
    for n in range(12):  # the first two are too long ago
        world.brings(f"g{n}", LESS if n < 2 else GOOD, expected=EXPECTED)
    world.brings("other", LESS, LESS, crawler="another", expected=EXPECTED)
    late = world.executing("late")
    for n in range(3):
        world.brings(f"l{n}", LESS, expected=EXPECTED)
    world.brings("untold", None, expected=EXPECTED)
    assert world.store.runs.find_run("untold").fields is None
    world.tell(late, [LESS])
    row = world.end(late, EXPECTED)
    assert (row.outcome, row.fields) == ("coverage", LESS)
    assert (
        row.cause
        == "price: 20 % of 300 items have it, the usual share is 100 % (median of 10 runs), expected at least 90 %"
    )
    assert world.end(late, ExpectedCoverage()) == row, "the verdict stands"
    several = world.row(world.brings("several", GOOD, None, LESS, expected=EXPECTED))
    assert several.fields == Coverage(400, {"price": 0.4, "title": 0.25})
    assert several.outcome == "coverage"


def test_no_run_is_judged_by_those_of_another_project(world: World) -> None:
    for n in range(3):
        world.brings(f"a{n}", GOOD, project="a", expected=EXPECTED)
    for project, outcome in (("b", "finished"), ("a", "coverage")):
        row = world.row(world.brings(f"less-{project}", LESS, project=project, expected=EXPECTED))
        assert (row.outcome, "usual" in str(row.cause)) == (outcome, project == "a")


@pytest.mark.parametrize(("resumed", "judged"), [
    (False, ("finished", Coverage(200, GOOD.shares))),
    (True, ("coverage", Coverage(500, {"price": 0.52, "title": 0.4}))),
])  # fmt: skip
def test_a_resumed_run_is_judged_by_all_tries_that_count(
    world: World, resumed: bool, judged: tuple[str, Coverage]
) -> None:
    for n in range(3):
        world.brings(f"g{n}", GOOD, expected=EXPECTED)
    first = world.executing("r", tasks=2)
    world.tell(first, [GOOD, LESS], failed=[1])
    assert (world.end(first, EXPECTED).outcome, world.row(first).fields.items) == ("partial", 400)
    second = world.resume(first)
    assert world.row(second).fields is None, "the verdict is taken back"
    world.begin(second)
    world.tell(second, [GOOD, GOOD], resumed=resumed)
    assert (world.end(second, EXPECTED).outcome, world.row(second).fields) == judged


def test_a_stopped_run_is_not_judged_by_its_fields(world: World) -> None:
    for n in range(3):
        world.brings(f"g{n}", GOOD, expected=EXPECTED)
    fence = world.executing("stopped")
    world.store.stops.record_stop(fence.run_id, world.stop(), "s")
    world.tell(fence, [LESS])
    assert (world.end(fence, EXPECTED).outcome, world.row(fence).fields) == ("finished", LESS)


def test_fields_that_another_hand_wrote_are_no_fields(world: World) -> None:
    for n in range(3):
        world.brings(f"g{n}", GOOD, expected=EXPECTED)
    world.write("UPDATE run_history SET fields = :made", made='{"items": "many", "shares": [1]}')
    fence = world.executing("r", tasks=2)
    world.tell(fence, [LESS, LESS])
    world.write("UPDATE task_history SET fields = :made WHERE task_index = 0", made='{"items": -1}')
    assert (world.end(fence, EXPECTED).outcome, world.row(fence).fields) == ("finished", LESS)
