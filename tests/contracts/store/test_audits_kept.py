"""What audits read from the database, and what they store there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from crawler_lifecycle.domain.audits.audit import (
    AuditFinding,
    AuditReport,
    FindingKind,
    ReportedFinding,
    StoredFinding,
)
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.names import EVENT_RUN_ENDED, EVENT_RUN_STARTED, event_key
from crawler_lifecycle.domain.run import RunRequest, RunStatus
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import OTHER, OWNER, Clock, Harness, closed, request, seen
from tests.contracts.store.test_writers import together

ORPHAN = AuditFinding(
    "orphan/task/9/0/1/u", FindingKind.ORPHAN, "task 0 of run 9 executes", 9, evidence={"uid": "u"}
)


# --- reading


def test_runs_that_are_open_come_in_pages_by_id(harness: Harness) -> None:
    fences = [harness.run(f"r{n}") for n in range(5)]
    harness.deploy(fences[1])
    harness.execute(fences[1])
    harness.deploy(fences[2])
    harness.finish(fences[2])
    reserved, _ = harness.store.initiation.reserve_run(request(priority=2), "reserved")
    pages = [
        harness.store.audits.open_runs(0, 3),
        harness.store.audits.open_runs(fences[3].run_id, 3),
    ]
    found = [run for page in pages for run in page]
    assert [run.run_id for run in found] == [
        f.run_id for f in (fences[0], fences[1], fences[3], fences[4])
    ] + [reserved.run_id]
    assert [run.status for run in found] == ["INITIALIZING", "PROCESSING"] + ["INITIALIZING"] * 3
    assert found[0].owner_workflow_id == OWNER.workflow_id
    assert (found[-1].owner_run_id, found[-1].priority, found[-1].request_id) == (
        None,
        2,
        "reserved",
    )


def test_runs_that_ended_come_in_the_order_of_their_ends(harness: Harness, clock: Clock) -> None:
    ended = []
    for n in range(4):
        fence = harness.executing(f"r{n}")
        harness.finish(fence)
        ended.append(fence)
        if n != 1:
            clock.forward(60)
    harness.run("open")
    since = clock.now - timedelta(seconds=200)
    first = harness.store.audits.ended_runs(since, limit=3)
    rest = harness.store.audits.ended_runs(since, (first[-1].ended_at, first[-1].run_id), limit=3)
    assert [run.run_id for run in (*first, *rest)] == [f.run_id for f in ended]
    assert first[1].ended_at == first[2].ended_at, "the id decides where the time does not"
    assert [
        r.run_id for r in harness.store.audits.ended_runs(clock.now - timedelta(seconds=70))
    ] == [ended[3].run_id]


def test_a_run_that_goes_on_has_not_ended_whatever_time_another_hand_wrote(
    harness: Harness, clock: Clock
) -> None:
    fence = harness.deployed()
    assert harness.write("UPDATE run_history SET ended_at = updated_at") == 1
    assert harness.store.audits.ended_runs(clock.now - timedelta(seconds=200)) == []
    assert [run.run_id for run in harness.store.audits.open_runs(0, 3)] == [fence.run_id]


def test_an_ended_run_says_what_of_it_was_delivered(harness: Harness) -> None:
    fence = harness.deployed()
    store = harness.store
    harness.execute(fence)
    started = store.events.append_event(
        fence, EVENT_RUN_STARTED, event_key(fence.run, 1, EVENT_RUN_STARTED), {}
    )
    store.events.record_delivery(started.seq, "pusher", "refused")
    assert store.audits.ended_run(fence.run_id) is None
    harness.finish(fence)

    def told() -> tuple[bool, bool, bool]:
        run = store.audits.ended_run(fence.run_id)
        assert run == store.audits.ended_runs(run.ended_at)[0]
        return run.event_delivered, run.pushes_delivered, run.exported

    assert told() == (False, False, False)
    event = store.events.find_event(event_key(fence.run, 1, EVENT_RUN_ENDED))
    store.events.record_delivery(event.seq, "bus", "away")
    store.exports.record_export(fence, "failed", None, "full")
    assert told() == (False, False, False)
    store.events.record_delivery(event.seq, "bus", None)
    store.events.record_delivery(started.seq, "pushed elsewhere", None)
    assert told() == (True, False, False), "one notifier told it, the other did not"
    store.events.record_delivery(started.seq, "pusher", None)
    store.exports.record_export(fence, "empty", None, None)
    assert told() == (True, True, True)
    second = harness.resume(fence, rerun=True)
    assert store.audits.ended_run(fence.run_id) is None
    harness.deploy(second)
    harness.finish(second)
    assert told() == (False, True, False), "each attempt has its own"


def test_tasks_are_found_by_run_index_and_attempt(harness: Harness) -> None:
    first = harness.deployed("r1", tasks=3)
    harness.finish(first, failed=[1])
    second = harness.resume(first)
    harness.deployed("r2")
    keys = [
        (first.run_id, 0, 1),
        (first.run_id, 1, 1),
        (first.run_id, 1, 2),
        (first.run_id, 7, 1),
        (99, 0, 1),
    ]
    found = {task.key: task for task in harness.store.tasks.recorded_tasks(keys)}
    assert set(found) == set(keys[:3])
    assert found[keys[1]].status == "FAILED"
    assert (found[keys[2]].status, found[keys[2]].run_status) == ("QUEUED", "INITIALIZING")
    assert (found[keys[0]].uid, found[keys[0]].outcome, found[keys[2]].outcome) == (
        "uid-1-0",
        "finished",
        None,
    )
    assert second.attempt == 2
    assert harness.store.tasks.recorded_tasks([]) == []


def test_only_ends_without_evidence_are_unproved(harness: Harness, clock: Clock) -> None:
    fence = harness.executing("r1", tasks=4)
    tasks = harness.store.polls.found_state(fence).tasks
    gone = [
        seen(task, Phase.GONE, clock.now, uid=task.uid, changed_at=clock.now) for task in tasks[:2]
    ]
    harness.poll(fence, gone)
    harness.finish(fence, failed=[3])
    since = clock.now - timedelta(seconds=1)
    found = harness.store.audits.unproved_ends([fence.run_id, 77], since)
    assert [(task.index, task.status) for task in found] == [(0, "LOST"), (1, "LOST")]
    assert (
        harness.store.audits.unproved_ends([fence.run_id], clock.now + timedelta(seconds=1)) == []
    )
    assert harness.store.audits.existing_runs([fence.run_id, 77]) == {fence.run_id: fence.run_uid}


# --- claiming in place of a workflow that was lost


def test_a_repair_queues_nothing_again_that_its_attempt_had_judged(harness: Harness) -> None:
    fence = harness.executing("r1", tasks=2)
    harness.poll(
        fence,
        [seen(harness.store.polls.found_state(fence).tasks[0], Phase.GONE, harness.clock.now)],
    )
    handle = harness.store.initiation.claim_run(
        RunRequest(run_id=fence.run_id), OTHER, closed, repair=True
    )
    again = harness.store.initiation.claim_run(
        RunRequest(run_id=fence.run_id), OTHER, closed, repair=True
    )
    assert (handle, handle.attempt, handle.resumed) == (again, 2, True)
    second = replace(fence, attempt=2, owner_run_id=OTHER.first_run_id)
    assert harness.store.deployment.requeue_ended(second, False).queued == 0
    assert [t.attempt for t in harness.store.tasks.list_tasks(fence.run_id, superseded=True)] == [
        1,
        1,
    ]
    sources = [
        t.source
        for t in harness.store.runs.transitions(fence.run_id)
        if t.task_id is None and t.attempt == 2
    ]
    assert sources == ["sweep"]


def test_a_repair_queues_what_a_lost_resume_had_not_come_to(harness: Harness) -> None:
    fence = harness.deployed("r1")
    harness.finish(fence, failed=[0])
    harness.store.initiation.claim_run(RunRequest(run_id=fence.run_id), OTHER, closed)
    third = replace(OTHER, first_run_id="chain-3")
    handle = harness.store.initiation.claim_run(
        RunRequest(run_id=fence.run_id), third, closed, repair=True
    )
    after = replace(fence, attempt=handle.attempt, owner_run_id=third.first_run_id)
    assert harness.store.deployment.requeue_ended(after, False).queued == 1


def test_a_run_that_has_ended_meanwhile_is_not_repaired(harness: Harness) -> None:
    fence = harness.deployed("r1")
    harness.finish(fence, failed=[0])
    with pytest.raises(NotInThisState, match="is FAILED now"):
        harness.store.initiation.claim_run(
            RunRequest(run_id=fence.run_id), OTHER, closed, repair=True
        )
    assert (harness.row(fence).attempt, harness.status(fence)) == (1, RunStatus.FAILED)


# --- findings and reports


def test_a_finding_keeps_the_moment_of_its_first_sight(store: Store, clock: Clock) -> None:
    first = clock.now
    assert store.findings.note_findings([ORPHAN]) == {ORPHAN.subject: StoredFinding(first)}
    clock.forward(60)
    later = replace(ORPHAN, detail="it still executes")
    assert store.findings.note_findings([later]) == {ORPHAN.subject: StoredFinding(first)}
    (row,) = store.findings.audit_findings()
    assert (row.first_seen, row.last_seen, row.detail) == (first, clock.now, "it still executes")
    assert (row.status, row.kind, row.run_id, row.evidence) == ("open", "orphan", 9, {"uid": "u"})


def test_a_repair_is_kept_and_what_comes_back_begins_anew(store: Store, clock: Clock) -> None:
    store.findings.note_findings([ORPHAN])
    store.findings.note_repair(ORPHAN.subject, "could not be repaired: 503", done=False)
    assert [row.repair for row in store.findings.audit_findings()] == ["could not be repaired: 503"]
    repaired = clock.forward(5)
    store.findings.note_repair(ORPHAN.subject, "ended")
    assert store.findings.audit_findings() == []
    (row,) = store.findings.audit_findings("repaired")
    assert (row.repair, row.repaired_at) == ("ended", repaired)
    back = clock.forward(600)
    assert store.findings.note_findings([ORPHAN]) == {ORPHAN.subject: StoredFinding(back, repaired)}
    assert len(store.findings.audit_findings()) == 1


def test_evidence_that_was_written_down_is_nothing_new(store: Store, clock: Clock) -> None:
    late = AuditFinding(
        "late_evidence/task/1/SUCCEEDED", FindingKind.LATE_EVIDENCE, "it had ended", 1, 1, 1
    )
    store.findings.note_findings([late])
    store.findings.note_repair(late.subject, "written down")
    clock.forward(60)
    assert store.findings.note_findings([late])[late.subject].settled
    assert store.findings.audit_findings() == []


def test_what_is_not_seen_again_is_gone(store: Store, clock: Clock) -> None:
    other = AuditFinding("no_row/workflow/x", FindingKind.NO_ROW, "w", 8)
    store.findings.note_findings([ORPHAN, other])
    audit = clock.forward(60)
    store.findings.note_findings([other])
    assert store.findings.forget_findings(["no_workflow"], audit) == 0
    assert store.findings.forget_findings(["orphan", "no_row"], audit) == 1
    assert [row.subject for row in store.findings.audit_findings()] == [other.subject]
    assert [row.subject for row in store.findings.audit_findings("gone")] == [ORPHAN.subject]


def test_audits_that_find_the_same_at_the_same_moment_keep_it_once(store: Store) -> None:
    findings = [replace(ORPHAN, subject=f"orphan/{n}") for n in range(20)]
    assert together(*[lambda: len(store.findings.note_findings(findings))] * 4) == [20] * 4
    assert len(store.findings.audit_findings()) == 20


def test_a_report_is_kept_once_for_thirty_days(store: Store, clock: Clock) -> None:
    assert store.findings.last_audit() is None
    one = ReportedFinding(FindingKind.ORPHAN, "it executes", 9, due_at=clock.now)
    first = AuditReport(
        "a1",
        clock.now,
        clock.now,
        repair=True,
        looked={"open_runs": 3},
        found={"orphan": 1},
        findings=[one],
    )
    store.findings.record_audit(first)
    store.findings.record_audit(replace(first, found={}))
    assert (store.findings.last_audit(), first.left) == (first, 1)
    clock.forward(31 * 86400)
    second = replace(first, audit_id="a2", started_at=clock.now, ended_at=clock.now)
    store.findings.record_audit(second)
    assert (store.findings.last_audit(), store.findings.last_audit("a1")) == (second, None)
