"""Runs end in the same way whatever happens to wake-ups, with a gap between polls however many
arrive.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.polling_schedule import MIN_GAP_SECONDS
from crawler_lifecycle.domain.task import End
from crawler_lifecycle.ports.runs import Deployment
from crawler_lifecycle.store.notes import UPGRADE
from crawler_lifecycle.workflows import calls
from tests.histories.record import HeldPolls
from tests.support.fakes.cluster import FINISHED, SHUTDOWN, Behaviour
from tests.support.testbed import PATIENCE_S, WorkflowHarness
from tests.support.waking import MODES, waking

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

#: Runs that are polled every 1.2 s, so that a suite without wake-ups does not take for ever.
QUICK: dict[str, Any] = {
    "crawler": "books",
    "poll_minutes": [0.02],
    "limits": {"start_check_s": 0.2},
}
UNTIL_STOPPED = Behaviour(executes=None, heeds_stop_after=0.3)
Scenario = Callable[[WorkflowHarness], Awaitable[int]]


async def good_path(testbed: WorkflowHarness) -> int:
    testbed.cluster.behaviour = Behaviour(waits=0.3, executes=0.7)
    return (await testbed.run(QUICK)).run_id


async def waves(testbed: WorkflowHarness) -> int:
    bad = End(exit_code=18, reason="Error")
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=0.2 + 0.1 * index, end=bad if index == 3 else FINISHED
    )
    return (await testbed.run({**QUICK, "tasks": [{}] * 5, "max_parallel_tasks": 2})).run_id


async def stop(testbed: WorkflowHarness) -> int:
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start({**QUICK, "tasks": [{}] * 4, "max_parallel_tasks": 2})
    await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation")
    await handle.signal("stop", {"requested_by": "ada", "request_id": "s1"})
    return (await handle.result()).run_id


async def resume(testbed: WorkflowHarness) -> int:
    """Terminated while two tasks execute; one ends before the run is resumed, one after it."""
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start({**QUICK, "tasks": [{}] * 2})
    await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation")
    await handle.terminate("gone")
    testbed.cluster.end_now(1, 0, end=FINISHED)
    again = await testbed.start({"run_id": 1}, id="again")
    await testbed.snapshot_where(again, lambda s: s.stage == "reconciliation")
    testbed.cluster.end_now(1, 1, end=FINISHED)
    return (await again.result()).run_id


async def correction(testbed: WorkflowHarness) -> int:
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start({**QUICK, "tasks": [{}] * 2})
    await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation")
    testbed.cluster.end_now(1, 0)
    await testbed.until(lambda: testbed.tasks(1)[0] == "FAILED")
    testbed.cluster.vanish(1, 1)
    return (await handle.result()).run_id


def truth(testbed: WorkflowHarness, run_id: int) -> Mapping[str, Any]:
    """Return what the database says about an ended run, without times."""
    run = testbed.store.runs.get_run(run_id)
    return {
        "run": (str(run.status), run.outcome, run.attempt),
        "tasks": [
            (t.task_index, t.attempt, str(t.status), t.outcome)
            for t in testbed.store.tasks.list_tasks(run_id)
        ],
        "corrections": sorted((c.kind, c.believed, c.truth) for c in testbed.corrections(run_id)),
        "cancellations": [c["request_id"] for c in testbed.store.runs.cancellations(run_id)],
        "ended": sum(
            e.type == "run.ended" for e in testbed.store.events.events_after(0, run_id=run_id)
        ),
    }


CANCELLED, DONE = ("CANCELLED", "cancelled"), ("SUCCEEDED", "finished")
EXPECTED: dict[Scenario, dict[str, Any]] = {
    good_path: {"run": ("COMPLETED", "finished", 1), "tasks": [(0, 1, *DONE)]},
    waves: {
        "run": ("FAILED", "partial", 1),
        "tasks": [(n, 1, *(("FAILED", "failed") if n == 3 else DONE)) for n in range(5)],
    },
    stop: {
        "run": ("FAILED", "cancelled", 1),
        "tasks": [(n, 1, *CANCELLED) for n in range(4)],
        "cancellations": ["s1"],
    },
    resume: {"run": ("COMPLETED", "finished", 2), "tasks": [(n, 1, *DONE) for n in range(2)]},
    correction: {
        "run": ("FAILED", "failed", 1),
        "tasks": [(0, 1, "FAILED", "failed"), (1, 1, "LOST", "lost")],
        "corrections": [("killed", "RUNNING", "FAILED"), ("vanished", "RUNNING", "LOST")],
    },
}
NOTHING: dict[str, Any] = {"corrections": [], "cancellations": [], "ended": 1}
#: Each scenario and each mode once, the rest with the slow ones. Reports are the same in every
#: scenario, and so are their effects: a storm reaches every stage of a scenario with more to lose,
#: and separate tests cover a stop, the wait for the start, and a deployment. ``on`` shows one
#: wake-up too many, which a storm hides.
ALWAYS = {
    (good_path, "wrong run"),
    (waves, "on"),
    (stop, "late"),
    (resume, "duplicated"),
    (correction, "storm"),
}


@pytest.mark.parametrize(
    ("scenario", "mode"),
    [
        pytest.param(
            *(scenario, mode),
            marks=[] if (scenario, mode) in ALWAYS else pytest.mark.slow,
            id=f"{scenario.__name__}, {mode}",
        )
        for scenario in EXPECTED
        for mode in MODES
    ],
)
async def test_the_end_is_the_same_whatever_becomes_of_wake_ups(
    real_testbed: WorkflowHarness, caplog: pytest.LogCaptureFixture, scenario: Scenario, mode: str
) -> None:
    async with waking(real_testbed, mode) as wakers:
        run_id = await scenario(real_testbed)
        assert truth(real_testbed, run_id) == {**NOTHING, **EXPECTED[scenario]}
        polls = [await polled_at(real_testbed, handle) for handle in real_testbed.handles]
    # A stop is followed by a poll at once; other polls are never closer together than permitted.
    assert sum(map(too_close, polls)) <= (scenario is stop)
    for waker in wakers:
        assert waker.counts["sent"] <= waker.counts["recorded"]
    # A poll that coincides with the takeover of its run is refused and repeated. Nothing else
    # fails.
    told = [text for text in caplog.messages if text.startswith("recording noticed changes failed")]
    assert bool(told) == any(waker.counts["failed"] for waker in wakers)
    assert [
        text for text in told if scenario is not resume or "may no longer write" not in text
    ] == []


async def test_with_wake_ups_nobody_waits_for_the_ladder(real_testbed: WorkflowHarness) -> None:
    testbed = real_testbed
    testbed.cluster.behaviour = UNTIL_STOPPED
    async with waking(testbed, "on"):
        handle = await testbed.start({"crawler": "books", "tasks": [{}] * 4, "poll_minutes": [600]})
        await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation")
        for index in range(4):
            testbed.cluster.end_now(1, index, end=FINISHED)
            await testbed.until(lambda index=index: testbed.tasks(1)[index] == "SUCCEEDED")  # type: ignore[misc]
        result = await testbed.ended(handle)
    assert result.status == "COMPLETED"
    ends = [
        t
        for t in testbed.store.runs.transitions(result.run_id)
        if t.task_id and t.to_status == "SUCCEEDED"
    ]
    assert [t.source for t in ends] == ["wake"] * 4
    assert testbed.corrections(result.run_id) == []


async def polled_at(testbed: WorkflowHarness, handle: Any) -> list[datetime]:
    """Return when this run ordered its polls, by its own clock: the time at which the server gave
    it the workflow task.

    The order is recorded later, by the time that the worker took.
    """
    orders = []
    for history in await testbed.chain(handle):
        for event in history.events:
            if event.HasField("workflow_task_started_event_attributes"):
                now = event.event_time.ToDatetime()
            elif (
                event.activity_task_scheduled_event_attributes.activity_type.name
                == "get_history_statuses_to_sync"
            ):
                orders.append(now)
    return orders


def too_close(polls: list[datetime]) -> int:
    """Return how many polls were too close to the previous one; the server's timers have whole
    milliseconds.
    """
    return sum(
        b - a < timedelta(seconds=MIN_GAP_SECONDS, milliseconds=-2) for a, b in pairwise(polls)
    )


async def _storm(testbed: WorkflowHarness, handle: Any) -> list[datetime]:
    """Wake the run repeatedly until it has polled three more times. Returns when it ordered its
    polls.
    """
    polls = await polled_at(testbed, handle)
    enough, end = len(polls) + 3, time.monotonic() + PATIENCE_S
    while len(polls) < enough:
        assert time.monotonic() < end, f"the polls did not come within {PATIENCE_S:g} s"
        await asyncio.gather(*(handle.signal("poll_now") for _ in range(5)))
        await asyncio.sleep(0.2)  # so it is reported four times in the gap between two polls
        polls = await polled_at(testbed, handle)
    return polls


async def test_a_storm_while_the_start_is_awaited_keeps_the_gap(
    real_testbed: WorkflowHarness,
) -> None:
    testbed = real_testbed
    testbed.cluster.behaviour = Behaviour(waits=1e7)
    handle = await testbed.start({"crawler": "books", "limits": {"start_check_s": 0.1}})
    await testbed.until(lambda: testbed.cluster.calls["poll"] >= 1)
    assert not too_close(await _storm(testbed, handle))
    await handle.signal("stop")
    assert (await handle.result()).outcome == "cancelled"
    assert len(testbed.scheduler.calls) == 1, "polling again deploys nothing again"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let executions continue as new during a poll and during the wait for the next one."""
    monkeypatch.setattr(calls, "HISTORY_MAX", 100)


