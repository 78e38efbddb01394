"""What people do to our workflows in Temporal's UI: it is told with what to do, and a forced stop
acts all the same.
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
from tests.support.graphing import graph_lab
from tests.support.lab import Lab
from tests.support.managing import manager_lab, quick

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

#: The next poll is far away, so that whatever comes sooner was brought about.
SLOW: dict[str, Any] = {"crawler": "books", "poll_minutes": [10], "limits": {"start_check_s": 0.1}}
FORCED = StopRequest(request_id="now", requested_by="ada", force=True)


async def executing(lab: Lab, **behaviour: Any) -> WorkflowHandle[Any, Any]:
    lab.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None, **behaviour)
    handle = await lab.start(SLOW)
    await lab.until(lambda: lab.store.runs.get_run(1) is not None)
    await lab.until(
        lambda: (
            lab.store.runs.get_run(1).waiting_for
            or lab.store.runs.get_run(1).status == "PROCESSING"
        )
    )
    return handle


async def pause(lab: Lab, workflow_id: str, reason: str = "a migration") -> None:
    order = {
        "workflow_id": workflow_id,
        "identity": "bob",
        "reason": reason,
        "request_id": workflow_id,
    }
    request = api.PauseWorkflowExecutionRequest(namespace=lab.client.namespace, **order)
    await lab.client.workflow_service.pause_workflow_execution(request, retry=True)


async def listed(lab: Lab, blocked: BlockedRuns, workflow_id: str) -> str:
    """What a list says, which asks for nobody alone, once the visibility store knows of it."""
    for _ in range(300):
        await blocked.once()
        if (words := blocked.listed_workflow(workflow_id)) is not None:
            return words
        await asyncio.sleep(0.1)
    raise AssertionError("it was never listed")


async def closed(lab: Lab, workflow_id: str) -> None:
    """Its export has ended as well: what stays open would be found by the audits of other tests."""
    for _ in range(600):
        if not await Workflows(lab.client).is_open(workflow_id):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{workflow_id} stays open")


def told(lab: Lab) -> BlockedRuns:
    return BlockedRuns(lab.store, Workflows(lab.client), Metrics(), utc_now, every_s=3600)


async def test_a_paused_run_says_so_and_a_forced_stop_ends_it(lab: Lab) -> None:
    handle = await executing(lab)
    workflows = Workflows(lab.client)
    await pause(lab, handle.id)
    words = await told(lab).of(lab.store.runs.get_run(1))
    assert words is not None
    assert words.startswith("its workflow is paused in Temporal since ")
    assert (
        "UTC by bob (a migration); unpause it there; its crawl continues, but a stop has to wait: a forced one"
        in words
    )
    assert await listed(lab, told(lab), handle.id) == words
    found, _ = await workflows.open_runs()
    assert handle.id in {one.workflow_id for one in found}, "an audit sees it as open"
    state = await workflows.state(handle.id)
    assert (state.open, state.run_uid) == (True, lab.store.runs.get_run(1).run_uid)
    assert (
        await asyncio.to_thread(build_audit(lab.parts).take_over, lab.store.audits.open_runs()[0])
        is None
    )

    assert await workflows.stop(handle.id, StopRequest(request_id="plain"))
    await asyncio.sleep(1)
    assert lab.store.runs.get_run(1).stop is None, "a plain stop waits"
    assert await workflows.stop(handle.id, FORCED)
    assert (await handle.result()).outcome == "cancelled"
    events = [event async for event in handle.fetch_history_events()]
    unpaused = [one.workflow_execution_unpaused_event_attributes.reason for one in events]
    assert [reason for reason in unpaused if reason] == ["forced stop by ada"]


async def test_a_paused_step_is_told_and_a_forced_stop_passes_it(lab: Lab) -> None:
    handle = await executing(lab, waits=3600.0)
    run = WorkflowExecution(workflow_id=handle.id)
    order = api.PauseActivityRequest(
        namespace=lab.client.namespace, execution=run, identity="bob", reason="wait"
    )
    order.type = "get_main_job_status"
    for _ in range(300):
        with suppress(RPCError):  # between two steps nothing of this name is there
            await lab.client.workflow_service.pause_activity(order, retry=True)
            break
        await asyncio.sleep(0.1)
    words = await told(lab).of(lab.store.runs.get_run(1))
    assert words is not None
    assert words.startswith("its step get_main_job_status is paused in Temporal since ")
    assert " UTC by bob (wait); unpause it there" in words
    assert await listed(lab, told(lab), handle.id) == words
    await Workflows(lab.client)._unpause(handle.id, "")
    assert await Workflows(lab.client).problem(handle.id) is None
    await lab.client.workflow_service.pause_activity(order, retry=True)
    assert await Workflows(lab.client).stop(handle.id, FORCED)
    assert (await handle.result()).outcome == "cancelled"


async def test_a_forced_stop_reaches_a_paused_manager_and_its_paused_run(lab: Lab) -> None:
    managers = manager_lab(lab, source=[quick(1)])
    async with managers.user_code():
        await check_parent(lab, managers.start)


async def test_a_forced_stop_reaches_a_paused_graph_and_its_paused_run(lab: Lab) -> None:
    graphs = graph_lab(lab)
    step = StepSpec(
        "one",
        StepKind.CRAWL,
        {"crawler": "quick", "args": {}, "limits": {"start_check_s": 0.0}},
        (),
    )
    async with graphs.working():
        await check_parent(lab, lambda: graphs.start([step]))


async def check_parent(lab: Lab, start: Callable[[], Awaitable[WorkflowHandle[Any, Any]]]) -> None:
    lab.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await start()
    await lab.until(lambda: any(row.status == "PROCESSING" for row in lab.store.runs.list_runs()))
    [run] = lab.store.runs.list_runs()
    await pause(lab, handle.id)
    await pause(lab, run.owner_workflow_id)
    words = await told(lab).of_workflow(handle.id, is_open=True)
    assert "its workflow is paused in Temporal" in str(words)
    await Workflows(lab.client).stop(handle.id, FORCED)
    await handle.result()
    assert lab.store.runs.get_run(run.run_id).outcome == "cancelled"
    await closed(lab, run.owner_workflow_id)


async def test_a_terminated_run_is_told_and_taken_over_before_its_next_poll(lab: Lab) -> None:
    handle = await executing(lab)
    await lab.until(lambda: lab.store.runs.get_run(1).status == "PROCESSING")
    await handle.terminate(reason="by an operator")
    workflows = Workflows(lab.client)
    for _ in range(300):
        if await workflows.ended_runs() == [1]:
            break
        await asyncio.sleep(0.1)
    lab.parts.audit = AuditRules()
    audit = build_audit(lab.parts)
    assert await asyncio.to_thread(audit.take_over_ended) == 1
    words = await listed(lab, told(lab), handle.id)
    assert words.startswith("it has no workflow: run 1 (books) is ")
    assert "was terminated: by an operator; an audit starts a new one within a minute" in words
    assert lab.store.runs.get_run(1).attempt == 1, "somebody may be about to resume it"
    audit.clock = lambda: utc_now() + timedelta(seconds=31)
    assert await asyncio.to_thread(audit.take_over_ended) == 1
    await lab.until(lambda: lab.store.runs.get_run(1).attempt == 2)
    own = names.attempt_workflow_id("books", lab.store.runs.get_run(1).request_id, 2)
    assert await asyncio.to_thread(audit.take_over_ended) == 0
    assert await workflows.stop(own, FORCED)
    await closed(lab, own)
    assert lab.tasks(1) == {0: "CANCELLED"}


async def test_a_forced_stop_ends_the_crawl_of_a_run_whose_workflow_cannot_act(
    idle_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker takes its next step; a bug in a build or an outage of Temporal is the same for the
    crawl.
    """
    monkeypatch.setattr(settling, "STOP_S", 0.2)
    lab = idle_lab
    async with lab.working():
        handle = await executing(lab)
        await lab.until(lambda: lab.store.runs.get_run(1).status == "PROCESSING")
    audit = build_audit(lab.parts)
    stops = [StopIntent(utc_now(), False, "ada"), StopIntent(utc_now(), True, "ada")]
    for number, (stop, left) in enumerate(zip(stops, (1, 0), strict=True)):
        lab.store.stops.record_stop(1, stop, str(number))
        await asyncio.to_thread(audit.end_forced)
        assert len(lab.cluster.alive()) == 1, "the workflow has some time to act on it"
        audit.clock = lambda: utc_now() + timedelta(seconds=31)
        await asyncio.to_thread(audit.end_forced)
        assert len(lab.cluster.alive()) == left
        audit.clock = utc_now
    assert lab.store.runs.get_run(1).status == "STOPPING", "the workflow records the end"
    async with lab.working():
        await Workflows(lab.client).stop(
            handle.id, StopRequest(request_id="1", requested_by="ada", force=True)
        )
        await lab.until(lambda: lab.store.runs.get_run(1).outcome == "cancelled")
        await closed(lab, handle.id)
    assert lab.tasks(1) == {0: "CANCELLED"}
    assert lab.corrections(1) == []


async def test_a_reset_run_continues_with_its_task(lab: Lab) -> None:
    handle = await executing(lab)
    await lab.until(lambda: lab.store.runs.get_run(1).status == "PROCESSING")
    started = [
        event.event_id async for event in handle.fetch_history_events() if event.event_type == 6
    ]
    order = api.ResetWorkflowExecutionRequest(
        namespace=lab.client.namespace, request_id="again", reason="a bad day"
    )
    order.workflow_execution.workflow_id = handle.id
    order.workflow_task_finish_event_id = started[0] + 1
    await lab.client.workflow_service.reset_workflow_execution(order, retry=True)
    polled_at = lab.store.runs.get_run(1).verified_at
    await Workflows(lab.client).poll_now(handle.id)
    await lab.until(lambda: lab.store.runs.get_run(1).verified_at > polled_at)
    assert (lab.store.runs.get_run(1).attempt, lab.tasks(1)) == (1, {0: "RUNNING"})
    assert await told(lab).of(lab.store.runs.get_run(1)) is None
    await Workflows(lab.client).stop(handle.id, FORCED)
    await closed(lab, handle.id)
    assert lab.store.runs.get_run(1).outcome == "cancelled"
