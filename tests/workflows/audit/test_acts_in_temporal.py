"""What people do to our workflows in Temporal's UI is reported with the fix, and a forced stop
still works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice import v1 as api
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError

from crawler_lifecycle.activities.audits import settling
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.compose import build_audit
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.audit import AuditRules
from crawler_lifecycle.domain.run import StopIntent, StopRequest
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.gateway.runs.blocked import BlockedRuns
from crawler_lifecycle.temporal.client import Workflows
from tests.support.fakes.cluster import Behaviour
from tests.support.graphing import graph_testbed
from tests.support.managing import manager_testbed, quick
from tests.support.testbed import WorkflowHarness

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

#: The next poll is far in the future, so any earlier one was triggered.
SLOW: dict[str, Any] = {"crawler": "books", "poll_minutes": [10], "limits": {"start_check_s": 0.1}}
FORCED = StopRequest(request_id="now", requested_by="ada", force=True)


async def executing(testbed: WorkflowHarness, **behaviour: Any) -> WorkflowHandle[Any, Any]:
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None, **behaviour)
    handle = await testbed.start(SLOW)
    await testbed.until(lambda: testbed.store.runs.get_run(1) is not None)
    await testbed.until(
        lambda: (
            testbed.store.runs.get_run(1).waiting_for
            or testbed.store.runs.get_run(1).status == "PROCESSING"
        )
    )
    return handle


async def pause(testbed: WorkflowHarness, workflow_id: str, reason: str = "a migration") -> None:
    order = {
        "workflow_id": workflow_id,
        "identity": "bob",
        "reason": reason,
        "request_id": workflow_id,
    }
    request = api.PauseWorkflowExecutionRequest(namespace=testbed.client.namespace, **order)
    await testbed.client.workflow_service.pause_workflow_execution(request, retry=True)


async def listed(testbed: WorkflowHarness, blocked: BlockedRuns, workflow_id: str) -> str:
    """Return the result of a list that all callers share, once the visibility store has it."""
    for _ in range(300):
        await blocked.once()
        if (words := blocked.listed_workflow(workflow_id)) is not None:
            return words
        await asyncio.sleep(0.1)
    raise AssertionError("it was never listed")


async def closed(testbed: WorkflowHarness, workflow_id: str) -> None:
    """Wait until its export has ended as well, because audits of other tests would find open ones."""
    for _ in range(600):
        if not await Workflows(testbed.client).is_open(workflow_id):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{workflow_id} stays open")


def told(testbed: WorkflowHarness) -> BlockedRuns:
    return BlockedRuns(testbed.store, Workflows(testbed.client), Metrics(), utc_now, every_s=3600)


async def test_a_paused_run_says_so_and_a_forced_stop_ends_it(testbed: WorkflowHarness) -> None:
    handle = await executing(testbed)
    workflows = Workflows(testbed.client)
    await pause(testbed, handle.id)
    words = await told(testbed).of(testbed.store.runs.get_run(1))
    assert words is not None
    assert words.startswith("its workflow is paused in Temporal since ")
    assert (
        "UTC by bob (a migration); unpause it there; its crawl continues, but a stop has to wait: a forced one"
        in words
    )
    assert await listed(testbed, told(testbed), handle.id) == words
    found, _ = await workflows.open_runs()
    assert handle.id in {one.workflow_id for one in found}, "an audit sees it as open"
    state = await workflows.state(handle.id)
    assert (state.open, state.run_uid) == (True, testbed.store.runs.get_run(1).run_uid)
    assert (
        await asyncio.to_thread(
            build_audit(testbed.parts).take_over, testbed.store.audits.open_runs()[0]
        )
        is None
    )

    assert await workflows.stop(handle.id, StopRequest(request_id="plain"))
    await asyncio.sleep(1)
    assert testbed.store.runs.get_run(1).stop is None, "a plain stop waits"
    assert await workflows.stop(handle.id, FORCED)
    assert (await handle.result()).outcome == "cancelled"
    events = [event async for event in handle.fetch_history_events()]
    unpaused = [one.workflow_execution_unpaused_event_attributes.reason for one in events]
    assert [reason for reason in unpaused if reason] == ["forced stop by ada"]


async def test_a_paused_step_is_told_and_a_forced_stop_passes_it(testbed: WorkflowHarness) -> None:
    handle = await executing(testbed, waits=3600.0)
    run = WorkflowExecution(workflow_id=handle.id)
    order = api.PauseActivityRequest(
        namespace=testbed.client.namespace, execution=run, identity="bob", reason="wait"
    )
    order.type = "get_main_job_status"
    for _ in range(300):
        with suppress(RPCError):  # between two steps, nothing of this name exists
            await testbed.client.workflow_service.pause_activity(order, retry=True)
            break
        await asyncio.sleep(0.1)
    words = await told(testbed).of(testbed.store.runs.get_run(1))
    assert words is not None
    assert words.startswith("its step get_main_job_status is paused in Temporal since ")
    assert " UTC by bob (wait); unpause it there" in words
    assert await listed(testbed, told(testbed), handle.id) == words
    await Workflows(testbed.client)._unpause(handle.id, "")
    assert await Workflows(testbed.client).problem(handle.id) is None
    await testbed.client.workflow_service.pause_activity(order, retry=True)
    assert await Workflows(testbed.client).stop(handle.id, FORCED)
    assert (await handle.result()).outcome == "cancelled"


async def test_a_forced_stop_reaches_a_paused_manager_and_its_paused_run(
    testbed: WorkflowHarness,
) -> None:
    managers = manager_testbed(testbed, source=[quick(1)])
    async with managers.user_code():
        await check_parent(testbed, managers.start)


async def test_a_forced_stop_reaches_a_paused_graph_and_its_paused_run(
    testbed: WorkflowHarness,
) -> None:
    graphs = graph_testbed(testbed)
    step = StepSpec(
        "one",
        StepKind.CRAWL,
        {"crawler": "quick", "args": {}, "limits": {"start_check_s": 0.0}},
        (),
    )
    async with graphs.working():
        await check_parent(testbed, lambda: graphs.start([step]))


async def check_parent(
    testbed: WorkflowHarness, start: Callable[[], Awaitable[WorkflowHandle[Any, Any]]]
) -> None:
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await start()
    await testbed.until(
        lambda: any(row.status == "PROCESSING" for row in testbed.store.runs.list_runs())
    )
    [run] = testbed.store.runs.list_runs()
    await pause(testbed, handle.id)
    await pause(testbed, run.owner_workflow_id)
    words = await told(testbed).of_workflow(handle.id, is_open=True)
    assert "its workflow is paused in Temporal" in str(words)
    await Workflows(testbed.client).stop(handle.id, FORCED)
    await handle.result()
    assert testbed.store.runs.get_run(run.run_id).outcome == "cancelled"
    await closed(testbed, run.owner_workflow_id)


async def test_a_terminated_run_is_told_and_taken_over_before_its_next_poll(
    testbed: WorkflowHarness,
) -> None:
    handle = await executing(testbed)
    await testbed.until(lambda: testbed.store.runs.get_run(1).status == "PROCESSING")
    await handle.terminate(reason="by an operator")
    workflows = Workflows(testbed.client)
    for _ in range(300):
        if await workflows.ended_runs() == [1]:
            break
        await asyncio.sleep(0.1)
    testbed.parts.audit = AuditRules()
    audit = build_audit(testbed.parts)
    assert await asyncio.to_thread(audit.take_over_ended) == 1
    words = await listed(testbed, told(testbed), handle.id)
    assert words.startswith("it has no workflow: run 1 (books) is ")
    assert "was terminated: by an operator; an audit starts a new one within a minute" in words
    assert testbed.store.runs.get_run(1).attempt == 1, "somebody may be about to resume it"
    audit.clock = lambda: utc_now() + timedelta(seconds=31)
    assert await asyncio.to_thread(audit.take_over_ended) == 1
    await testbed.until(lambda: testbed.store.runs.get_run(1).attempt == 2)
    own = names.attempt_workflow_id("books", testbed.store.runs.get_run(1).request_id, 2)
    assert await asyncio.to_thread(audit.take_over_ended) == 0
    assert await workflows.stop(own, FORCED)
    await closed(testbed, own)
    assert testbed.tasks(1) == {0: "CANCELLED"}


async def test_a_forced_stop_ends_the_crawl_of_a_run_whose_workflow_cannot_act(
    idle_testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker takes its next step; for the crawl, a bug in a build or an outage of Temporal is
    the same.
    """
    monkeypatch.setattr(settling, "STOP_S", 0.2)
    testbed = idle_testbed
    async with testbed.working():
        handle = await executing(testbed)
        await testbed.until(lambda: testbed.store.runs.get_run(1).status == "PROCESSING")
    audit = build_audit(testbed.parts)
    stops = [StopIntent(utc_now(), False, "ada"), StopIntent(utc_now(), True, "ada")]
    for number, (stop, left) in enumerate(zip(stops, (1, 0), strict=True)):
        testbed.store.stops.record_stop(1, stop, str(number))
        await asyncio.to_thread(audit.end_forced)
        assert len(testbed.cluster.alive()) == 1, "the workflow has some time to act on it"
        audit.clock = lambda: utc_now() + timedelta(seconds=31)
        await asyncio.to_thread(audit.end_forced)
        assert len(testbed.cluster.alive()) == left
        audit.clock = utc_now
    assert testbed.store.runs.get_run(1).status == "STOPPING", "the workflow records the end"
    async with testbed.working():
        await Workflows(testbed.client).stop(
            handle.id, StopRequest(request_id="1", requested_by="ada", force=True)
        )
        await testbed.until(lambda: testbed.store.runs.get_run(1).outcome == "cancelled")
        await closed(testbed, handle.id)
    assert testbed.tasks(1) == {0: "CANCELLED"}
    assert testbed.corrections(1) == []


async def test_a_reset_run_continues_with_its_task(testbed: WorkflowHarness) -> None:
    handle = await executing(testbed)
    await testbed.until(lambda: testbed.store.runs.get_run(1).status == "PROCESSING")
    started = [
        event.event_id async for event in handle.fetch_history_events() if event.event_type == 6
    ]
    order = api.ResetWorkflowExecutionRequest(
        namespace=testbed.client.namespace, request_id="again", reason="a bad day"
    )
    order.workflow_execution.workflow_id = handle.id
    order.workflow_task_finish_event_id = started[0] + 1
    await testbed.client.workflow_service.reset_workflow_execution(order, retry=True)
    polled_at = testbed.store.runs.get_run(1).verified_at
    await Workflows(testbed.client).poll_now(handle.id)
    await testbed.until(lambda: testbed.store.runs.get_run(1).verified_at > polled_at)
    assert (testbed.store.runs.get_run(1).attempt, testbed.tasks(1)) == (1, {0: "RUNNING"})
    assert await told(testbed).of(testbed.store.runs.get_run(1)) is None
    await Workflows(testbed.client).stop(handle.id, FORCED)
    await closed(testbed, handle.id)
    assert testbed.store.runs.get_run(1).outcome == "cancelled"
