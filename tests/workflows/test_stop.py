"""Stopping always works: in every stage, in every way, twice, early, late, and with half of the
system dead.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.run import RunRequest, StopIntent
from crawler_lifecycle.domain.task import End
from crawler_lifecycle.ports.runs import Fence
from tests.support.fakes.cluster import FINISHED, SHUTDOWN, Behaviour
from tests.support.testbed import WorkflowHarness, each_at_once, workflow_clock

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNTIL_STOPPED = Behaviour(executes=None)
Stopper = Callable[[WorkflowHandle[Any, Any]], Coroutine[Any, Any, None]]


async def _signal(handle: WorkflowHandle[Any, Any]) -> None:
    await handle.signal("stop", {"request_id": "r1", "requested_by": "ada", "reason": "enough"})


async def _bare_signal(handle: WorkflowHandle[Any, Any]) -> None:
    await handle.signal("stop")


async def _force(handle: WorkflowHandle[Any, Any]) -> None:
    await handle.signal("force_stop")


async def _cancel(handle: WorkflowHandle[Any, Any]) -> None:
    await handle.cancel()


def _checked(testbed: WorkflowHarness, result: Any, tasks: dict[str, int] | None = None) -> None:
    """Check what holds for every stopped run."""
    assert (result.status, result.outcome) == ("FAILED", "cancelled")
    assert result.tasks == (tasks or {"CANCELLED": 1})
    row = testbed.store.runs.get_run(result.run_id)
    assert (row.status, row.outcome) == ("FAILED", "cancelled")
    logged = testbed.store.runs.cancellations(result.run_id)
    assert len(logged) == 1
    assert logged[0]["acted_at"] is not None
    assert [e.body["status"] for e in testbed.outside.sent if e.run_id == result.run_id] == [
        "FAILED"
    ]
    assert "run.stopped" in [e.type for e in testbed.outside.pushed if e.run_id == result.run_id]
    assert testbed.corrections(result.run_id) == []


#: Below, some moments have only some of the ways: the stop matrix has the others.
KINDS: list[Stopper] = [_signal, _bare_signal, _force, _cancel]


async def test_in_reconciliation(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = UNTIL_STOPPED

    async def play(stop: Stopper) -> None:
        handle = await testbed.start({"crawler": "books"})
        await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation" and s.polls >= 1)
        await stop(handle)
        result = await handle.result()
        _checked(testbed, result)
        forced = stop is _force
        names = await testbed.events(handle)
        assert names.count("k8_stop_pod" if forced else "k8_stop_task") == 1
        assert ("k8_stop_pod" in names) == forced
        assert testbed.cluster.signals(result.run_id) == (0 if forced else 1)
        order = [
            n
            for n in names
            if n in ("record_stop", "cancel_queued_tasks", "k8_stop_task", "k8_stop_pod")
        ]
        # Waiting and executing tasks are different: neither waits for the other.
        assert order == [
            "record_stop",
            "k8_stop_pod" if forced else "k8_stop_task",
            "cancel_queued_tasks",
        ]

    await each_at_once(play, KINDS)


async def test_every_task_of_a_multi_process_run_is_stopped_and_the_queued_ones_cancelled(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start(
        {"crawler": "books", "tasks": [{}] * 130, "max_parallel_tasks": 110}
    )
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    await handle.signal("stop")
    result = await handle.result()
    _checked(testbed, result, {"CANCELLED": 130})
    assert (await testbed.events(handle)).count("k8_stop_task") == 1
    assert all(testbed.cluster.signals(result.run_id, n) == 1 for n in range(110))


@pytest.mark.troubles
async def test_many_stops_are_one_stop_with_one_row_each(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await testbed.start({"crawler": "books", "limits": {"force_stop_after_s": None}})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    for n in range(40):
        await handle.signal("stop", {"request_id": f"r{n % 4}"})
    await testbed.until(lambda: testbed.cluster.signals(1))
    testbed.cluster.end_now(1, end=SHUTDOWN)  # not before all of them were sent
    result = await handle.result()
    assert result.outcome == "cancelled"
    assert sorted(c["request_id"] for c in testbed.store.runs.cancellations(result.run_id)) == [
        "r0",
        "r1",
        "r2",
        "r3",
    ]
    assert testbed.cluster.signals(result.run_id) == 1


async def test_a_stop_that_is_ignored_becomes_a_forced_one(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    await handle.signal("stop")
    result = await handle.result()
    assert (result.status, result.outcome) == ("FAILED", "cancelled")
    task = testbed.store.tasks.list_tasks(result.run_id)[0]
    assert (task.status, task.outcome) == ("CANCELLED", "cancel_timeout")
    row = testbed.store.runs.get_run(result.run_id)
    assert (task.ended_at - row.stop.requested_at).total_seconds() >= 300
    assert testbed.cluster.calls["kill"] == 1


async def test_with_the_cluster_dead_it_is_recorded_at_once_and_done_when_it_is_back(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start({"crawler": "books", "limits": {"force_stop_after_s": None}})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    testbed.cluster.fail_with(ClusterUnavailable("503"))
    await handle.signal("stop")
    row = await testbed.until(
        lambda: (r := testbed.store.runs.get_run(1)).status == "STOPPING" and r
    )
    assert row.stop is not None
    await testbed.until(lambda: testbed.store.runs.get_run(1).look_error)
    assert testbed.tasks(1) == {0: "RUNNING"}, "an error is no observation"
    testbed.cluster.fail_with(None)
    _checked(testbed, await handle.result())


@pytest.mark.troubles
async def test_the_end_that_was_its_own_wins_over_a_late_stop(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    testbed.cluster.fail_with(ClusterUnavailable("503"), "poll")
    testbed.cluster.behaviour = Behaviour()
    testbed.cluster.end_now(1, end=FINISHED)
    await handle.signal("stop")
    testbed.cluster.fail_with(None)
    result = await handle.result()
    assert (result.status, result.outcome) == ("COMPLETED", "finished")


async def test_a_stop_that_only_the_database_knows_is_carried_out(testbed: WorkflowHarness) -> None:
    """The gateway died between recording the stop and sending the signal."""
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start({"crawler": "books"})
    snapshot = await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    testbed.store.stops.record_stop(
        1, StopIntent(snapshot.last_poll_at, requested_by="gateway"), "g1"
    )
    _checked(testbed, await handle.result())


@pytest.mark.troubles
async def test_a_stop_of_a_reserved_run_leads_straight_to_its_end(testbed: WorkflowHarness) -> None:
    row, _ = testbed.store.initiation.reserve_run(RunRequest(crawler="books"), "reserved")
    testbed.store.stops.record_stop(
        row.run_id, StopIntent(row.created_at, requested_by="ada"), "s1"
    )
    result = await testbed.run({"run_id": row.run_id})
    _checked(testbed, result)
    assert testbed.scheduler.calls == []


async def test_a_stop_counts_also_with_three_payloads(testbed: WorkflowHarness) -> None:
    """``test_poison`` sends unreadable ones."""
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    await handle.signal("stop", args=[{"reason": "a"}] * 3)
    _checked(testbed, await handle.result())
    assert "3 payloads" in (await testbed.snapshot_where(handle, lambda s: True)).notes[0]


@pytest.mark.troubles
async def test_a_person_outweighs_a_limit(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = dataclasses.replace(UNTIL_STOPPED, heeds_stop_after=None)
    handle = await testbed.start(
        {"crawler": "books", "limits": {"run_timeout_s": 60, "force_stop_after_s": None}}
    )
    await testbed.until(lambda: testbed.cluster.calls["stop"])
    await handle.signal("force_stop", {"requested_by": "ada"})
    result = await handle.result()
    assert (result.outcome, result.cause) == ("cancelled", "Stopped by ada")


@pytest.mark.troubles
async def test_a_stop_does_not_wait_for_a_push(testbed: WorkflowHarness) -> None:
    """The push of the start hangs, or waits in a stuck queue, but the crawler gets its signal."""
    testbed.cluster.behaviour = UNTIL_STOPPED
    begun, over = threading.Event(), threading.Event()
    push = testbed.outside.push

    def hang(event: Any) -> None:
        if event.type == "run.started":
            begun.set()
            over.wait(120)
        push(event)

    testbed.outside.push = hang  # type: ignore[method-assign]
    handle = await testbed.start({"crawler": "books"})
    try:
        await testbed.until(begun.is_set)
        await handle.signal("stop", {"request_id": "r1", "requested_by": "ada"})
        await testbed.until(lambda: testbed.store.runs.get_run(1).status.terminal)
        assert not over.is_set()
    finally:
        over.set()
    _checked(testbed, await handle.result())


@pytest.mark.troubles
@pytest.mark.parametrize("ended", [FINISHED, SHUTDOWN], ids=["finished", "stopped"])
async def test_a_stop_whose_signal_misses_the_verdict_is_told(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch, ended: End
) -> None:
    """The gateway has recorded the stop, and the verdict comes before its signal, while a dialog
    waits for the result.
    """
    testbed.cluster.behaviour = Behaviour(end=ended)
    end_run = testbed.store.completion.end_run

    def stopped_just_before(fence: Fence, *how: Any) -> Any:
        testbed.store.stops.record_stop(
            fence.run_id, StopIntent(workflow_clock(), requested_by="ada"), "g1"
        )
        return end_run(fence, *how)

    monkeypatch.setattr(testbed.store.completion, "end_run", stopped_just_before)
    result = await testbed.run({"crawler": "books"})
    row = testbed.store.runs.get_run(result.run_id)
    assert row.stop is not None
    assert [e.body["status"] for e in testbed.outside.pushed if e.type == "run.stopped"] == [
        row.status
    ]
