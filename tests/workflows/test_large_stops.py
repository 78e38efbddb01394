"""Stops of runs with many tasks: few events, progress on record, and nobody waits for a task that
hangs.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from crawler_lifecycle.activities import cancellation
from crawler_lifecycle.activities.abreast import Abreast
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import TaskRef
from tests.support.fakes.cluster import SHUTDOWN, Behaviour
from tests.support.testbed import WorkflowHarness

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

UNTIL_STOPPED = Behaviour(executes=None)
IGNORES = Behaviour(executes=None, heeds_stop_after=None)
NEVER = {"force_stop_after_s": None}


async def started(testbed: WorkflowHarness, tasks: int) -> Any:
    """An executing run with more tasks than a request may contain."""
    row, _ = testbed.store.initiation.reserve_run(
        RunRequest(crawler="books"), "large", [{}] * tasks
    )
    handle = await testbed.start({"run_id": row.run_id})
    await testbed.until(
        lambda: testbed.store.tasks.count_tasks(1).by_status.get("RUNNING") == tasks, 300
    )
    return handle


@pytest.mark.parametrize("tasks", [120, pytest.param(5_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "force", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "forced"]
)
async def test_a_stop_of_thousands_of_tasks_takes_few_events(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch, force: bool, tasks: int
) -> None:
    """The few also have more than a page, which is smaller there."""
    monkeypatch.setattr(cancellation, "STOP_PAGE", min(tasks // 3, cancellation.STOP_PAGE))
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await started(testbed, tasks)
    before = len(await testbed.events(handle))
    seq = testbed.store.events.last_event_seq()
    await handle.signal("stop", {"request_id": "s", "force": force})
    result = await testbed.ended(handle, 300)
    assert (result.outcome, result.tasks) == ("cancelled", {"CANCELLED": tasks})
    names = await testbed.events(handle)
    assert names.count("k8_stop_pod" if force else "k8_stop_task") < 20
    assert len(names) - before < 100, names[before:]
    assert testbed.store.events.last_event_seq() - seq < 60
    assert testbed.cluster.calls["kill" if force else "stop"] == tasks
    for history in await testbed.chain(handle):
        assert len(history.events) < 4_096


async def test_a_task_that_hangs_keeps_no_other_one_waiting(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More tasks hang in the call than are stopped at once."""
    monkeypatch.setitem(Abreast.__init__.__kwdefaults__, "slow_s", 0.1)
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start({"crawler": "books", "tasks": [{}] * 36, "limits": NEVER})
    await testbed.until(lambda: testbed.store.tasks.count_tasks(1).by_status.get("RUNNING") == 36)
    stop, over = testbed.cluster.stop, threading.Event()

    def hang(run: RunRef, task: TaskRef) -> None:
        if task.index < 20 and not over.is_set():
            over.wait(120)
            raise ClusterUnavailable("its node does not answer")
        stop(run, task)

    monkeypatch.setattr(testbed.cluster, "stop", hang)
    await handle.signal("stop")
    try:
        await testbed.until(
            lambda: testbed.store.tasks.count_tasks(1).by_status.get("CANCELLED") == 16
        )
        assert not over.is_set()
        assert testbed.tasks(1)[3] == "RUNNING", "nobody knows that it was asked"
    finally:
        over.set()
    assert (await testbed.ended(handle)).tasks == {"CANCELLED": 36}


