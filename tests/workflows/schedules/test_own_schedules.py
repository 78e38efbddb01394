"""What a scheduler service gets that uses Temporal's own schedules, as docs/temporal.md says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from crawler_lifecycle.cli.stack import temporal_server
from crawler_lifecycle.domain import names
from tests.support.fakes.cluster import Behaviour
from tests.support.testbed import WorkflowHarness

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: The input that docs/temporal.md shows, with options that make a test quick.
REQUEST = {"crawler": "books", "trigger": "scheduled", "requested_by": "nightly"}
QUICK = {"poll_minutes": [0.002], "limits": {"start_check_s": 0.1}}


async def temporal(testbed: WorkflowHarness, *words: str) -> str:
    address = testbed.client.service_client.config.target_host
    command = [
        temporal_server.executable(),
        *words,
        "--address",
        address,
        "--namespace",
        testbed.client.namespace,
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def triggered(testbed: WorkflowHarness, schedule: str, runs: int) -> None:
    """Trigger, and wait until there is this number of runs."""
    await asyncio.sleep(1.1)  # two triggers within a second have one id
    await temporal(
        testbed, "schedule", "trigger", "--schedule-id", schedule, "--overlap-policy", "CancelOther"
    )
    await testbed.until(lambda: len(testbed.store.runs.list_runs()) == runs)


@pytest.mark.troubles
async def test_a_schedule_of_temporal_itself(real_testbed: WorkflowHarness) -> None:
    testbed = real_testbed
    testbed.cluster.behaviour = Behaviour(executes=None)
    create = (
        "schedule",
        "create",
        "--schedule-id",
        "own",
        "--cron",
        "0 2 1 1 *",
        "--time-zone",
        "Europe/Berlin",
    )
    start = (
        "--type",
        names.LIFECYCLE_WORKFLOW,
        "--task-queue",
        names.QUEUE_MAIN,
        "--workflow-id",
        "own",
    )
    given = (
        "--input",
        json.dumps({**REQUEST, **QUICK}),
        "--overlap-policy",
        "CancelOther",
        "--catchup-window",
        "10m",
    )
    await temporal(testbed, *create, *start, *given)
    await triggered(testbed, "own", 1)
    [first] = testbed.store.runs.list_runs()
    await testbed.until(lambda: testbed.store.runs.get_run(first.run_id).status == "PROCESSING")
    assert (first.trigger, first.request.get("due_at"), first.request["requested_by"]) == (
        "scheduled",
        None,
        "nightly",
    )
    assert str(first.owner_workflow_id).startswith("own-2")
    assert first.request_id == first.owner_run_id, "a run of its own at each due time"
    assert testbed.scheduler.calls[0].due_at is None

    await triggered(testbed, "own", 2)
    second, before = (
        testbed.store.runs.get_run(run.run_id) for run in testbed.store.runs.list_runs()
    )
    assert (before.status, before.outcome) == ("FAILED", "cancelled"), (
        "CancelOther is a graceful stop"
    )
    assert before.ended_at <= second.created_at
    assert testbed.store.schedules.page() == [], "ours know nothing of it"
    await temporal(testbed, "schedule", "delete", "--schedule-id", "own")
    handle = testbed.client.get_workflow_handle(str(second.owner_workflow_id))
    await handle.signal("stop")
    await handle.result()


@pytest.mark.troubles
async def test_an_input_with_a_request_id_begins_once(real_testbed: WorkflowHarness) -> None:
    """A schedule's input is the same at each due time."""
    testbed = real_testbed
    request: dict[str, Any] = {**REQUEST, **QUICK, "request_id": "mine"}
    create = ("schedule", "create", "--schedule-id", "fixed", "--cron", "0 2 1 1 *")
    start = (
        "--type",
        names.LIFECYCLE_WORKFLOW,
        "--task-queue",
        names.QUEUE_MAIN,
        "--workflow-id",
        "fixed",
    )
    await temporal(
        testbed, *create, *start, "--input", json.dumps(request), "--overlap-policy", "AllowAll"
    )
    await triggered(testbed, "fixed", 1)
    await testbed.until(lambda: testbed.store.runs.list_runs()[0].status == "COMPLETED")
    await asyncio.sleep(1.1)
    await temporal(
        testbed, "schedule", "trigger", "--schedule-id", "fixed", "--overlap-policy", "AllowAll"
    )

    async def closed() -> list[Any]:
        query = "WorkflowId STARTS_WITH 'fixed-'"
        listed = json.loads(
            await temporal(testbed, "workflow", "list", "--query", query, "-o", "json")
        )
        return [one for one in listed if one["status"] != "WORKFLOW_EXECUTION_STATUS_RUNNING"]

    for _ in range(1000):
        both = await closed()
        if len(both) == 2:
            break
        await asyncio.sleep(0.1)
    assert sorted(one["status"].rpartition("_")[2] for one in both) == ["COMPLETED", "FAILED"]
    assert len(testbed.store.runs.list_runs()) == 1
    await temporal(testbed, "schedule", "delete", "--schedule-id", "fixed")
