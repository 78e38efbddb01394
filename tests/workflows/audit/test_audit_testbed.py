"""Audits over real activities, store and Temporal: each finding is provoked, repaired, and absent
afterwards.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from crawler_lifecycle.activities.audits import settling as audit_ending
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.audit import AuditRules
from crawler_lifecycle.domain.errors import ClusterUnavailable, NotDelivered
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits, RunRequest, StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import End
from crawler_lifecycle.ports.runs import Deployment, QueuedTask, TaskRef
from tests.support.auditing import audit
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.managing import manager_testbed, quick
from tests.support.run_refs import run_ref
from tests.support.testbed import CRAWLERS, WorkflowHarness, start_workers

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

QUICK: dict[str, Any] = {"poll_minutes": [0.02], "limits": {"start_check_s": 0.1}}
ENDLESS = Behaviour(executes=None)
FAILS = Behaviour(end=End(exit_code=1, reason="Error"))


async def settled(testbed: WorkflowHarness) -> None:
    """Check that another audit finds nothing, and that nothing is open; most kinds are checked
    together.
    """
    report = await audit(testbed)
    assert report.found == {}, report.findings
    assert testbed.store.findings.audit_findings("open") == []


async def running(
    testbed: WorkflowHarness, request: dict[str, Any], **more: Any
) -> WorkflowHandle[Any, Any]:
    handle = await testbed.start({**QUICK, **request}, **more)
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    return handle


async def ended(testbed: WorkflowHarness, run_id: int, status: str) -> None:
    await testbed.until(lambda: testbed.store.runs.get_run(run_id).status == status)
    row = testbed.store.runs.get_run(run_id)
    await testbed.until(lambda: testbed.store.exports.list_exports(run_id))
    await testbed.ended(testbed.client.get_workflow_handle(row.owner_workflow_id))


def kinds(testbed: WorkflowHarness, run_id: int) -> list[tuple[str, str]]:
    return [
        (str(c.kind), c.truth)
        for c in testbed.store.corrections.list_corrections(run_id)
        if c.found_by == "sweep"
    ]


async def test_nothing_is_found_where_all_agree(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: (
        ENDLESS if run == 1 else Behaviour(executes=0)
    )
    handle = await running(
        testbed, {"crawler": "books", "tasks": [{}] * 3, "poll_minutes": [0.02, 60]}
    )
    assert (await testbed.run({"crawler": "books", **QUICK})).status == "COMPLETED"
    report = await audit(testbed)
    assert (report.found, report.left, report.repair) == ({}, 0, True)
    assert report.looked == {
        "cluster_tasks": 3, "open_runs": 1, "open_managers": 0, "open_graphs": 0, "schedules": 0, "due_times": 0,
        "webhooks": 0, "open_workflows": 1, "ended_runs": 1,
    }  # fmt: skip
    assert testbed.store.findings.last_audit() == report
    await handle.signal("stop")
    await handle.result()


# --- a run without a workflow ---------------------------------------------------------------------


async def test_a_run_whose_workflow_was_terminated_comes_to_the_verdict_it_would_have_had(
    testbed: WorkflowHarness,
) -> None:
    """One succeeded, one failed, one is executing, one ended unseen, one is queued.

    The failed one stays failed.
    """
    testbed.cluster.behaviour = lambda run, index, attempt: (
        Behaviour(executes=0) if index == 0 or attempt > 1 else FAILS if index == 1 else ENDLESS
    )
    handle = await running(
        testbed, {"crawler": "books", "tasks": [{}] * 5, "max_parallel_tasks": 2}
    )
    await testbed.until(
        lambda: (
            testbed.tasks(1)
            == dict(enumerate(("SUCCEEDED", "FAILED", "RUNNING", "RUNNING", "QUEUED")))
        )
    )
    await handle.terminate("by an operator")
    testbed.cluster.end_now(1, 2, end=FINISHED)
    report = await audit(testbed)
    assert (report.found, report.repaired) == ({"no_workflow": 1}, {"no_workflow": 1})
    assert "was terminated" in report.findings[0].detail
    await testbed.until(lambda: testbed.tasks(1)[4] == "SUCCEEDED")
    testbed.cluster.end_now(1, 3, end=FINISHED)
    await ended(testbed, 1, "FAILED")
    row = testbed.store.runs.get_run(1)
    assert (row.outcome, row.attempt) == ("partial", 2)
    rows = [
        (t.task_index, t.attempt, str(t.status))
        for t in testbed.store.tasks.list_tasks(1, superseded=True)
    ]
    assert rows == [
        (0, 1, "SUCCEEDED"), (1, 1, "FAILED"), (2, 1, "SUCCEEDED"), (3, 1, "SUCCEEDED"), (4, 2, "SUCCEEDED"),
    ]  # fmt: skip
    assert ("repair", "no workflow") in kinds(testbed, 1)
    sources = {
        t.source for t in testbed.store.runs.transitions(1) if t.attempt == 2 and t.task_id is None
    }
    assert "sweep" in sources
    testbed.handles.append(
        testbed.client.get_workflow_handle(
            row.owner_workflow_id, first_execution_run_id=row.owner_run_id
        )
    )
    await settled(testbed)


async def test_a_failed_run_is_not_executed_again(testbed: WorkflowHarness) -> None:
    """Only the verdict was left to do."""
    testbed.cluster.behaviour = ENDLESS
    handle = await running(testbed, {"crawler": "books"})
    await handle.terminate("by an operator")
    testbed.cluster.end_now(1, end=End(exit_code=1, reason="Error"))
    told = await audit(testbed, repair=False)
    assert (told.found, told.repaired) == ({"no_workflow": 1}, {}), "without repair it only reports"
    assert (
        testbed.store.runs.get_run(1).attempt,
        testbed.store.corrections.list_corrections(1),
    ) == (1, [])
    await audit(testbed)
    await ended(testbed, 1, "FAILED")
    assert [
        (t.attempt, str(t.status)) for t in testbed.store.tasks.list_tasks(1, superseded=True)
    ] == [(1, "FAILED")]
    assert len(testbed.scheduler.calls) == 1


async def test_a_resume_that_was_lost_before_it_queued_anything_is_carried_on(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: (
        FAILS if attempt == 1 else Behaviour(executes=0)
    )
    assert (await testbed.run({"crawler": "books", **QUICK})).status == "FAILED"
    testbed.cluster.fail_with(ClusterUnavailable("away"), "poll")
    again = await testbed.start({"run_id": 1})
    await testbed.until(lambda: testbed.store.runs.get_run(1).attempt == 2)
    await again.terminate("by an operator")
    testbed.cluster.fail_with(None)
    await audit(testbed)
    await ended(testbed, 1, "COMPLETED")
    rows = [(t.attempt, str(t.status)) for t in testbed.store.tasks.list_tasks(1, superseded=True)]
    assert rows == [(1, "FAILED"), (3, "SUCCEEDED")]


async def test_a_recorded_stop_is_carried_out(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = ENDLESS
    handle = await running(
        testbed, {"crawler": "books", "tasks": [{}] * 3, "max_parallel_tasks": 2}
    )
    await handle.terminate("by an operator")
    testbed.store.stops.record_stop(1, StopIntent(utc_now(), requested_by="ada"), "s1")
    await audit(testbed)
    await ended(testbed, 1, "FAILED")
    row = testbed.store.runs.get_run(1)
    assert (row.outcome, row.attempt) == ("cancelled", 2)
    assert sorted(testbed.tasks(1).values()) == ["CANCELLED"] * 3
    assert [testbed.cluster.signals(1, index) for index in (0, 1)] == [1, 1]
    (logged,) = testbed.store.runs.cancellations(1)
    assert logged["request_id"] == "s1"


async def test_before_its_grace_nothing_is_repaired_and_the_report_says_when_it_will_be(
    idle_testbed: WorkflowHarness,
) -> None:
    testbed = idle_testbed
    testbed.parts.audit = AuditRules(grace_s=3600, orphan_grace_s=3600, start_grace_s=3600)
    async with testbed.working():
        testbed.cluster.behaviour = ENDLESS
        handle = await running(testbed, {"crawler": "books"})
        await handle.terminate("by an operator")
        ghost(testbed, 77)
        report = await audit(testbed)
        assert (report.found, report.repaired, report.left) == (
            {"orphan": 1, "no_workflow": 1},
            {},
            2,
        )
        assert [f.kind for f in report.findings] == ["orphan", "no_workflow"], (
            "what executes unowned comes first"
        )
        orphan, other = report.findings
        assert other.due_at is not None
        assert other.due_at > utc_now()
        assert orphan.due_at is None, "what no row knows needs a person"
        assert testbed.store.runs.get_run(1).attempt == 1
        assert (77, 0, 1) in testbed.cluster.alive()
        assert {row.kind for row in testbed.store.findings.audit_findings()} == {
            "orphan",
            "no_workflow",
        }


async def test_a_manager_whose_workflow_was_terminated_goes_on_and_counts_its_runs(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = ENDLESS
    m = manager_testbed(testbed, source=[quick(n) for n in range(3)], window=1)
    async with m.user_code():
        handle = await m.start()
        await testbed.until(lambda: m.row().counts.by_state["started"] == 1)
        await handle.terminate("by an operator")
        told = await audit(testbed, repair=False)
        assert (told.found, told.repaired) == ({"no_workflow": 1}, {})
        report = await audit(testbed)
        assert (report.found, report.repaired) == ({"no_workflow": 1}, {"no_workflow": 1})
        assert "was terminated" in report.findings[0].detail
        testbed.cluster.behaviour = Behaviour(executes=0)
        await testbed.until(lambda: m.row().attempt == 2)
        testbed.cluster.end_now(1, 0, end=FINISHED)
        await testbed.client.get_workflow_handle(m.runs()[0].owner_workflow_id).signal("poll_now")
        await testbed.until(lambda: m.row().status == "COMPLETED")
    assert [run.request_id for run in m.runs()] == [f"manager/1/{n}" for n in (1, 2, 3)]
    testbed.handles.append(
        testbed.client.get_workflow_handle(
            "manager/stream/f1", first_execution_run_id=m.row().owner_run_id
        )
    )
    await settled(testbed)


# --- a run that nobody started --------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_reserved_run_whose_starter_died_is_started(
    testbed: WorkflowHarness, stopped: bool
) -> None:
    row, _ = testbed.store.initiation.reserve_run(RunRequest(crawler="books", **limits()), "r1")
    if stopped:
        testbed.store.stops.record_stop(row.run_id, StopIntent(utc_now(), requested_by="ada"), "s1")
    report = await audit(testbed)
    assert (report.found, report.repaired) == ({"not_started": 1}, {"not_started": 1})
    await ended(testbed, row.run_id, "FAILED" if stopped else "COMPLETED")
    found = testbed.store.runs.get_run(row.run_id)
    assert (found.attempt, found.owner_workflow_id) == (1, "crawl/books/r1")
    assert bool(testbed.scheduler.calls) != stopped


# --- workflows without a row ----------------------------------------------------------------------


async def test_a_workflow_whose_run_does_not_exist_is_ended_with_its_reason(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = ENDLESS
    handle = await running(testbed, {"crawler": "books", "poll_minutes": [0.02, 60]})
    await listed(testbed, 1)
    forget_run(testbed, 1)
    report = await audit(testbed)
    assert (report.found, report.repaired) == ({"orphan": 1, "no_row": 1}, {}), (
        "its task is nobody's either"
    )
    assert all(
        "crawlctl audit --adopt" in (f.repair or "") and f.due_at is None for f in report.findings
    )
    assert testbed.cluster.alive() == [(1, 0, 1)], "without a person's word nothing is ended"
    report = await audit(testbed, repair=False, unknown="end")
    assert report.left == 0
    described = await handle.describe()
    assert described.status is WorkflowExecutionStatus.TERMINATED
    last = [e async for e in handle.fetch_history_events()][-1]
    assert (
        "run 1, which is not in the database"
        in last.workflow_execution_terminated_event_attributes.reason
    )
    assert testbed.cluster.alive() == []
    await settled(testbed)


async def test_a_workflow_that_has_not_recorded_its_run_is_told_and_left_alone(
    idle_testbed: WorkflowHarness,
) -> None:
    """No worker executes it, and nobody knows what it is going to do."""
    testbed = idle_testbed
    testbed.parts.audit = AuditRules(record_grace_s=0)
    handle = await testbed.start({"crawler": "books"})
    async with AsyncExitStack() as stack:
        await start_workers(stack, testbed, roles=["audit"])
        await listed(testbed, workflow_id=handle.id)
        report = await audit(testbed)
        assert (report.found, report.repaired) == ({"unrecorded": 1}, {})
        assert report.findings[0].workflow_id == handle.id
        assert report.findings[0].due_at is None
        assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING


# --- tasks that nobody owns -----------------------------------------------------------------------


def ghost(testbed: WorkflowHarness, run_id: int, index: int = 0, attempt: int = 1) -> None:
    """Deploy a task without the service, for the recorded run if there is one."""
    row = testbed.store.runs.get_run(run_id)
    testbed.cluster.deploy(
        Deployment(
            run=run_ref(run_id) if row is None else row.ref,
            attempt=attempt,
            crawler="books",
            args={},
            settings={},
            tasks=[QueuedTask(1, index, {})],
            resources=Resources(),
            limits=Limits(),
            expires_at=utc_now() + timedelta(seconds=25),
        ),
        CRAWLERS["books"],
    )


@pytest.mark.parametrize("heeds", [True, False])
async def test_an_orphan_is_asked_to_end_and_then_killed(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch, heeds: bool
) -> None:
    monkeypatch.setattr(audit_ending, "STOP_S", 60.0 if heeds else 0.3)
    testbed.cluster.behaviour = replace(ENDLESS, heeds_stop_after=0.0 if heeds else None)
    ghost(testbed, 99)
    report = await audit(testbed, unknown="end")
    assert (report.found, report.repaired) == ({"orphan": 1}, {"orphan": 1})
    assert testbed.cluster.signals(99) == 1
    assert testbed.cluster.calls["kill"] == (0 if heeds else 1)
    assert testbed.cluster.alive() == []
    assert (report.findings[0].repair or "").startswith(
        "asked to end, and " + ("it ended" if heeds else "killed")
    )


async def test_orphans_are_asked_and_killed_abreast(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of them must fit into one activity: no call waits for another one, and an error
    affects only its own.
    """
    monkeypatch.setattr(audit_ending, "STOP_S", 0.1)
    testbed.cluster.behaviour = replace(ENDLESS, heeds_stop_after=None)
    stop, kill = testbed.cluster.stop, testbed.cluster.kill
    stopping, killing = threading.Barrier(3, timeout=60), threading.Barrier(2, timeout=60)

    def stopped(run: RunRef, task: TaskRef) -> None:
        stopping.wait()
        if run.run_id == 97:
            raise ClusterUnavailable("not this one")
        stop(run, task)

    def killed(run: RunRef, task: TaskRef) -> None:
        killing.wait()
        kill(run, task)

    monkeypatch.setattr(testbed.cluster, "stop", stopped)
    monkeypatch.setattr(testbed.cluster, "kill", killed)
    for run_id in (97, 98, 99):
        ghost(testbed, run_id)
    report = await audit(testbed, unknown="end")
    assert (report.found, report.repaired) == ({"orphan": 3}, {"orphan": 2})
    assert {f.run_id: f.repair for f in report.findings if not f.repaired} == {
        97: "could not be repaired: not this one"
    }
    monkeypatch.undo()
    assert [task.run_id for task in testbed.cluster.inventory()] == [97]


