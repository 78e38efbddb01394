"""A restored database: what has no row waits, and a person lets it be adopted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import RetryPolicy

from crawler_lifecycle.activities.child_runs import (
    begin_request,
    next_workflow_id,
    uid_there,
    workflow_ids,
)
from crawler_lifecycle.domain.names import manager_workflow_id
from crawler_lifecycle.domain.run import RunRequest, StopRequest
from crawler_lifecycle.domain.task import End
from crawler_lifecycle.features.managers.domain.manager import ManagerOrder
from crawler_lifecycle.temporal.directory import TemporalDirectory
from crawler_lifecycle.workflows import policies
from tests.support.auditing import audit
from tests.support.fakes.cluster import FINISHED
from tests.support.managing import manager_testbed, quick
from tests.support.testbed import WorkflowHarness
from tests.workflows.audit.test_audit_testbed import (
    ENDLESS,
    ended,
    forget_run,
    ghost,
    listed,
    running,
    settled,
    write,
)

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

REQUEST: dict[str, Any] = {
    "crawler": "books",
    "args": {"shelf": "7"},
    "tags": ["nightly"],
    "requested_by": "ada",
}


def known(testbed: WorkflowHarness, run_id: int) -> Any:
    row = testbed.store.runs.get_run(run_id)
    return (
        row.run_uid,
        row.attempt,
        row.request_id,
        row.request,
        row.multi,
        row.owner_workflow_id,
        row.owner_run_id,
    )


async def test_a_run_whose_workflow_waits_goes_on_under_its_number_and_uid(
    testbed: WorkflowHarness, tmp_path: Path
) -> None:
    testbed.cluster.behaviour = ENDLESS
    testbed.cluster.folders[1, 0] = tmp_path
    handle = await running(testbed, REQUEST)
    await listed(testbed, 1)
    before, [task] = known(testbed, 1), testbed.store.tasks.list_tasks(1)
    forget_run(testbed, 1)
    for _ in range(2):
        report = await audit(testbed)
        assert (report.found, report.repaired) == ({"orphan": 1, "no_row": 1}, {})
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING, (
        "it waits for its row"
    )
    report = await audit(testbed, repair=False, unknown="adopt")
    assert report.left == 0, report.findings
    assert known(testbed, 1) == before
    [again] = testbed.store.tasks.list_tasks(1)
    assert (again.task_id, again.cluster_uid, again.attempt) == (
        task.task_id,
        task.cluster_uid,
        task.attempt,
    )
    await testbed.until(lambda: testbed.tasks(1) == {0: "RUNNING"})
    assert (await audit(testbed, unknown="adopt")).found == {}
    testbed.cluster.end_now(1, 0, end=FINISHED)
    result = await testbed.ended(handle)
    assert (result.run_id, result.run_uid, result.status, result.attempt) == (
        1,
        before[0],
        "COMPLETED",
        1,
    )
    await ended(testbed, 1, "COMPLETED")
    [key] = testbed.outside.stored
    assert key.endswith("/1/supporting-files.zip")
    assert key.startswith("1")
    await settled(testbed)


@pytest.mark.parametrize("waits_for", ["its next try", "its next poll"])
async def test_it_is_polled_at_at_once(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    """Neither at the next try of the step that found no row, nor at the next planned poll."""
    late = RetryPolicy(initial_interval=timedelta(hours=1))
    for name in ("get_active_running_tasks", "get_history_statuses_to_sync"):
        monkeypatch.setitem(policies.POLICIES, name, replace(policies.POLICIES[name], retry=late))
    testbed.cluster.behaviour = ENDLESS
    tries = waits_for == "its next try"
    gaps = [0.02] if tries else [0.02, 60]
    handle = await running(testbed, {**REQUEST, "tasks": [{}] * 3, "poll_minutes": gaps})
    await listed(testbed, 1)
    await testbed.until(lambda: testbed.tasks(1) == dict.fromkeys(range(3), "RUNNING"))
    forget_run(testbed, 1)
    if tries:
        await put_off(handle)
    polls = (await testbed.snapshot_where(handle, lambda s: True)).polls
    assert (await audit(testbed, unknown="adopt")).left == 0
    await testbed.snapshot_where(handle, lambda s: s.polls > polls)
    await testbed.until(lambda: testbed.tasks(1) == dict.fromkeys(range(3), "RUNNING"))
    history = await handle.fetch_history()
    signals = [
        e for e in history.events if e.HasField("workflow_execution_signaled_event_attributes")
    ]
    assert len(signals) == 1, "once, however many tasks the run has"
    await handle.signal("stop")
    await ended(testbed, 1, "FAILED")
    await settled(testbed)


async def put_off(handle: WorkflowHandle[Any, Any]) -> None:
    """Return when a step of the run waits for its next try."""
    for _ in range(1200):
        described = await handle.describe()
        if any(step.attempt > 1 for step in described.raw_description.pending_activities):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("no step has failed, not within a minute")


async def test_a_run_whose_workflow_is_gone_too_is_taken_over_from_what_lies_on_the_cluster(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = ENDLESS
    handle = await running(testbed, REQUEST)
    await listed(testbed, 1)
    before, [task] = testbed.store.runs.get_run(1), testbed.store.tasks.list_tasks(1)
    await handle.terminate("the whole server was put back")
    forget_run(testbed, 1)
    report = await audit(testbed, repair=False, unknown="adopt")
    assert (report.found, report.left) == ({"orphan": 1}, 0), report.findings
    row = testbed.store.runs.get_run(1)
    assert (row.run_uid, row.request_id) == (before.run_uid, before.request_id)
    for name in ("crawler", "args", "tags", "requested_by", "limits", "poll_minutes", "trigger"):
        assert row.request[name] == before.request[name], name
    await testbed.until(lambda: testbed.store.runs.get_run(1).attempt == 2)
    await testbed.until(lambda: testbed.tasks(1) == {0: "RUNNING"})
    [again] = testbed.store.tasks.list_tasks(1)
    assert (again.task_id, again.cluster_uid) == (task.task_id, task.cluster_uid), (
        "what executes is not started anew"
    )
    await testbed.client.get_workflow_handle(
        testbed.store.runs.get_run(1).owner_workflow_id
    ).signal("stop")
    await ended(testbed, 1, "FAILED")
    assert testbed.cluster.alive() == []
    await settled(testbed)


@pytest.mark.parametrize("counted", [5, 0])
async def test_tasks_of_which_nothing_is_left_are_lost_and_said_to_be(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch, counted: int
) -> None:
    """Two are executing, one has ended meanwhile, two were queued: their arguments were only in the
    database.

    If the workflow counted its tasks between the loss and the audit, it found none.
    """
    real = TemporalDirectory.record
    monkeypatch.setattr(
        TemporalDirectory, "record", lambda *given: replace(real(*given), tasks=counted)
    )
    testbed.cluster.behaviour = ENDLESS
    tasks = [{"args": {"shelf": str(n)}} for n in range(5)]
    handle = await running(testbed, {"crawler": "books", "tasks": tasks, "max_parallel_tasks": 3})
    await listed(testbed, 1)
    await testbed.until(
        lambda: (
            sorted(testbed.tasks(1).values())
            == ["QUEUED", "QUEUED", "RUNNING", "RUNNING", "RUNNING"]
        )
    )
    forget_run(testbed, 1)
    testbed.cluster.end_now(1, 0, end=End(exit_code=1, reason="Error"))
    await audit(testbed, unknown="adopt")
    await testbed.until(
        lambda: testbed.tasks(1) == {0: "FAILED", 1: "RUNNING", 2: "RUNNING", 3: "LOST", 4: "LOST"}
    )
    rows = testbed.store.tasks.list_tasks(1)
    assert [row.args.get("shelf") for row in rows if row.task_index < 3] == ["0", "1", "2"]
    assert all("was restored from a copy" in row.cause for row in rows if row.task_index > 2)
    for index in (1, 2):
        testbed.cluster.end_now(1, index, end=FINISHED)
    result = await testbed.ended(handle)
    assert (result.status, result.outcome) == ("FAILED", "partial")
    await ended(testbed, 1, "FAILED")


async def test_a_number_that_another_run_has_by_now_is_told(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = ENDLESS
    handle = await running(testbed, REQUEST)
    await listed(testbed, 1)
    forget_run(testbed, 1)
    write(testbed, "DELETE FROM sqlite_sequence")
    testbed.store.initiation.reserve_run(RunRequest(crawler="news"), "another")
    assert testbed.store.runs.get_run(1).request_id == "another", "the counter went back as well"
    report = await audit(testbed, repair=False, unknown="adopt")
    words = {f.repair for f in report.findings if f.kind in ("orphan", "no_row")}
    assert all("belongs to another run now" in str(text) for text in words), report.findings
    assert (1, 0, 1) in testbed.cluster.alive()
    await audit(testbed, repair=False, unknown="end")
    assert testbed.cluster.alive() == []
    await handle.describe()


async def test_a_request_that_is_sent_again_gets_a_crawl_of_its_own_and_its_stop_ends_no_other(
    testbed: WorkflowHarness,
) -> None:
    """The id of a request comes again, and with it the id of a workflow that still works for the
    lost run.
    """
    testbed.cluster.behaviour = ENDLESS
    directory = testbed.parts.directory
    lost = await reserved(testbed)
    await testbed.until(lambda: testbed.tasks(lost.run_id) == {0: "RUNNING"})
    await listed(testbed, lost.run_id)
    forget_run(testbed, lost.run_id)
    again = await reserved(testbed)
    assert (again.request_id, again.run_uid) != (lost.request_id, lost.run_uid)
    await testbed.until(lambda: testbed.tasks(again.run_id) == {0: "RUNNING"})
    assert testbed.cluster.alive() == [(lost.run_id, 0, 1), (again.run_id, 0, 1)]
    row = testbed.store.runs.get_run(again.run_id)
    assert row.owner_workflow_id == f"crawl/books/order/{again.run_uid[:8]}"
    stop = StopRequest("s1", "ada")
    for one in workflow_ids(row)[::-1]:
        await asyncio.to_thread(directory.stop, one, stop, run_uid=uid_there(row, one))
    await ended(testbed, again.run_id, "FAILED")
    assert testbed.cluster.alive() == [(lost.run_id, 0, 1)], (
        "the crawl of the lost run is another one's"
    )
    await testbed.client.get_workflow_handle("crawl/books/order").terminate("end of test")


async def test_a_manager_that_is_started_again_gets_a_workflow_of_its_own(
    testbed: WorkflowHarness,
) -> None:
    """The workflow of the lost row rests until it is woken; then it notices this, and ends."""
    testbed.cluster.behaviour = ENDLESS
    m = manager_testbed(testbed, source=[quick(n) for n in range(3)], window=1)
    async with m.user_code():
        former = await m.start()
        await testbed.until(lambda: m.row().counts.by_state["started"] == 1)
        lost = m.runs()[0]
        await listed(testbed, lost.run_id)
        await testbed.until(lambda: testbed.tasks(lost.run_id) == {0: "RUNNING"})
        forget_run(testbed, lost.run_id)
        tables = ("manager_item", "manager_addition", "manager_log", "manager")
        write(testbed, *(f"DELETE FROM {table} WHERE manager_id = 1" for table in tables))
        row = m.reserve()
        own = manager_workflow_id(row.name, row.flow_id)
        await asyncio.to_thread(
            testbed.parts.directory.begin_for, ManagerOrder(row.manager_id), own
        )
        for _ in range(600):
            if (await former.describe()).status is WorkflowExecutionStatus.FAILED:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("the former workflow goes on without a row")
        await audit(testbed)
        await testbed.until(lambda: m.row(row.manager_id).counts.by_state["started"] == 1)
        assert (lost.run_id, 0, 1) in testbed.cluster.alive(), "nobody ends what no row knows"
        await testbed.client.get_workflow_handle(own).signal("force_stop")
        await testbed.until(lambda: m.row(row.manager_id).status.terminal)
        await testbed.client.get_workflow_handle("crawl/quick/manager/1/1").terminate("end of test")


async def reserved(testbed: WorkflowHarness) -> Any:
    """Start a run as the gateway does, twice: the response to the first start was lost."""
    request = RunRequest(crawler="books", poll_minutes=[0.02], requested_by="ada")
    row, _ = testbed.store.initiation.reserve_run(request, "order")
    for _ in range(2):
        await asyncio.to_thread(
            testbed.parts.directory.begin,
            begin_request(row),
            next_workflow_id(row),
            row.run_uid,
            repair=True,
        )
    return row


async def test_what_says_nothing_is_left_alone_and_the_words_say_so(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = ENDLESS
    ghost(testbed, 99)
    report = await audit(testbed, unknown="adopt")
    assert (report.found, report.repaired) == ({"orphan": 1}, {})
    assert "neither a workflow nor the cluster has its request" in (report.findings[0].repair or "")
    assert testbed.cluster.alive() == [(99, 0, 1)]
    assert testbed.store.runs.get_run(99) is None
