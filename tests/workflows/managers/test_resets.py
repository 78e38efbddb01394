"""An operator resets a manager's workflow, or a stop is only in the row: the record holds, and
nothing is done twice.
"""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.features.managers.domain.manager import ManagerResult
from crawler_lifecycle.temporal.client import Workflows
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.managing import ManagerTestbed, manager_testbed, quick
from tests.support.resets import reset
from tests.support.testbed import WorkflowHarness

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

#: From the very beginning, and from before the verdict. In between, nothing differs, because the
#: row decides.
ALWAYS = {("finished", 0), ("stopped", -1)}
UNTIL_STOPPED, INSTANT = Behaviour(executes=None), Behaviour(executes=0)


async def reset_to(
    m: ManagerTestbed, handle: WorkflowHandle[Any, Any], task: int
) -> WorkflowHandle[Any, Any]:
    """Reset to the state before this one of its workflow tasks was completed."""
    client = m.testbed.client
    run_id = await reset(client, handle.id, task)
    again: WorkflowHandle[Any, Any] = client.get_workflow_handle(
        handle.id, first_execution_run_id=run_id, result_type=ManagerResult
    )
    m.testbed.handles.append(again)
    return again


async def let_end(m: ManagerTestbed) -> None:
    """Let everything end that executes or begins from now on."""
    m.testbed.cluster.behaviour = INSTANT
    for run in m.runs():
        m.testbed.cluster.end_now(run.run_id, end=FINISHED)
        await Workflows(m.testbed.client).poll_now(run.owner_workflow_id)


@pytest.mark.parametrize(
    "task", [0, *(pytest.param(task, marks=pytest.mark.slow) for task in (2, -1))]
)
async def test_a_manager_at_work_goes_on_as_if_nothing_had_been(
    real_testbed: WorkflowHarness, task: int
) -> None:
    real_testbed.cluster.behaviour = UNTIL_STOPPED
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(3)], window=2)
    async with m.user_code():
        handle = await m.start()
        await real_testbed.until(lambda: len(real_testbed.cluster.alive()) == 2)
        again = await reset_to(m, handle, task)
        assert (await m.snapshot_where(again, lambda s: s.live == 2)).attempt == 1
        await let_end(m)
        result = await real_testbed.ended(again)
    row = m.row()
    assert (result.outcome, row.attempt, row.counts.good, len(m.runs())) == ("finished", 1, 3, 3)
    assert sorted(m.plan.ends) == [(seq, 0, 1, False) for seq in range(1, 4)], (
        "each end is handled once"
    )
    assert max(m.plan.lives) == 2


@pytest.mark.parametrize(
    ("how", "task"),
    [
        pytest.param(how, task, marks=() if (how, task) in ALWAYS else pytest.mark.slow)
        for how in ("finished", "stopped")
        for task in (0, 2, -1)
    ],
)
async def test_one_that_has_ended_stays_as_it_is_on_record(
    real_testbed: WorkflowHarness, how: str, task: int
) -> None:
    real_testbed.cluster.behaviour = UNTIL_STOPPED
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(2)])
    async with m.user_code():
        handle = await m.start()
        await real_testbed.until(lambda: len(real_testbed.cluster.alive()) == 2)
        if how == "stopped":
            await handle.signal("stop", {"requested_by": "ada"})
        else:
            await let_end(m)
        result, row = await real_testbed.ended(handle), m.row()
        m.plan.forget()
        assert await real_testbed.ended(await reset_to(m, handle, task)) == result
    assert (m.row(), len(m.runs()), m.plan.closed) == (row, 2, [1])


async def test_a_stop_in_the_row_alone_is_seen_by_the_next_cycle(
    real_testbed: WorkflowHarness,
) -> None:
    """Whoever wrote it died before sending it, or a reset undid the signal."""
    real_testbed.cluster.behaviour = UNTIL_STOPPED
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(4)], window=2)
    async with m.user_code():
        handle = await m.start()
        await real_testbed.until(lambda: len(real_testbed.cluster.alive()) == 2)
        real_testbed.store.managers.record_manager_stop(
            1, StopIntent(utc_now(), False, "ada", "enough")
        )
        real_testbed.cluster.end_now(1)
        await Workflows(real_testbed.client).poll_now(m.runs()[0].owner_workflow_id)
        result = await real_testbed.ended(handle)
    assert (result.cause, len(m.runs()), real_testbed.cluster.alive()) == (
        "Stopped by ada: enough",
        2,
        [],
    )
