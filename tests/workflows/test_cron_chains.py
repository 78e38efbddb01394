"""Temporal's own ``cron_schedule`` on our workflows: refused, and the chain of executions ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from crawler_lifecycle.domain import names
from tests.support.testbed import WorkflowHarness
from tests.workflows.test_replay import read, replay

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    ("workflow", "queue", "order"),
    [
        (names.LIFECYCLE_WORKFLOW, names.QUEUE_MAIN, [{"crawler": "books", "request_id": "mine"}]),
        (names.LIFECYCLE_WORKFLOW, names.QUEUE_MAIN, []),
        (names.MANAGER_WORKFLOW, names.QUEUE_MAIN, [{"manager_id": 1}]),
        (names.GRAPH_WORKFLOW, names.QUEUE_MAIN, [{"graph_id": 1}]),
        (names.AUDIT_WORKFLOW, names.QUEUE_AUDIT, []),
    ],
    ids=["run", "empty", "manager", "graph", "audit"],
)
async def test_a_cron_chain_is_refused_and_ends(
    real_testbed: WorkflowHarness, workflow: str, queue: str, order: list[Any]
) -> None:
    started = f"cron/{workflow}/{len(order)}"
    handle = await real_testbed.client.start_workflow(
        workflow, args=order, id=started, task_queue=queue, cron_schedule="@every 1s"
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await asyncio.wait_for(handle.result(), 60)
    assert (
        "cron_schedule: '@every 1s' is not allowed; create a schedule instead: crawlctl schedule create"
        in str(failed.value.cause)
    )
    await asyncio.sleep(2.5)
    last = await real_testbed.client.get_workflow_handle(started).describe()
    assert last.status is WorkflowExecutionStatus.FAILED
    history = await real_testbed.client.get_workflow_handle(started).fetch_history()
    begun = history.events[0].workflow_execution_started_event_attributes
    assert begun.continued_execution_run_id == handle.first_execution_run_id, (
        "the execution after the first one"
    )
    assert not begun.cron_schedule
    assert real_testbed.store.runs.find_run("mine") is None


@pytest.mark.parametrize("name", ["completed", "managed", "graphed", "audited"])
async def test_an_execution_that_an_earlier_build_began_goes_on(name: str) -> None:
    history = read(name)
    history["events"][0]["workflowExecutionStartedEventAttributes"]["cronSchedule"] = "30 2 * * *"
    await replay(history)
