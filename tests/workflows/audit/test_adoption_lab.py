"""A database that was put back: what has no row waits, and a person's word takes it up again."""

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
from tests.support.lab import Lab
from tests.support.managing import manager_lab, quick
from tests.workflows.audit.test_audit_lab import (
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


def known(lab: Lab, run_id: int) -> Any:
    row = lab.store.runs.get_run(run_id)
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
    lab: Lab, tmp_path: Path
) -> None:
    lab.cluster.behaviour = ENDLESS
    lab.cluster.folders[1, 0] = tmp_path
    handle = await running(lab, REQUEST)
    await listed(lab, 1)
    before, [task] = known(lab, 1), lab.store.tasks.list_tasks(1)
    forget_run(lab, 1)
    for _ in range(2):
        report = await audit(lab)
        assert (report.found, report.repaired) == ({"orphan": 1, "no_row": 1}, {})
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING, (
        "it waits for its row"
    )
    report = await audit(lab, repair=False, unknown="adopt")
    assert report.left == 0, report.findings
    assert known(lab, 1) == before
    [again] = lab.store.tasks.list_tasks(1)
    assert (again.task_id, again.cluster_uid, again.attempt) == (
        task.task_id,
        task.cluster_uid,
        task.attempt,
    )
    await lab.until(lambda: lab.tasks(1) == {0: "RUNNING"})
    assert (await audit(lab, unknown="adopt")).found == {}
    lab.cluster.end_now(1, 0, end=FINISHED)
    result = await lab.ended(handle)
    assert (result.run_id, result.run_uid, result.status, result.attempt) == (
        1,
        before[0],
        "COMPLETED",
        1,
    )
    await ended(lab, 1, "COMPLETED")
    [key] = lab.outside.stored
    assert key.endswith("/1/supporting-files.zip")
    assert key.startswith("1")
    await settled(lab)


@pytest.mark.parametrize("waits_for", ["its next try", "its next poll"])
async def test_it_is_polled_at_at_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    """Not at the next try of the step that found no row, nor at the next poll that was planned."""
    late = RetryPolicy(initial_interval=timedelta(hours=1))
    for name in ("get_active_running_tasks", "get_history_statuses_to_sync"):
        monkeypatch.setitem(policies.POLICIES, name, replace(policies.POLICIES[name], retry=late))
    lab.cluster.behaviour = ENDLESS
    tries = waits_for == "its next try"
    gaps = [0.02] if tries else [0.02, 60]
    handle = await running(lab, {**REQUEST, "tasks": [{}] * 3, "poll_minutes": gaps})
    await listed(lab, 1)
    await lab.until(lambda: lab.tasks(1) == dict.fromkeys(range(3), "RUNNING"))
    forget_run(lab, 1)
    if tries:
        await put_off(handle)
    polls = (await lab.snapshot_where(handle, lambda s: True)).polls
    assert (await audit(lab, unknown="adopt")).left == 0
    await lab.snapshot_where(handle, lambda s: s.polls > polls)
    await lab.until(lambda: lab.tasks(1) == dict.fromkeys(range(3), "RUNNING"))
    history = await handle.fetch_history()
    signals = [
        e for e in history.events if e.HasField("workflow_execution_signaled_event_attributes")
    ]
    assert len(signals) == 1, "once, however many tasks the run has"
    await handle.signal("stop")
    await ended(lab, 1, "FAILED")
    await settled(lab)


async def put_off(handle: WorkflowHandle[Any, Any]) -> None:
    """Return when a step of the run waits for its next try."""
    for _ in range(1200):
        described = await handle.describe()
        if any(step.attempt > 1 for step in described.raw_description.pending_activities):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("no step has failed, not within a minute")


