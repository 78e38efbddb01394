"""Temporal's UI shows a summary of each workflow that we start, and its details."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, ScheduleUpdate, WorkflowHandle

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.due_ids import due_request_id, due_workflow_id, temporal_schedule_id
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.features.graphs.domain.commands import GraphOrder
from crawler_lifecycle.features.managers.domain.manager import ManagerOrder
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from crawler_lifecycle.features.schedules.ports import DueOrder
from crawler_lifecycle.features.schedules.temporal import ScheduleKeeper
from crawler_lifecycle.features.webhooks.domain.definition import webhook_workflow_id
from crawler_lifecycle.features.webhooks.ports import WebhookOrder
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.temporal.audit_schedule import keep_audit_schedule
from crawler_lifecycle.temporal.client import Workflows
from tests.contracts.store.graphing import step
from tests.support.fakes.cluster import Behaviour
from tests.support.graphing import graph_testbed
from tests.support.testbed import WorkflowHarness

pytestmark = pytest.mark.asyncio(loop_scope="session")

AT = datetime(2026, 11, 22, 1, 30, tzinfo=UTC)
RUN = RunRef(7, "0b5c1a")
DUE_RUN = names.workflow_id("books", due_request_id("nightly", AT))


async def summary(client: Client, workflow_id: str) -> str | None:
    """Return the summary that Temporal has; the workflow is ended, because no worker is running."""
    handle = client.get_workflow_handle(workflow_id)
    found = await (await handle.describe()).static_summary()
    await handle.terminate("end of test")
    return found


async def details(handle: WorkflowHandle[Any, Any]) -> str:
    """Return what Temporal's UI shows as the current details."""
    found = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    assert isinstance(found, WorkflowMetadata)
    return found.current_details


async def fired(client: Client, schedule_id: str) -> str:
    """Trigger a Temporal Schedule. Returns the id of the workflow that it starts."""
    schedule = client.get_schedule_handle(schedule_id)
    await schedule.trigger()
    while True:
        for one in (await schedule.describe()).info.recent_actions:
            return one.action.workflow_id
        await asyncio.sleep(0.05)


async def test_each_workflow_that_our_client_starts_has_one(
    real_testbed_without_workers: WorkflowHarness,
) -> None:
    client = real_testbed_without_workers.client
    workflows = Workflows(client)
    request = RunRequest(crawler="books", run_id=7)
    starts = {
        DUE_RUN: workflows.start(request, DUE_RUN, "uid"),
        "crawl/books/direct": workflows.start(
            RunRequest(crawler="books", args={"shelf": "secret"}), "crawl/books/direct", "uid"
        ),
        "manager/shops/f1": workflows.start_for(ManagerOrder(7), "manager/shops/f1"),
        "graph/catalogue": workflows.start_for(GraphOrder(7), "graph/catalogue"),
        due_workflow_id("nightly", AT): workflows.start_for(
            DueOrder("nightly", AT), due_workflow_id("nightly", AT)
        ),
        webhook_workflow_id("portal"): workflows.start_for(
            WebhookOrder("portal"), webhook_workflow_id("portal"), wake=True
        ),
        "crawl-audit/tell": workflows.audit(repair=False, wait_s=0.01),
        names.export_workflow_id(RUN, 3): workflows.export_again(Fence(7, 3, "chain", RUN.uid)),
        names.deletion_workflow_id(RUN): workflows.delete_run(RUN),
        names.event_workflow_id("managers/9-uid/1/manager.ended"): workflows.deliver_event(
            "managers/9-uid/1/manager.ended"
        ),
    }
    for start in starts.values():
        await start
    assert [await summary(client, workflow_id) for workflow_id in starts] == [
        "run 7 · books · schedule nightly",
        "books",
        "manager shops · flow f1",
        "graph catalogue",
        "schedule nightly · due 2026-11-22T01:30:00Z",
        "webhook portal",
        "audit · tell",
        "run 7 · export of attempt 3",
        "run 7 · deletion",
        "manager 9 · event of its end",
    ]


async def test_the_longest_id_is_accepted(real_testbed_without_workers: WorkflowHarness) -> None:
    client = real_testbed_without_workers.client
    workflow_id = names.graph_workflow_id("\U0001f577" * 200)
    await Workflows(client).start_for(GraphOrder(7), workflow_id)
    assert str(await summary(client, workflow_id)).startswith("graph \U0001f577")


async def test_workflows_of_temporal_schedules_have_one(
    real_testbed_without_workers: WorkflowHarness,
) -> None:
    """This includes schedules that an earlier build made without one, and is not reported."""
    client = real_testbed_without_workers.client
    schedules = real_testbed_without_workers.store.schedules
    spec = ScheduleSpec(run={"crawler": "books"}, every_s=86400)
    schedules.put("daily", spec.document(), "ann")
    keeper = ScheduleKeeper(schedules, Workflows(client))
    await keeper.keep("daily")
    handle = client.get_schedule_handle(temporal_schedule_id("daily"))

    def without_summary(given: Any) -> ScheduleUpdate:
        given.description.schedule.action.static_summary = None
        return ScheduleUpdate(given.description.schedule)

    await handle.update(without_summary)
    assert not (await action(client, handle.id)).static_summary.data
    await keeper.keep("daily")
    assert schedules.get("daily").trouble is None
    assert await summary(client, await fired(client, handle.id)) == "schedule daily"
    written = (await handle.describe()).info.last_updated_at
    await keeper.keep("daily")
    assert (await handle.describe()).info.last_updated_at == written
    await handle.delete()

    await keep_audit_schedule(client, 86400, repair=True)
    workflow_id = await fired(client, names.AUDIT_SCHEDULE)
    assert await summary(client, workflow_id) == "audit · schedule"
    await keep_audit_schedule(client, 0, repair=True)


async def action(client: Client, schedule_id: str) -> Any:
    return (await client.get_schedule_handle(schedule_id).describe()).schedule.action


async def test_a_call_of_functions_in_its_own_workflow_has_one(
    real_testbed: WorkflowHarness,
) -> None:
    g = graph_testbed(real_testbed)
    g.functions.held = {"long": threading.Event()}
    async with g.working():
        handle = await g.start([step("long", timeout_s=600)])
        await real_testbed.until(lambda: g.functions.calls["long"])
        call = real_testbed.client.get_workflow_handle(names.graph_batch_workflow_id("nightly", 1))
        assert await (await call.describe()).static_summary() == "graph nightly · call 1"
        assert await details(call) == "call 1 of graph/nightly, pool default"
        g.functions.held["long"].set()
        await g.ended(handle)


async def test_details_show_the_state(real_testbed: WorkflowHarness) -> None:
    real_testbed.cluster.behaviour = Behaviour(executes=None)
    request = {"crawler": "books", "poll_minutes": [0.02], "limits": {"start_check_s": 0.1}}
    run = await real_testbed.start(request)
    await real_testbed.snapshot_where(run, lambda snapshot: snapshot.polls >= 1)
    assert (await details(run)).startswith("### Run 1: books, attempt 1\n- **PROCESSING**")
    await run.signal(names.SIGNAL_FORCE_STOP)
    await run.result()
    await Workflows(real_testbed.client).audit(repair=False, wait_s=60)
    audit = real_testbed.client.get_workflow_handle("crawl-audit/tell")
    assert (await details(audit)).startswith("close audit, since ")
