"""A workflow whose code is executed again and again, as after every restart of a worker, logs each
line once.
"""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.worker import Worker

from crawler_lifecycle.observability import logs
from tests.support.temporal import temporal_server


@activity.defn
async def step(run_id: int) -> None:
    """Takes a run's number, as ours do."""
    logging.getLogger("tests.step").info("inside of %s", run_id)


@workflow.defn(sandboxed=False)
class Steps:
    """Three steps with a line after each."""

    @workflow.run
    async def run(self) -> None:
        for number in range(3):
            await workflow.execute_activity(step, 7, start_to_close_timeout=timedelta(seconds=120))
            workflow.logger.info("step %d", number)


async def test_replay_writes_nothing_twice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    known: list[dict[str, object]] = []
    caplog.handler.addFilter(lambda record: known.append(dict(logs.of_workflow.get())) or True)
    async with temporal_server(skipping=False) as server:
        async with Worker(
            server.client,
            task_queue="steps",
            workflows=[Steps],
            activities=[step],
            max_cached_workflows=0,
        ):
            await server.client.execute_workflow(Steps.run, id="steps", task_queue="steps")
        history = await server.client.get_workflow_handle("steps").fetch_history()
    assert sum(e.HasField("workflow_task_started_event_attributes") for e in history.events) >= 4, (
        "it was replayed"
    )
    lines = [r.getMessage() for r in caplog.records if r.name == "temporalio.workflow"]
    assert lines == ["workflow begins", "step 0", "step 1", "step 2", "workflow ends"]
    of_workflow = [
        fields
        for fields, r in zip(known, caplog.records, strict=True)
        if r.name == "temporalio.workflow"
    ]
    assert [fields["workflow_id"] for fields in of_workflow] == ["steps"] * 5
    assert [fields.get("run_id") for fields in of_workflow] == [None, 7, 7, 7, 7]
    assert "inside of 7" in caplog.text