@pytest.mark.parametrize("late_s", [0.5, None])
async def test_a_killed_orphan_gets_a_moment_to_be_gone(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch, late_s: float | None
) -> None:
    """A cluster has to pass it on to its node first; on a node that does not respond, nothing
    counts as ended.
    """
    monkeypatch.setattr(audit_ending, "STOP_S", 0.1)
    monkeypatch.setattr(audit_ending, "KILLED_S", 60.0 if late_s else 0.2)
    testbed.cluster.behaviour = replace(ENDLESS, heeds_stop_after=None)
    kill, timers = testbed.cluster.kill, []

    def killing(run: RunRef, task: TaskRef) -> None:
        if late_s is not None:
            timers.append(threading.Timer(late_s, kill, (run, task)))
            timers[0].start()

    monkeypatch.setattr(testbed.cluster, "kill", killing)
    ghost(testbed, 99)
    report = await audit(testbed, unknown="end")
    assert report.repaired == ({"orphan": 1} if late_s else {})
    assert late_s or "it still exists" in (report.findings[0].repair or "")
    for timer in timers:
        timer.join()
    kill(testbed.cluster._tasks[99, 0, 1].run, TaskRef(0, 0, 1))


async def test_a_settled_task_of_a_live_run_that_executes_is_ended_and_its_run_goes_on(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: (
        Behaviour(executes=0) if index == 0 else ENDLESS
    )
    handle = await running(testbed, {"crawler": "books", "tasks": [{}, {}]})
    await testbed.until(lambda: testbed.tasks(1)[0] == "SUCCEEDED")
    testbed.cluster._tasks[1, 0, 1].ended = None
    testbed.cluster._tasks[1, 0, 1].behaviour = ENDLESS
    report = await audit(testbed)
    assert report.repaired == {"still_alive": 1}
    assert testbed.cluster.alive() == [(1, 1, 1)]
    await handle.signal("stop")
    await handle.result()


# --- deliveries and evidence ----------------------------------------------------------------------


async def test_what_was_not_delivered_is_sent_again(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = Behaviour(executes=0)
    testbed.outside.fail["send"] = NotDelivered("the bus is away")
    testbed.cluster.folders[1, 0] = testbed.folder
    handle = await testbed.start({"crawler": "books", **QUICK})
    await until_refused(testbed, 1)
    await handle.terminate("by an operator")
    testbed.outside.fail.clear()
    report = await audit(testbed)
    assert (report.found, report.repaired) == ({"undelivered": 1}, {"undelivered": 1})
    assert "the event run.ended, the supporting files" in report.findings[0].detail
    await testbed.ended(
        testbed.client.get_workflow_handle(
            names.export_workflow_id(testbed.store.runs.get_run(1).ref, 1)
        )
    )
    assert [e.type for e in testbed.outside.sent] == ["run.ended"]
    assert testbed.store.exports.list_exports(1)[0]["status"] == "exported"


async def test_what_cannot_be_delivered_is_not_ordered_again_at_every_audit(
    idle_testbed: WorkflowHarness,
) -> None:
    testbed = idle_testbed
    testbed.parts.audit = AuditRules(grace_s=0, resend_s=3600)
    async with testbed.working():
        testbed.cluster.behaviour = Behaviour(executes=0)
        handle = await testbed.start({"crawler": "books", **QUICK})
        testbed.outside.fail["send"] = NotDelivered("the bus is away")
        await until_refused(testbed, 1)
        await handle.terminate("by an operator")
        assert (await audit(testbed)).repaired == {"undelivered": 1}
        again = testbed.client.get_workflow_handle(
            names.export_workflow_id(testbed.store.runs.get_run(1).ref, 1)
        )
        assert (await audit(testbed)).found == {}, "it is being delivered"
        await again.terminate("by an operator")
        report = await audit(testbed)
        assert (report.found, report.repaired) == ({"undelivered": 1}, {})
        assert report.left == 1


async def test_evidence_that_comes_after_a_loss_is_a_correction_also_while_the_run_is_live(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = ENDLESS
    handle = await running(testbed, {"crawler": "books", "tasks": [{}, {}]})
    testbed.cluster.vanish(1, 0)
    await testbed.until(lambda: testbed.tasks(1)[0] == "LOST")
    testbed.cluster._tasks[1, 0, 1].gone = False
    testbed.cluster.end_now(1, 0, end=FINISHED)
    report = await audit(testbed)
    assert (report.found, report.repaired) == ({"late_evidence": 1}, {"late_evidence": 1})
    corrections = [
        c for c in testbed.store.corrections.list_corrections(1) if c.kind == "late_evidence"
    ]
    assert [(c.believed, c.truth, c.found_by) for c in corrections] == [
        ("LOST", "SUCCEEDED", "sweep")
    ]
    assert testbed.tasks(1)[0] == "LOST"
    await handle.signal("stop")
    await handle.result()


# --- trouble --------------------------------------------------------------------------------------


async def test_a_source_that_cannot_be_read_is_told_and_the_others_are_compared(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    from crawler_lifecycle.workflows import policies

    monkeypatch.setitem(
        policies.POLICIES,
        "audit_cluster",
        replace(policies.AUDIT, retry=policies._retry(0.05, 0.1, tries=2)),
    )
    testbed.cluster.fail_with(ClusterUnavailable("503"), "inventory")
    row, _ = testbed.store.initiation.reserve_run(RunRequest(crawler="books", **limits()), "r1")
    report = await audit(testbed, troubles=["cluster tasks could not be compared: 503"])
    assert report.repaired == {"not_started": 1}
    assert "cluster_tasks" not in report.looked
    await ended(testbed, row.run_id, "COMPLETED")


# --- at once --------------------------------------------------------------------------------------


async def test_two_audits_at_once_over_every_kind_of_damage_repair_it_once(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: (
        ENDLESS if run in (1, 99) or index else Behaviour(executes=0)
    )
    terminated = await running(testbed, {"crawler": "books"})
    assert (await testbed.run({"crawler": "books", **QUICK})).status == "COMPLETED"
    lost = await running(testbed, {"crawler": "books", "tasks": [{}, {}]})
    testbed.outside.fail["send"] = NotDelivered("away")
    undelivered = await testbed.start({"crawler": "books", **QUICK})
    await testbed.until(
        lambda: (
            testbed.store.runs.get_run(4) and testbed.store.runs.get_run(4).status == "COMPLETED"
        )
    )
    await until_refused(testbed, 4)
    for handle in (terminated, undelivered):
        await handle.terminate("by an operator")
    testbed.outside.fail.clear()
    testbed.cluster.vanish(3, 1)
    await testbed.ended(lost)
    testbed.cluster._tasks[3, 1, 1].gone = False
    testbed.cluster.end_now(3, 1, end=FINISHED)
    testbed.cluster._tasks[2, 0, 1].ended = None
    testbed.cluster._tasks[2, 0, 1].behaviour = ENDLESS
    ghost(testbed, 99)
    row, _ = testbed.store.initiation.reserve_run(RunRequest(crawler="books", **limits()), "r1")
    assert row.run_id == 5
    reports = await asyncio.gather(*(audit(testbed, unknown="end") for _ in range(2)))
    everything = {
        "orphan",
        "still_alive",
        "no_workflow",
        "not_started",
        "undelivered",
        "late_evidence",
    }
    assert set().union(*(r.found for r in reports)) == everything
    testbed.cluster.end_now(1, end=FINISHED)
    for run_id in (1, 5):
        await ended(testbed, run_id, "COMPLETED")
    await testbed.ended(
        testbed.client.get_workflow_handle(
            names.export_workflow_id(testbed.store.runs.get_run(4).ref, 1)
        )
    )
    await settled(testbed)
    assert testbed.store.runs.get_run(1).attempt == 2
    assert testbed.store.runs.get_run(5).attempt == 1
    assert [
        len(testbed.store.tasks.list_tasks(run_id, superseded=True)) for run_id in (1, 2, 3, 4, 5)
    ] == [1, 1, 2, 1, 1]
    assert kinds(testbed, 1) == [("repair", "no workflow")]
    assert kinds(testbed, 2) == [("still_alive", "RUNNING")]
    assert kinds(testbed, 3) == [("late_evidence", "SUCCEEDED")]
    assert testbed.cluster.signals(99) == 1
    assert sorted(e.run_id for e in testbed.outside.sent if e.type == "run.ended") == [
        1,
        2,
        3,
        4,
        5,
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.slow)])
async def test_audits_beside_runs_that_live_their_lives_find_nothing(
    testbed: WorkflowHarness, count: int
) -> None:
    """Grace periods are zero here: a sound run never looks wrong, not even for a moment."""
    testbed.cluster.behaviour = lambda run, index, attempt: (
        ENDLESS if (run, index) == (count, 0) else Behaviour(executes=0.05 * (run % 7))
    )
    handles = [
        await testbed.start(
            {"crawler": "books", "tasks": [{}] * (1 + n % 3), "max_parallel_tasks": 2, **QUICK}
        )
        for n in range(count)
    ]
    lives = asyncio.gather(*(handle.result() for handle in handles))
    audits = 0
    while not lives.done():
        report = await audit(testbed)
        assert report.found == {}, report.findings
        audits += 1
        if audits == 2:  # at least this number of audits examine lives, however quick these are
            await testbed.until(lambda: (count, 0, 1) in testbed.cluster.alive())
            testbed.cluster.end_now(count, end=FINISHED)
    assert audits >= 2
    assert {r.status for r in await lives} == {"COMPLETED"}
    await settled(testbed)
    assert [c for c in testbed.store.corrections.list_corrections() if c.found_by == "sweep"] == []
    assert {row.attempt for row in testbed.store.runs.list_runs()} == {1}


# --- helpers --------------------------------------------------------------------------------------


def limits() -> dict[str, Any]:
    return {"poll_minutes": [0.02], "limits": Limits(start_check_s=0.1)}


def write(testbed: WorkflowHarness, *statements: str) -> None:
    from sqlalchemy import text

    with testbed.store.database.engine.begin() as conn:
        for statement in statements:
            conn.execute(text(statement))


def read(testbed: WorkflowHarness, statement: str) -> list[tuple[Any, ...]]:
    from sqlalchemy import text

    with testbed.store.database.engine.connect() as conn:
        return [tuple(row) for row in conn.execute(text(statement))]


def forget_run(testbed: WorkflowHarness, run_id: int) -> None:
    """Delete all rows of a run, as somebody might."""
    from crawler_lifecycle.store.tables import metadata

    events = f"(SELECT seq FROM outbox_event WHERE run_id = {run_id})"
    runs = {"run_history", "task_history"}
    tables = [
        table.name
        for table in reversed(metadata.sorted_tables)
        if table.name in runs
        or ("run_id" in table.c and runs & {key.column.table.name for key in table.foreign_keys})
    ]
    write(
        testbed,
        f"DELETE FROM outbox_delivery WHERE seq IN {events}",
        *(f"DELETE FROM {table} WHERE run_id = {run_id}" for table in tables),
    )


async def until_refused(testbed: WorkflowHarness, run_id: int) -> None:
    """Wait until something of the run could not be delivered."""
    await testbed.until(
        lambda: any(
            d["status"] == "failed" for d in testbed.store.events.deliveries(run_id, keyed=True)
        )
    )


async def listed(
    testbed: WorkflowHarness, run_id: int | None = None, workflow_id: str = ""
) -> None:
    """Wait until the visibility store has the workflow, or that of the run."""
    which = (
        f"WorkflowId = '{workflow_id}'"
        if run_id is None
        else f"CrawlRunId = {run_id} AND ExecutionStatus = 'Running'"
    )
    for _ in range(1200):
        async for _row in testbed.client.list_workflows(which):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{which} is not listed, not within a minute")