async def test_a_run_whose_workflow_is_gone_too_is_taken_over_from_what_lies_on_the_cluster(
    lab: Lab,
) -> None:
    lab.cluster.behaviour = ENDLESS
    handle = await running(lab, REQUEST)
    await listed(lab, 1)
    before, [task] = lab.store.runs.get_run(1), lab.store.tasks.list_tasks(1)
    await handle.terminate("the whole server was put back")
    forget_run(lab, 1)
    report = await audit(lab, repair=False, unknown="adopt")
    assert (report.found, report.left) == ({"orphan": 1}, 0), report.findings
    row = lab.store.runs.get_run(1)
    assert (row.run_uid, row.request_id) == (before.run_uid, before.request_id)
    for name in ("crawler", "args", "tags", "requested_by", "limits", "poll_minutes", "trigger"):
        assert row.request[name] == before.request[name], name
    await lab.until(lambda: lab.store.runs.get_run(1).attempt == 2)
    await lab.until(lambda: lab.tasks(1) == {0: "RUNNING"})
    [again] = lab.store.tasks.list_tasks(1)
    assert (again.task_id, again.cluster_uid) == (task.task_id, task.cluster_uid), (
        "what executes is not started anew"
    )
    await lab.client.get_workflow_handle(lab.store.runs.get_run(1).owner_workflow_id).signal("stop")
    await ended(lab, 1, "FAILED")
    assert lab.cluster.alive() == []
    await settled(lab)


@pytest.mark.parametrize("counted", [5, 0])
async def test_tasks_of_which_nothing_is_left_are_lost_and_said_to_be(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, counted: int
) -> None:
    """Two execute, one has ended meanwhile, two were queued: their arguments stood in the database
    alone.

    The workflow may have counted its tasks between the loss and the audit: it found none.
    """
    real = TemporalDirectory.record
    monkeypatch.setattr(
        TemporalDirectory, "record", lambda *given: replace(real(*given), tasks=counted)
    )
    lab.cluster.behaviour = ENDLESS
    tasks = [{"args": {"shelf": str(n)}} for n in range(5)]
    handle = await running(lab, {"crawler": "books", "tasks": tasks, "max_parallel_tasks": 3})
    await listed(lab, 1)
    await lab.until(
        lambda: (
            sorted(lab.tasks(1).values()) == ["QUEUED", "QUEUED", "RUNNING", "RUNNING", "RUNNING"]
        )
    )
    forget_run(lab, 1)
    lab.cluster.end_now(1, 0, end=End(exit_code=1, reason="Error"))
    await audit(lab, unknown="adopt")
    await lab.until(
        lambda: lab.tasks(1) == {0: "FAILED", 1: "RUNNING", 2: "RUNNING", 3: "LOST", 4: "LOST"}
    )
    rows = lab.store.tasks.list_tasks(1)
    assert [row.args.get("shelf") for row in rows if row.task_index < 3] == ["0", "1", "2"]
    assert all("was restored from a copy" in row.cause for row in rows if row.task_index > 2)
    for index in (1, 2):
        lab.cluster.end_now(1, index, end=FINISHED)
    result = await lab.ended(handle)
    assert (result.status, result.outcome) == ("FAILED", "partial")
    await ended(lab, 1, "FAILED")


async def test_a_number_that_another_run_has_by_now_is_told(lab: Lab) -> None:
    lab.cluster.behaviour = ENDLESS
    handle = await running(lab, REQUEST)
    await listed(lab, 1)
    forget_run(lab, 1)
    write(lab, "DELETE FROM sqlite_sequence")
    lab.store.initiation.reserve_run(RunRequest(crawler="news"), "another")
    assert lab.store.runs.get_run(1).request_id == "another", "the counter went back as well"
    report = await audit(lab, repair=False, unknown="adopt")
    words = {f.repair for f in report.findings if f.kind in ("orphan", "no_row")}
    assert all("belongs to another run now" in str(text) for text in words), report.findings
    assert (1, 0, 1) in lab.cluster.alive()
    await audit(lab, repair=False, unknown="end")
    assert lab.cluster.alive() == []
    await handle.describe()


