"""Runs that wait for slots of their pools are woken and can be stopped, and no poll is needed for
that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from queue import Queue
from unittest.mock import AsyncMock, Mock

import pytest
import pytest_asyncio
from temporalio.client import WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.worker.slot_calls import SlotCalls
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.sites import limit
from tests.support.testbed import WorkflowHarness, open_testbed

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Polls are this frequent, or practically never happen.
SOON, NEVER = [0.01], [60.0]


@pytest_asyncio.fixture(loop_scope="session")
async def pooled(unhurried: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[WorkflowHarness]:
    pools = Pools({"one": Pool(max=1), "two": Pool(max=2)})
    async with open_testbed(unhurried.client, tmp_path, clock=utc_now, pools=pools) as testbed:
        calls = SlotCalls(
            "pools", testbed.store.pools, Workflows(unhurried.client).place_free, 0.05
        )
        calling = asyncio.create_task(calls.run())
        yield testbed
        calling.cancel()
        assert calls.state()["problem"] is None


def waits(testbed: WorkflowHarness, run_id: int) -> bool:
    return bool(testbed.store.deployment.waits_for_slot(run_id))


@pytest.mark.troubles
async def test_a_waiting_run_is_called_when_a_place_is_free(pooled: WorkflowHarness) -> None:
    pooled.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=None if (run, index) == (1, 0) else 0.3
    )
    first = await pooled.start(
        {"crawler": "books", "pool": "one", "poll_minutes": SOON, "tasks": [{}, {}]}
    )
    await pooled.until(lambda: waits(pooled, 1))
    second = await pooled.start({"crawler": "books", "pool": "one", "poll_minutes": SOON})
    urgent = await pooled.start(
        {"crawler": "books", "pool": "one", "poll_minutes": SOON, "priority": 1}
    )
    await pooled.until(lambda: waits(pooled, 2) and waits(pooled, 3))
    await pooled.until(lambda: pooled.store.tasks.count_tasks(1).active)
    pooled.cluster.end_now(1, 0, end=FINISHED)
    results = [await handle.result() for handle in (first, second, urgent)]
    assert [result.status for result in results] == ["COMPLETED"] * 3
    assert [len(call.tasks) for call in pooled.scheduler.calls] == [1] * 4
    signals = [
        e
        for e in (await second.fetch_history()).events
        if e.HasField("workflow_execution_signaled_event_attributes")
    ]
    assert {e.workflow_execution_signaled_event_attributes.signal_name for e in signals} == {
        "place_free"
    }


@pytest.mark.troubles
async def test_a_run_that_waits_can_be_stopped_and_resumed(pooled: WorkflowHarness) -> None:
    pooled.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=None if run == 1 else 0.1
    )
    first = await pooled.start({"crawler": "books", "pool": "one", "poll_minutes": SOON})
    await pooled.until(
        lambda: pooled.store.tasks.count_tasks(1).active if pooled.store.runs.get_run(1) else 0
    )
    second = await pooled.start({"crawler": "books", "pool": "one", "poll_minutes": NEVER})
    await pooled.until(lambda: waits(pooled, 2))
    await second.signal("stop")
    stopped = await second.result()
    assert (stopped.outcome, stopped.tasks, waits(pooled, 2)) == (
        "cancelled",
        {"CANCELLED": 1},
        False,
    )
    again = await pooled.start({"run_id": 2, "poll_minutes": SOON})
    await pooled.until(lambda: waits(pooled, 2))
    await first.signal("stop", {"force": True})
    assert (await first.result()).outcome == "cancelled"
    assert (await again.result()).status == "COMPLETED"


@pytest.mark.troubles
async def test_a_run_whose_workflow_is_gone_keeps_no_place(pooled: WorkflowHarness) -> None:
    pooled.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=None if run == 1 else 0.1
    )
    first = await pooled.start({"crawler": "books", "pool": "one", "poll_minutes": SOON})
    await pooled.until(
        lambda: pooled.store.tasks.count_tasks(1).active if pooled.store.runs.get_run(1) else 0
    )
    gone = await pooled.start({"crawler": "books", "pool": "one", "poll_minutes": NEVER})
    await pooled.until(lambda: waits(pooled, 2))
    last = await pooled.start({"crawler": "books", "pool": "one", "poll_minutes": NEVER})
    await pooled.until(lambda: waits(pooled, 3))
    await gone.terminate()
    await first.signal("stop", {"force": True})
    await pooled.until(lambda: not waits(pooled, 2))
    await pooled.until(lambda: not waits(pooled, 3))
    await last.signal("stop", {"force": True})


async def test_runs_of_one_site_take_turns_without_pools(
    unhurried: WorkflowEnvironment, tmp_path: Path
) -> None:
    """A run with one task, one with several whose first try fails, and a stop of the last in the
    queue.
    """
    async with open_testbed(unhurried.client, tmp_path, clock=utc_now) as testbed:
        limit(testbed.store, "shop.example", tasks=1)
        calls = SlotCalls("caps", testbed.store.caps, Workflows(unhurried.client).place_free, 0.05)
        calling = asyncio.create_task(calls.run())
        testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
            executes=None if run == 1 else 0.1
        )
        visit = {"crawler": "books", "sites": ["www.shop.example"], "poll_minutes": SOON}
        first = await testbed.start(visit)
        await testbed.until(lambda: testbed.store.tasks.count_tasks(1).active)
        second = await testbed.start(visit | {"tasks": [{}, {}], "poll_minutes": SOON})
        await testbed.until(lambda: waits(testbed, 2))
        last = await testbed.start(visit | {"poll_minutes": NEVER})
        await testbed.until(lambda: waits(testbed, 3))
        assert testbed.store.caps.words(2) == "shop.example: 1 of 1 task (run 1)"
        await last.signal("stop")
        assert (await last.result()).outcome == "cancelled"
        assert not waits(testbed, 3)
        testbed.cluster.end_now(1, 0, end=FINISHED)
        results = [await handle.result() for handle in (first, second)]
        assert [result.status for result in results] == ["COMPLETED"] * 2
        assert [len(call.tasks) for call in testbed.scheduler.calls] == [1] * 3
        calling.cancel()
        assert calls.state()["problem"] is None


async def test_calls_that_temporal_does_not_take_are_undone() -> None:
    pools, undone = Mock(), Queue[tuple[list[int], bool]]()
    pools.call.return_value = {7: "crawl/7"}
    pools.uncall.side_effect = lambda run_ids, gone: undone.put((run_ids, gone))
    calling = asyncio.create_task(
        SlotCalls("pools", pools, AsyncMock(side_effect=TemporalUnavailable("away")), 0.01).run()
    )
    assert await asyncio.to_thread(undone.get, True, 60) == ([7], False)
    calling.cancel()


async def test_an_unknown_pool_is_refused_by_name(pooled: WorkflowHarness) -> None:
    handle = await pooled.start({"crawler": "books", "pool": "three"})
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert "there is no such pool" in str(failed.value.cause)