async def test_a_storm_under_a_stop_keeps_the_gap(
    short: None, real_testbed: WorkflowHarness
) -> None:
    testbed = real_testbed
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await testbed.start(
        {**QUICK, "limits": {"start_check_s": 0.2, "force_stop_after_s": None}}
    )
    await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation")
    # The start is polled for more often than once a second.
    before = len(await polled_at(testbed, handle))
    await handle.signal("stop")
    await testbed.until(lambda: testbed.cluster.signals(1))
    polls = (await _storm(testbed, handle))[before:]
    assert too_close(polls) <= 1, "only a stop is looked after at once"
    testbed.cluster.end_now(1, end=SHUTDOWN)
    assert (await handle.result()).outcome == "cancelled"
    assert testbed.cluster.signals(1) == 1


async def test_a_storm_while_it_is_deployed_makes_no_second_call(
    real_testbed: WorkflowHarness,
) -> None:
    testbed, over = real_testbed, threading.Event()

    def slow(_: Deployment) -> None:
        assert over.wait(120)

    testbed.scheduler.before = slow
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start(QUICK)
    await testbed.until(lambda: testbed.scheduler.calls)
    for _ in range(3):
        await asyncio.gather(*(handle.signal("poll_now") for _ in range(5)))
    await handle.query("status")  # a workflow that knows all of them responds
    over.set()
    await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation")
    assert len(testbed.scheduler.calls) == 1
    await handle.signal("stop")
    await handle.result()


