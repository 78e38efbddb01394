"""The identity and the owner of a run."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from crawler_lifecycle.domain.errors import (
    AlreadyCompleted,
    DuplicateRequest,
    Fenced,
    InvalidRequest,
    RunIsLive,
    RunNotFound,
)
from crawler_lifecycle.domain.run import ChildTask, Limits, RunRequest, RunStatus, StopIntent
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports.runs import Fence, Owner
from tests.contracts.store.harness import (
    OTHER,
    OWNER,
    START,
    Harness,
    closed,
    never_asked,
    request,
    still_open,
)


def test_reserve_inserts_the_run_with_its_tasks(harness: Harness) -> None:
    row, new = harness.store.initiation.reserve_run(request(3, tags=["a"]), "r1")
    assert new
    assert (row.request_id, row.crawler, row.trigger, row.status, row.stage) == (
        "r1", "services", "manual", RunStatus.INITIALIZING, "initiation",
    )  # fmt: skip
    assert (row.attempt, row.owner_run_id, row.multi, row.created_at) == (1, None, True, START)
    assert row.request["tasks"] is None
    assert row.request["request_id"] == "r1"
    assert row.request["tags"] == ["a"]
    tasks = harness.store.tasks.list_tasks(row.run_id)
    assert [(t.task_index, t.status, t.args) for t in tasks] == [
        (n, TaskStatus.QUEUED, {"part": str(n)}) for n in range(3)
    ]
    [first] = harness.store.runs.transitions(row.run_id)
    assert (first.from_status, first.to_status, first.source) == (None, "INITIALIZING", "deploy")


def test_reserve_twice_answers_the_stored_row(harness: Harness) -> None:
    first, _ = harness.store.initiation.reserve_run(request(), "r1")
    again, new = harness.store.initiation.reserve_run(request(request_id="ignored"), "r1")
    assert not new
    assert again == first
    assert harness.store.tasks.count_tasks(first.run_id).by_status == {"QUEUED": 1}
    assert len(harness.store.runs.transitions(first.run_id)) == 1


def test_another_request_under_the_same_id_is_refused(harness: Harness) -> None:
    harness.store.initiation.reserve_run(request(), "r1")
    limits = Limits(start_check_s=7)
    for different in (
        request(crawler="other"),
        request(args={"a": "1"}),
        request(2),
        request(limits=limits),
    ):
        with pytest.raises(DuplicateRequest, match="'r1'"):
            harness.store.initiation.reserve_run(different, "r1")
        with pytest.raises(DuplicateRequest, match="'r1'"):
            harness.store.initiation.create_run(different, "r1", OWNER)


def test_requests_that_mean_the_same_are_the_same(harness: Harness) -> None:
    reserve = harness.store.initiation.reserve_run
    row, _ = reserve(request(), "r1", [{"part": "0"}, {"part": "1"}])
    assert row.multi
    assert reserve(request(2), "r1") == (row, False), "tasks apart or inline"
    six, _ = reserve(request(limits=Limits(start_check_s=6)), "r2")
    assert reserve(request(limits=Limits(start_check_s=6.0)), "r2") == (six, False)
    other, new = reserve(request(), "R2")
    assert (new, other.run_id != six.run_id) == (True, True), "ids differ by case"


def test_a_new_run_that_cannot_be(harness: Harness) -> None:
    for wrong, request_id, tasks, text in (
        (request(run_id=7), "r1", None, "run_id: 7"),
        (request(), "r1 ", None, "request_id: 'r1 '"),
        (request(), "r" * 121, None, "request_id: 'rrr"),
        (request(), "", None, "request_id: ''"),
        (request(), "r1", [], "tasks: "),
    ):
        with pytest.raises(InvalidRequest, match=text):
            harness.store.initiation.reserve_run(wrong, request_id, tasks)
    assert harness.store.runs.list_runs() == []


def test_create_twice_by_the_same_owner(harness: Harness) -> None:
    first = harness.store.initiation.create_run(request(requested_by="ann"), "r1", OWNER)
    assert first == harness.store.initiation.create_run(request(requested_by="ann"), "r1", OWNER)
    assert (first.attempt, first.resumed, first.rerun, first.stop, first.multi) == (
        1,
        False,
        False,
        None,
        False,
    )
    assert first.request == replace(request(requested_by="ann"), request_id="r1")
    row = harness.store.runs.find_run("r1")
    assert (row.owner_workflow_id, row.owner_run_id) == (OWNER.workflow_id, OWNER.first_run_id)


def test_create_claims_what_was_reserved(harness: Harness) -> None:
    row, _ = harness.store.initiation.reserve_run(request(), "r1")
    handle = harness.store.initiation.create_run(request(), "r1", OWNER)
    assert handle.run_id == row.run_id
    with pytest.raises(DuplicateRequest, match="'r1'"):
        harness.store.initiation.create_run(request(), "r1", OTHER)


def test_claim_of_a_reserved_run_keeps_its_attempt(harness: Harness) -> None:
    row, _ = harness.store.initiation.reserve_run(request(2), "r1")
    wanted = RunRequest(run_id=row.run_id, requested_by="bob", poll_minutes=[0.1])
    handle = harness.store.initiation.claim_run(wanted, OWNER, never_asked)
    assert (handle.attempt, handle.resumed, handle.multi) == (1, False, True)
    expected = ("bob", [0.1], "services")
    assert (
        handle.request.requested_by,
        handle.request.poll_minutes,
        handle.request.crawler,
    ) == expected
    assert harness.store.initiation.claim_run(wanted, OWNER, never_asked) == handle


def test_claims_that_are_refused(harness: Harness) -> None:
    claim, fence = harness.store.initiation.claim_run, harness.deployed()
    with pytest.raises(RunNotFound, match="no run 1000000000"):
        claim(RunRequest(run_id=10**9), OWNER, never_asked)
    with pytest.raises(InvalidRequest, match="run_id: it is missing"):
        claim(request(), OWNER, never_asked)
    with pytest.raises(InvalidRequest, match=r"crawler: 'other'.*'services'"):
        claim(RunRequest(run_id=fence.run_id, crawler="other"), OTHER, never_asked)
    with pytest.raises(InvalidRequest, match=r"project: 'shop-b'.*'default'"):
        claim(RunRequest(run_id=fence.run_id, project="shop-b"), OTHER, never_asked)
    with pytest.raises(RunIsLive, match=OWNER.workflow_id):
        claim(RunRequest(run_id=fence.run_id), OTHER, still_open)
    assert harness.row(fence).attempt == 1


def test_a_run_whose_owner_is_gone_is_taken_over(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    asked: list[Owner] = []
    handle = harness.store.initiation.claim_run(
        RunRequest(run_id=fence.run_id), OTHER, lambda o: bool(asked.append(o))
    )
    assert asked == [OWNER]
    assert (handle.attempt, handle.resumed, handle.rerun, handle.status) == (
        2,
        True,
        False,
        RunStatus.INITIALIZING,
    )
    assert (
        harness.store.initiation.claim_run(RunRequest(run_id=fence.run_id), OTHER, never_asked)
        == handle
    )
    last = harness.store.runs.transitions(fence.run_id)[-1]
    assert (last.from_status, last.to_status, last.source, last.attempt) == (
        "PROCESSING",
        "INITIALIZING",
        "resume",
        2,
    )
    assert set(harness.statuses(fence).values()) == {TaskStatus.RUNNING}
    with pytest.raises(Fenced):
        harness.store.deployment.note_waiting(fence, "anything")


def test_a_stop_survives_a_takeover(harness: Harness) -> None:
    fence = harness.deployed()
    harness.store.stops.record_stop(fence.run_id, harness.stop(reason="enough"), "s1")
    handle = harness.store.initiation.claim_run(RunRequest(run_id=fence.run_id), OTHER, closed)
    assert handle.status is RunStatus.STOPPING
    assert handle.stop == StopIntent(START, requested_by="ann", reason="enough")


def test_resume_after_the_end_begins_clean(harness: Harness) -> None:
    fence = harness.deployed(tasks=2)
    harness.store.stops.record_stop(fence.run_id, harness.stop(force=True), "s1")
    harness.finish(fence, failed=[0])
    assert harness.status(fence) is RunStatus.FAILED
    handle = harness.store.initiation.claim_run(RunRequest(run_id=fence.run_id), OTHER, never_asked)
    assert (handle.attempt, handle.resumed, handle.stop, handle.status) == (
        2,
        True,
        None,
        RunStatus.INITIALIZING,
    )
    row = harness.row(fence)
    assert (row.outcome, row.cause, row.ended_at, row.stop, row.stage) == (
        None,
        None,
        None,
        None,
        "initiation",
    )


def test_a_completed_run_needs_rerun(harness: Harness) -> None:
    fence = harness.deployed()
    harness.finish(fence)
    with pytest.raises(AlreadyCompleted):
        harness.store.initiation.claim_run(RunRequest(run_id=fence.run_id), OTHER, never_asked)
    wanted = RunRequest(run_id=fence.run_id, rerun=True)
    handle = harness.store.initiation.claim_run(wanted, OTHER, never_asked)
    assert handle.rerun
    assert harness.store.initiation.claim_run(wanted, OTHER, never_asked) == handle


def test_a_rerun_that_was_lost_before_it_began_is_still_a_rerun(harness: Harness) -> None:
    fence = harness.deployed()
    harness.finish(fence)
    harness.store.initiation.claim_run(
        RunRequest(run_id=fence.run_id, rerun=True), OTHER, never_asked
    )
    third = Owner("third", "chain-3")
    handle = harness.store.initiation.claim_run(RunRequest(run_id=fence.run_id), third, closed)
    assert (handle.attempt, handle.rerun) == (3, True)
    harness.store.deployment.requeue_ended(
        Fence(fence.run_id, 3, "chain-3", fence.run_uid), handle.rerun
    )
    assert harness.store.tasks.count_tasks(fence.run_id).by_status == {"QUEUED": 1}
    handle = harness.store.initiation.claim_run(
        RunRequest(run_id=fence.run_id), Owner("fourth", "chain-4"), closed
    )
    assert not handle.rerun


def test_a_run_that_changes_hands_while_its_owner_is_asked_about(harness: Harness) -> None:
    fence = harness.deployed()
    asked: list[str] = []

    def steal(owner: Owner) -> bool:
        asked.append(owner.first_run_id)
        if len(asked) == 1:
            harness.store.initiation.claim_run(RunRequest(run_id=fence.run_id), OTHER, closed)
        return False

    handle = harness.store.initiation.claim_run(
        RunRequest(run_id=fence.run_id), Owner("third", "chain-3"), steal
    )
    assert asked == ["chain-1", "chain-2"]
    assert handle.attempt == 3


def test_properties_are_kept_by_attempt(harness: Harness) -> None:
    fence = harness.run()
    for value in ("one", "two", "two"):
        harness.store.initiation.set_property(fence.run_id, 1, "workflow_id", value)
    harness.store.initiation.set_property(fence.run_id, 2, "workflow_id", "three")
    found = [
        (p["attempt"], p["name"], p["value"]) for p in harness.store.runs.properties(fence.run_id)
    ]
    assert found == [(1, "workflow_id", "two"), (2, "workflow_id", "three")]


def test_runs_that_nobody_claimed(harness: Harness) -> None:
    row, _ = harness.store.initiation.reserve_run(request(), "r1")
    harness.run("r2")
    later = harness.clock.forward(60)
    assert [r.run_id for r in harness.store.sweep.unowned_runs(later - timedelta(seconds=30))] == [
        row.run_id
    ]
    assert harness.store.sweep.unowned_runs(row.created_at) == []


def test_a_request_with_texts_of_the_harness(harness: Harness) -> None:
    text = "Ünïcödé 🕷 'quote' \\ % :name"
    asked = RunRequest(
        crawler="services", args={text: text}, tasks=[ChildTask({"t": text})], requested_by=text
    )
    handle = harness.store.initiation.create_run(asked, f"id {text}", OWNER)
    assert handle.request.args == {text: text}
    found = harness.store.runs.find_run(f"id {text}")
    assert found is not None
    assert harness.store.tasks.list_tasks(handle.run_id)[0].args == {"t": text}
