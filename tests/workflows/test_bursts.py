"""Many more open runs than a worker caches, and a burst of starts: each step is a replay, and
nothing is lost.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from crawler_lifecycle.workflows import policies
from tests.support.fakes.cluster import Behaviour
from tests.support.testbed import WorkflowHarness, start_workers

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

OLD, NEW, REMEMBERED = 3, 3, 2
#: In real time: with skipped time, an open run is polled all the time.
BOOKS = {"crawler": "books", "poll_minutes": [0.02, 600], "limits": {"start_check_s": 0.1}}
ROLES_HERE = ("workflows", "cluster", "control", "export")


def seen_at(testbed: WorkflowHarness, handle: WorkflowHandle[Any, Any]) -> datetime | None:
    """Return when the run was last polled, by its row: a query to its workflow would be a replay."""
    rows = [row for row in testbed.store.runs.list_runs() if row.owner_workflow_id == handle.id]
    return rows[0].verified_at if rows else None


async def test_stops_polls_and_resumes_in_a_burst_of_starts(
    real_testbed_without_workers: WorkflowHarness,
) -> None:
    testbed = real_testbed_without_workers
    testbed.cluster.behaviour = lambda run, index, attempt: (
        Behaviour(executes=None) if run <= OLD and attempt == 1 else Behaviour(executes=0)
    )
    async with AsyncExitStack() as stack:
        await start_workers(stack, testbed, roles=ROLES_HERE, cached=REMEMBERED)
        old = [await testbed.start(BOOKS) for _ in range(OLD)]
        await testbed.until(lambda: all(seen_at(testbed, handle) for handle in old))
        burst = [asyncio.create_task(testbed.start(BOOKS)) for _ in range(NEW)]
        before = seen_at(testbed, old[0])
        await old[0].signal("poll_now")
        for handle in old[1:]:
            await handle.signal("stop")
        stopped = await asyncio.gather(*(testbed.ended(handle) for handle in old[1:]))
        assert {one.outcome for one in stopped} == {"cancelled"}
        await testbed.until(lambda: seen_at(testbed, old[0]) != before)
        again = await testbed.run({"run_id": stopped[0].run_id})
        assert (again.status, again.attempt) == ("COMPLETED", 2)
        await old[0].signal("stop")
        assert (await testbed.ended(old[0])).outcome == "cancelled"
        ended = [await testbed.ended(await one) for one in burst]
        assert sorted(one.run_id for one in ended) == list(range(OLD + 1, OLD + NEW + 1))
        assert {str(one.status) for one in ended} == {"COMPLETED"}


async def test_steps_of_a_run_that_has_begun_come_before_starts(
    real_testbed: WorkflowHarness,
) -> None:
    """Without a worker's cache, because the worker may have died, Temporal orders steps by the
    workflow's priority.
    """
    real_testbed.cluster.behaviour = Behaviour(executes=None)
    run = await real_testbed.start(BOOKS)
    await real_testbed.until(lambda: seen_at(real_testbed, run) is not None)
    found = (await run.describe()).raw_description.workflow_execution_info
    assert found.priority.priority_key == policies.FIRST < policies.TURN
    await run.signal("stop")
    assert (await real_testbed.ended(run)).outcome == "cancelled"