async def test_a_request_that_is_sent_again_gets_a_crawl_of_its_own_and_its_stop_ends_no_other(
    lab: Lab,
) -> None:
    """The id of a request comes again, and with it the id of a workflow that still works for the
    run that was lost.
    """
    lab.cluster.behaviour = ENDLESS
    directory = lab.parts.directory
    lost = await reserved(lab)
    await lab.until(lambda: lab.tasks(lost.run_id) == {0: "RUNNING"})
    await listed(lab, lost.run_id)
    forget_run(lab, lost.run_id)
    again = await reserved(lab)
    assert (again.request_id, again.run_uid) != (lost.request_id, lost.run_uid)
    await lab.until(lambda: lab.tasks(again.run_id) == {0: "RUNNING"})
    assert lab.cluster.alive() == [(lost.run_id, 0, 1), (again.run_id, 0, 1)]
    row = lab.store.runs.get_run(again.run_id)
    assert row.owner_workflow_id == f"crawl/books/order/{again.run_uid[:8]}"
    stop = StopRequest("s1", "ada")
    for one in workflow_ids(row)[::-1]:
        await asyncio.to_thread(directory.stop, one, stop, run_uid=uid_there(row, one))
    await ended(lab, again.run_id, "FAILED")
    assert lab.cluster.alive() == [(lost.run_id, 0, 1)], (
        "the crawl of the lost run is another one's"
    )
    await lab.client.get_workflow_handle("crawl/books/order").terminate("end of test")


async def test_a_manager_that_is_started_again_gets_a_workflow_of_its_own(lab: Lab) -> None:
    """The one that worked for the row that was lost rests until it is woken; then it sees that, and
    ends.
    """
    lab.cluster.behaviour = ENDLESS
    m = manager_lab(lab, source=[quick(n) for n in range(3)], window=1)
    async with m.user_code():
        former = await m.start()
        await lab.until(lambda: m.row().counts.by_state["started"] == 1)
        lost = m.runs()[0]
        await listed(lab, lost.run_id)
        await lab.until(lambda: lab.tasks(lost.run_id) == {0: "RUNNING"})
        forget_run(lab, lost.run_id)
        tables = ("manager_item", "manager_addition", "manager_log", "manager")
        write(lab, *(f"DELETE FROM {table} WHERE manager_id = 1" for table in tables))
        row = m.reserve()
        own = manager_workflow_id(row.name, row.flow_id)
        await asyncio.to_thread(lab.parts.directory.begin_for, ManagerOrder(row.manager_id), own)
        for _ in range(600):
            if (await former.describe()).status is WorkflowExecutionStatus.FAILED:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("the former workflow goes on without a row")
        await audit(lab)
        await lab.until(lambda: m.row(row.manager_id).counts.by_state["started"] == 1)
        assert (lost.run_id, 0, 1) in lab.cluster.alive(), "nobody ends what no row knows"
        await lab.client.get_workflow_handle(own).signal("force_stop")
        await lab.until(lambda: m.row(row.manager_id).status.terminal)
        await lab.client.get_workflow_handle("crawl/quick/manager/1/1").terminate("end of test")


async def reserved(lab: Lab) -> Any:
    """A run as the gateway starts one, twice: the answer of the first start was lost."""
    request = RunRequest(crawler="books", poll_minutes=[0.02], requested_by="ada")
    row, _ = lab.store.initiation.reserve_run(request, "order")
    for _ in range(2):
        await asyncio.to_thread(
            lab.parts.directory.begin,
            begin_request(row),
            next_workflow_id(row),
            row.run_uid,
            repair=True,
        )
    return row


async def test_what_says_nothing_is_left_alone_and_the_words_say_so(lab: Lab) -> None:
    lab.cluster.behaviour = ENDLESS
    ghost(lab, 99)
    report = await audit(lab, unknown="adopt")
    assert (report.found, report.repaired) == ({"orphan": 1}, {})
    assert "neither a workflow nor the cluster has its request" in (report.findings[0].repair or "")
    assert lab.cluster.alive() == [(99, 0, 1)]
    assert lab.store.runs.get_run(99) is None