async def test_whoever_takes_a_stop_over_goes_on_where_it_was(
    real_testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed = real_testbed  # two workflows have one clock there
    monkeypatch.setattr(cancellation, "PASS_S", 0.0)  # each activity has time for one task
    testbed.cluster.behaviour = IGNORES
    request = {"crawler": "books", "tasks": [{}] * 12, "limits": NEVER, "poll_minutes": [0.02]}
    handle = await testbed.start(request)
    await testbed.until(lambda: testbed.store.tasks.count_tasks(1).by_status.get("RUNNING") == 12)
    await handle.signal("stop")
    await testbed.until(
        lambda: testbed.store.tasks.count_tasks(1).by_status.get("STOPPING", 0) >= 5
    )
    await handle.terminate("by an operator")
    again = await testbed.start({"run_id": 1})
    await testbed.until(lambda: testbed.store.tasks.count_tasks(1).by_status.get("STOPPING") == 12)
    assert testbed.cluster.calls["stop"] <= 13, "at most the one that was under way was asked again"
    await again.signal("force_stop")
    assert (await testbed.ended(again)).tasks == {"CANCELLED": 12}
    assert testbed.cluster.calls["kill"] == 12


async def test_force_counts_from_when_a_task_was_asked(testbed: WorkflowHarness) -> None:
    """The cluster accepts no stop for longer than the limit: a task that never received it is not
    killed.
    """
    testbed.cluster.behaviour = IGNORES
    handle = await testbed.start(
        {"crawler": "books", "tasks": [{}] * 3, "limits": {"force_stop_after_s": 60}}
    )
    await testbed.until(lambda: testbed.store.tasks.count_tasks(1).by_status.get("RUNNING") == 3)
    testbed.cluster.fail_with(ClusterUnavailable("503"), "stop")
    await handle.signal("stop")
    polls = (await testbed.snapshot_where(handle, lambda s: s.stop is not None)).polls
    late = await testbed.snapshot_where(
        handle,
        lambda s: (
            s.polls > polls + 2 and s.last_poll_at - s.stop.requested_at > timedelta(seconds=200)
        ),
    )
    assert testbed.cluster.calls["kill"] == 0
    assert not late.stop.force
    testbed.cluster.fail_with(None, "stop")
    result = await testbed.ended(handle)
    assert {task.outcome for task in testbed.store.tasks.list_tasks(result.run_id)} == {
        "cancel_timeout"
    }
    asked = [
        t
        for t in testbed.store.runs.transitions(1)
        if t.task_id is not None and t.to_status == "STOPPING"
    ]
    ended = testbed.store.tasks.list_tasks(1)
    assert len(asked) == 3
    first = min(t.ended_at for t in ended if t.ended_at is not None)
    assert (first - max(t.committed_at for t in asked)).total_seconds() >= 60


@pytest.mark.parametrize("by", ["its limit", "a person"])
async def test_a_poll_that_hangs_does_not_keep_force_away(
    testbed: WorkflowHarness, by: str
) -> None:
    testbed.cluster.behaviour = IGNORES
    handle = await testbed.start(
        {"crawler": "books", "limits": {"force_stop_after_s": 60} if by == "its limit" else NEVER}
    )
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    testbed.cluster.fail_with(ClusterUnavailable("a page is too large"), "poll")
    await handle.signal("stop")
    if by == "a person":
        await testbed.until(lambda: testbed.cluster.signals(1))
        polls = testbed.cluster.calls["poll"]
        await testbed.until(lambda: testbed.cluster.calls["poll"] > polls + 2)
        await handle.signal("force_stop")
    await testbed.until(lambda: testbed.cluster.calls["kill"])
    assert testbed.cluster.alive() == []
    testbed.cluster.fail_with(None, "poll")
    assert (await testbed.ended(handle)).outcome == "cancelled"


async def test_the_same_stop_again_and_again_interrupts_no_poll(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed.cluster.behaviour = IGNORES
    handle = await testbed.start({"crawler": "books", "limits": NEVER})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    polling, go_on = threading.Event(), threading.Event()
    poll = testbed.cluster.poll

    def slow(*args: Any) -> Any:
        polling.set()
        go_on.wait(120)
        return poll(*args)

    await handle.signal("stop", {"request_id": "s0", "requested_by": "ada"})
    await testbed.until(lambda: testbed.cluster.signals(1))
    monkeypatch.setattr(testbed.cluster, "poll", slow)
    await testbed.until(polling.is_set)
    calls = testbed.cluster.calls["poll"]
    testbed.cluster.end_now(1, end=SHUTDOWN)
    try:
        for n in range(1, 8):
            await handle.signal("stop", {"request_id": f"s{n}", "requested_by": "eve"})
            await handle.signal("stop", {"request_id": f"s{n}"})
            await testbed.until(lambda n=n: len(testbed.store.runs.cancellations(1)) == n + 1)
        assert all(
            entry["acted_at"] is not None for entry in testbed.store.runs.cancellations(1)[:-1]
        )
    finally:
        go_on.set()
    result = await testbed.ended(handle)
    assert result.outcome == "cancelled"
    assert testbed.cluster.calls["poll"] == calls + 1, "the poll that was under way proved it"
    assert testbed.store.runs.get_run(1).stop.requested_by == "ada"
    assert sorted(c["request_id"] for c in testbed.store.runs.cancellations(1)) == [
        f"s{n}" for n in range(8)
    ]


async def test_a_stop_again_and_again_interrupts_no_verdict(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed.cluster.behaviour = UNTIL_STOPPED
    judging, go_on, tries = threading.Event(), threading.Event(), []
    end_run = testbed.store.completion.end_run

    def slow(*args: Any) -> Any:
        tries.append(1)
        judging.set()
        go_on.wait(120)
        return end_run(*args)

    monkeypatch.setattr(testbed.store.completion, "end_run", slow)
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    await handle.signal("stop", {"request_id": "s0"})
    await testbed.until(judging.is_set)
    for n in range(1, 4):
        await handle.signal("stop", {"request_id": f"s{n}"})
        await testbed.until(lambda n=n: len(testbed.store.runs.cancellations(1)) == n + 1)
    go_on.set()
    await testbed.ended(handle)
    assert len(tries) == 1
