"""Several gateways start a workflow for the same run: the last start executes nothing again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.activities.child_runs import own_workflow_id
from crawler_lifecycle.domain.run import RunRequest, RunResult, RunStatus, StopIntent
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.gateway.runs.commands import Commands
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.temporal.client import Workflows
from tests.support.catalogues import stored_in
from tests.support.fakes.cluster import KILLED, Behaviour
from tests.support.testbed import WorkflowHarness, workflow_clock

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]


class Slow(Workflows):
    """A connection on which a start waits until it is released."""

    def __init__(self, testbed: WorkflowHarness) -> None:
        super().__init__(testbed.client)
        self.under_way, self.let_through = asyncio.Event(), asyncio.Event()

    async def start(self, request: RunRequest, workflow_id: str, run_uid: str, **how: Any) -> str:
        self.under_way.set()
        await self.let_through.wait()
        return await super().start(request, workflow_id, run_uid, **how)


def commands(testbed: WorkflowHarness, workflows: Workflows | None = None) -> Commands:
    return Commands(
        testbed.store.initiation,
        testbed.store.additions,
        testbed.store.stops,
        testbed.store.runs,
        testbed.store.deletion,
        workflows or Workflows(testbed.client),
        Crawlers(testbed.scheduler, stored_in(testbed.store)),
        testbed.store.versions,
    )


async def two_starts(testbed: WorkflowHarness, row: RunRow) -> RunResult:
    """Both gateways decide to start the workflow; one does and its run ends, and then the other
    one's start arrives.
    """
    slow = Slow(testbed)
    other = asyncio.create_task(commands(testbed, slow).take_over(row))
    await asyncio.wait_for(slow.under_way.wait(), 60)
    await commands(testbed).take_over(row)
    handle = testbed.client.get_workflow_handle(own_workflow_id(row), result_type=RunResult)
    result: RunResult = await asyncio.wait_for(handle.result(), 60)
    slow.let_through.set()
    await other
    with pytest.raises(WorkflowFailureError) as late:
        await asyncio.wait_for(
            testbed.client.get_workflow_handle(own_workflow_id(row)).result(), 60
        )
    assert isinstance(late.value.cause, ApplicationError)
    assert late.value.cause.type == "NotInThisState"
    return result


async def test_a_failed_run_is_not_executed_again_by_the_second_of_two_first_starts(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = Behaviour(executes=0.2, end=KILLED)
    row, _ = await asyncio.to_thread(
        testbed.store.initiation.reserve_run, RunRequest(crawler="books"), "reserved"
    )
    result = await two_starts(testbed, row)
    now = testbed.store.runs.get_run(row.run_id)
    assert (now.status, now.attempt) == (result.status, 1) == (RunStatus.FAILED, 1)
    assert len(testbed.cluster.phases()) == 1


async def test_a_stopped_run_is_not_executed_again_by_a_second_sweep(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start({"crawler": "books", "poll_minutes": [600], "request_id": "lost"})
    await testbed.until(
        lambda: (
            testbed.store.runs.find_run("lost")
            and testbed.tasks(testbed.store.runs.find_run("lost").run_id)[0] == "RUNNING"
        )
    )
    await handle.terminate("lost")
    run_id = testbed.store.runs.find_run("lost").run_id
    stop = StopIntent(workflow_clock(), requested_by="ada")
    row = await asyncio.to_thread(testbed.store.stops.record_stop, run_id, stop, "s")
    await two_starts(testbed, row)
    now = testbed.store.runs.get_run(run_id)
    assert (now.status, now.outcome, now.attempt) == (RunStatus.FAILED, "cancelled", 2)
    assert testbed.tasks(run_id) == {0: TaskStatus.CANCELLED}
    assert testbed.cluster.alive(run_id) == []
