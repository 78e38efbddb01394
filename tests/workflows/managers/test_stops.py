"""A stop of a manager, in every way and at any time: nothing of it executes when it reports that it
has ended.
"""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.features.managers.activities.cycles import CycleOrder
from crawler_lifecycle.features.managers.domain.manager import ManagerResult
from crawler_lifecycle.features.managers.gateway.commands import ManagerCommands
from crawler_lifecycle.features.managers.gateway.requests import ResumeManager, StopManager
from crawler_lifecycle.features.managers.workflows import manager
from crawler_lifecycle.features.managers.workflows.manager import NO_WORKER
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.temporal.client import Workflows
from tests.support.catalogues import stored_in
from tests.support.fakes.cluster import Behaviour
from tests.support.managing import ManagerTestbed, manager_testbed, quick
from tests.support.testbed import WorkflowHarness
from tests.workflows.test_late_starts import commands

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

UNTIL_STOPPED = Behaviour(executes=None)


async def running(m: ManagerTestbed, live: int) -> WorkflowHandle[Any, Any]:
    """A manager whose runs execute."""
    handle = await m.start()
    await m.testbed.until(lambda: len(m.testbed.cluster.alive()) == live)
    return handle


async def stop_by_row(m: ManagerTestbed, *, leave: bool = False, force: bool = False) -> None:
    """Stop as the gateway does: first the row, then a wake-up."""
    intent = StopIntent(datetime.now(UTC), force, "ada", "enough")
    m.testbed.store.managers.record_manager_stop(1, intent, leave)
    await Workflows(m.testbed.client).wake("manager/stream/f1")


async def stop_by(m: ManagerTestbed, handle: WorkflowHandle[Any, Any], how: str) -> None:
    if how == "row":
        await stop_by_row(m)
    elif how == "cancel":
        await handle.cancel()
    elif how == "unreadable":
        await handle.signal("stop", args=[b"\xff\x00", 5])
    else:
        await handle.signal(how, {"requested_by": "ada", "reason": "enough"})


def nothing_is_left(m: ManagerTestbed) -> None:
    assert m.testbed.cluster.alive() == []
    assert {(str(run.status), run.outcome) for run in m.runs()} <= {
        ("FAILED", "cancelled"),
        ("COMPLETED", "finished"),
    }


@pytest.mark.parametrize(
    ("how", "live"), [("stop", 2), ("unreadable", 1), ("cancel", 1), ("row", 1)]
)
async def test_a_stop_ends_every_run_and_then_the_manager(
    real_testbed: WorkflowHarness, how: str, live: int
) -> None:
    real_testbed.cluster.behaviour = UNTIL_STOPPED
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(5)], window=live, retries=2)
    async with m.user_code():
        handle = await running(m, live)
        await stop_by(m, handle, how)
        result = await real_testbed.ended(handle)
    assert (result.status, result.outcome) == ("FAILED", "cancelled")
    row, runs = m.row(), m.runs()
    assert (row.status, row.outcome) == ("FAILED", "cancelled")
    assert len(runs) == live, "nothing more was picked, and nothing tried again"
    nothing_is_left(m)
    assert m.plan.closed == [1]
    if how in ("stop", "row"):
        assert result.cause == "Stopped by ada: enough"
        assert {run.stop.requested_by for run in runs} == {"ada"}