async def test_a_wake_up_is_not_forgotten_over_what_the_poll_frees_a_slot_for(
    real_testbed: WorkflowHarness,
) -> None:
    testbed = real_testbed
    testbed.cluster.behaviour = UNTIL_STOPPED
    polls = HeldPolls(testbed, "get_history_statuses_to_sync")
    request = {
        "crawler": "books",
        "tasks": [{}] * 3,
        "max_parallel_tasks": 2,
        "poll_minutes": [0.05, 60],
    }
    handle = await testbed.start({**request, "limits": {"start_check_s": 0.1}})
    await polls.inside()
    for index in range(2):
        testbed.cluster.end_now(1, index, end=FINISHED)
    before = await testbed.snapshot_where(handle, lambda _: True)
    await polls.wake(handle)
    # The one that was held and the one that is owed: the polling schedule's next one is an hour
    # away.
    await testbed.snapshot_where(handle, lambda s: s.polls >= before.polls + 2)
    assert list(testbed.tasks(1).values())[:2] == ["SUCCEEDED", "SUCCEEDED"]
    await handle.signal("stop")
    await handle.result()


#: One letter for each activity of a poll.
LETTERS = {
    "get_active_running_tasks": "a",
    "get_history_statuses_to_sync": "h",
    "get_bulk_task_history_data": "d",
    "reconcile_tasks": "d",
    "sync_statuses": "s",
    "count_alive_tasks": "c",
}


@pytest.mark.parametrize("former", [False, True])
async def test_a_former_build_that_may_return_can_replay_what_is_done(
    real_testbed: WorkflowHarness, former: bool
) -> None:
    """It polls after each wake-up, and fetches details before it records statuses."""
    if former:
        real_testbed.store.notes.leave_note(UPGRADE, "", "", utc_now() + timedelta(hours=1))
    real_testbed.cluster.behaviour = Behaviour(waits=0.3, executes=2)
    async with waking(real_testbed, "on"):
        await real_testbed.run(QUICK)
    history = await real_testbed.handles[-1].fetch_history()
    scheduled = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
    ]
    done = "".join(LETTERS.get(name, "") for name in scheduled)
    assert bool(re.fullmatch("(ah(dds)?c?)+", done)) is former, done
