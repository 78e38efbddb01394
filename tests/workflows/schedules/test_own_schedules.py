"""What a scheduler service gets that uses Temporal's own schedules, as docs/temporal.md says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from crawler_lifecycle.cli.stack import temporal_server
from crawler_lifecycle.domain import names
from tests.support.fakes.cluster import Behaviour
from tests.support.lab import Lab

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: The input that docs/temporal.md shows, and what makes a test quick.
REQUEST = {"crawler": "books", "trigger": "scheduled", "requested_by": "nightly"}
QUICK = {"poll_minutes": [0.002], "limits": {"start_check_s": 0.1}}


async def temporal(lab: Lab, *words: str) -> str:
    address = lab.client.service_client.config.target_host
    command = [
        temporal_server.executable(),
        *words,
        "--address",
        address,
        "--namespace",
        lab.client.namespace,
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def triggered(lab: Lab, schedule: str, runs: int) -> None:
    """Trigger, and wait until there are so many runs."""
    await asyncio.sleep(1.1)  # two triggers within a second have one id
    await temporal(
        lab, "schedule", "trigger", "--schedule-id", schedule, "--overlap-policy", "CancelOther"
    )
    await lab.until(lambda: len(lab.store.runs.list_runs()) == runs)


@pytest.mark.troubles
async def test_a_schedule_of_temporal_itself(real_lab: Lab) -> None:
    lab = real_lab
    lab.cluster.behaviour = Behaviour(executes=None)
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
    await temporal(lab, *create, *start, *given)
    await triggered(lab, "own", 1)
    [first] = lab.store.runs.list_runs()
    await lab.until(lambda: lab.store.runs.get_run(first.run_id).status == "PROCESSING")
    assert (first.trigger, first.request.get("due_at"), first.request["requested_by"]) == (
        "scheduled",
        None,
        "nightly",
    )
    assert str(first.owner_workflow_id).startswith("own-2")
    assert first.request_id == first.owner_run_id, "a run of its own at each due time"
    assert lab.scheduler.calls[0].due_at is None

    await triggered(lab, "own", 2)
    second, before = (lab.store.runs.get_run(run.run_id) for run in lab.store.runs.list_runs())
    assert (before.status, before.outcome) == ("FAILED", "cancelled"), (
        "CancelOther is a graceful stop"
    )
    assert before.ended_at <= second.created_at
    assert lab.store.schedules.page() == [], "ours know nothing of it"
    await temporal(lab, "schedule", "delete", "--schedule-id", "own")
    handle = lab.client.get_workflow_handle(str(second.owner_workflow_id))
    await handle.signal("stop")
    await handle.result()


@pytest.mark.troubles
async def test_an_input_with_a_request_id_begins_once(real_lab: Lab) -> None:
    """A schedule's input is the same at each due time."""
    lab = real_lab
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
        lab, *create, *start, "--input", json.dumps(request), "--overlap-policy", "AllowAll"
    )
    await triggered(lab, "fixed", 1)
    await lab.until(lambda: lab.store.runs.list_runs()[0].status == "COMPLETED")
    await asyncio.sleep(1.1)
    await temporal(
        lab, "schedule", "trigger", "--schedule-id", "fixed", "--overlap-policy", "AllowAll"
    )

    async def closed() -> list[Any]:
        query = "WorkflowId STARTS_WITH 'fixed-'"
        listed = json.loads(await temporal(lab, "workflow", "list", "--query", query, "-o", "json"))
        return [one for one in listed if one["status"] != "WORKFLOW_EXECUTION_STATUS_RUNNING"]

    for _ in range(1000):
        both = await closed()
        if len(both) == 2:
            break
        await asyncio.sleep(0.1)
    assert sorted(one["status"].rpartition("_")[2] for one in both) == ["COMPLETED", "FAILED"]
    assert len(lab.store.runs.list_runs()) == 1
    await temporal(lab, "schedule", "delete", "--schedule-id", "fixed")