async def test_a_resume_redoes_what_the_stop_cut_off_only_when_asked(
    real_testbed: WorkflowHarness,
) -> None:
    """The runs continue with their next attempts and hold the slots, and their ends have hooks; a
    repetition finds none.
    """
    real_testbed.cluster.behaviour = UNTIL_STOPPED
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(4)], window=2)
    managers = real_testbed.store.managers
    gateway = ManagerCommands(
        managers,
        real_testbed.store.user_code,
        commands(real_testbed),
        Workflows(real_testbed.client),
        Crawlers(real_testbed.scheduler, stored_in(real_testbed.store)),
        lambda: datetime.now(UTC),
    )
    async with m.user_code():
        handle = await running(m, 2)
        [first, second] = m.runs()
        by_hand = real_testbed.client.get_workflow_handle(second.owner_workflow_id)
        await by_hand.signal("stop", {"requested_by": "bob"})
        await real_testbed.until(lambda: m.runs()[1].status.terminal)
        await real_testbed.until(lambda: len(m.testbed.cluster.alive()) == 2)
        stopped = await gateway.stop(1, StopManager(reason="enough", requested_by="ada"))
        assert "crawlctl manager resume 1 --redo" in (stopped.note or "")
        assert (await real_testbed.ended(handle)).outcome == "cancelled"
        cut_off = [run.run_id for run in managers.cut_off_runs(1)]
        assert cut_off == [first.run_id, 3], "not the run that a person stopped by itself"

        real_testbed.cluster.behaviour = Behaviour(executes=0)
        await gateway.resume(1, ResumeManager(redo=True))
        again = real_testbed.client.get_workflow_handle(
            "manager/stream/f1", result_type=ManagerResult
        )
        assert (await real_testbed.ended(again)).status == "COMPLETED"
    assert [(run.run_id, run.attempt, str(run.status)) for run in m.runs()] == [
        (1, 2, "COMPLETED"),
        (2, 1, "FAILED"),
        (3, 2, "COMPLETED"),
        (4, 1, "COMPLETED"),
    ]
    assert {(1, 0, 2, False), (3, 0, 2, False)} <= set(m.plan.ends)
    assert managers.cut_off_runs(1) == []


async def test_force_kills_what_a_plain_stop_could_not_end(real_testbed: WorkflowHarness) -> None:
    real_testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(2)])
    async with m.user_code():
        handle = await running(m, 2)
        await handle.signal("stop")
        await real_testbed.until(lambda: all(real_testbed.cluster.signals(n) for n in (1, 2)))
        assert m.row().status == "STOPPING"
        await stop_by_row(m, force=True)
        assert (await real_testbed.ended(handle)).outcome == "cancelled"
    nothing_is_left(m)


async def test_runs_that_are_left_go_on_until_somebody_stops_them_too(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = UNTIL_STOPPED
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(5)], window=2)
    async with m.user_code():
        handle = await running(m, 2)
        await stop_by_row(m, leave=True)
        result = await real_testbed.ended(handle)
        assert (result.outcome, result.cause) == (
            "cancelled",
            "Stopped by ada: enough; its runs continue",
        )
        assert len(real_testbed.cluster.alive()) == 2
        assert {str(run.status) for run in m.runs()} == {"PROCESSING"}
        await m.end_runs()


async def test_without_a_worker_of_its_class_a_manager_waits_in_sight_and_stops_all_the_same(
    real_testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_testbed.cluster.behaviour = UNTIL_STOPPED
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(5)], window=2)
    async with m.user_code():
        handle = await running(m, 2)
    monkeypatch.setattr(manager, "TAKEN_S", 0.5)
    real_testbed.cluster.end_now(1)
    await Workflows(real_testbed.client).poll_now(m.runs()[0].owner_workflow_id)
    snapshot = await m.snapshot_where(handle, lambda s: s.waiting == NO_WORKER)
    assert snapshot.live == 2
    await real_testbed.until(lambda: m.row().waiting_for == NO_WORKER)
    await handle.signal("stop", {"requested_by": "ada"})
    result = await real_testbed.ended(handle)
    assert (
        result.cause
        == "Stopped by ada; on_close was not called: there is no worker of the role user-code"
    )
    assert real_testbed.cluster.alive() == []
    assert m.plan.closed == []


async def test_a_stop_that_was_there_first_begins_nothing(real_testbed: WorkflowHarness) -> None:
    m = manager_testbed(real_testbed, source=[quick(1)])
    row = m.reserve()
    real_testbed.store.managers.record_manager_stop(row.manager_id, StopIntent(datetime.now(UTC)))
    result = await real_testbed.ended(await m.start(row=row))
    assert (result.outcome, result.cause, m.runs(), m.plan.cycles) == (
        "cancelled",
        "Stopped",
        [],
        0,
    )


async def test_a_stop_does_not_wait_for_a_class_that_hangs(real_testbed: WorkflowHarness) -> None:
    m = manager_testbed(real_testbed, source=[quick(1)])
    inside, over = threading.Event(), threading.Event()

    def hang(order: CycleOrder) -> None:
        if not order.closing:
            inside.set()
            over.wait(60)

    m.plan.before = hang
    async with m.user_code():
        handle = await m.start()
        await real_testbed.until(inside.is_set)
        await handle.signal("stop")
        assert (await real_testbed.ended(handle)).outcome == "cancelled"
        over.set()
    await asyncio.sleep(0)
    assert m.runs() == []
    assert m.row().counts.live == 0
