"""Worker polling: how it ends, and slots of workflow tasks: starts take none of cached workflows,
and none is lost.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crawler_lifecycle.worker import polling
from crawler_lifecycle.worker.polling import Lag, Polling, WorkflowSlots

NOW = datetime.now(UTC)


def polls(sticky: bool) -> Any:
    return SimpleNamespace(slot_type="workflow", is_sticky=sticky)


def of(permit: Any, info: Any = None) -> Any:
    return SimpleNamespace(slot_info=info, permit=permit)


async def waits(slots: WorkflowSlots, sticky: bool) -> bool:
    """Return whether the next poll for workflow tasks of this kind waits."""
    poll = asyncio.create_task(slots.reserve_slot(polls(sticky)))
    for _ in range(10):
        await asyncio.sleep(0)
    waited = not poll.done()
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)
    return waited


async def pauses(lag: Lag, sticky: bool = False) -> bool:
    """Return whether the next poll waits although every slot is free, after a run has begun."""
    lag.note(waited(0, polling.BEGINNING))
    return await waits(WorkflowSlots(lag), sticky)


async def test_a_burst_of_starts_takes_no_slot_of_a_remembered_run() -> None:
    slots = WorkflowSlots(Lag(), remembered=2, taken_up=1)
    assert await slots.reserve_slot(polls(False))
    starts = [asyncio.create_task(slots.reserve_slot(polls(False))) for _ in range(50)]
    await asyncio.sleep(0)
    assert not any(start.done() for start in starts)
    async with asyncio.timeout(60):
        remembered = [await slots.reserve_slot(polls(True)) for _ in range(2)]
    assert await waits(slots, sticky=True)
    slots.release_slot(of(remembered[0]))
    async with asyncio.timeout(60):
        assert await slots.reserve_slot(polls(True))
    for start in starts:
        start.cancel()
    await asyncio.gather(*starts, return_exceptions=True)


def waited(seconds: float, activity_type: str = "sync_statuses") -> Any:
    """Return an activity that began this long after it was scheduled."""
    times = {
        "started_time": NOW + timedelta(seconds=seconds),
        "current_attempt_scheduled_time": NOW,
    }
    return SimpleNamespace(activity_type=activity_type, **times)


async def test_starts_pause_while_steps_wait_in_temporals_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polling, "PACED_S", 3600.0)
    lag = Lag()
    assert not await pauses(lag)
    for _ in range(40):
        lag.note(waited(0.5))
    assert await pauses(lag)
    assert not await pauses(lag, sticky=True)
    for _ in range(40):
        lag.note(waited(0))  # with the response to a step
    assert await pauses(lag)
    lag.note(waited(0, polling.BEGINNING))
    start = asyncio.create_task(WorkflowSlots(lag).reserve_slot(polls(False)))
    await asyncio.sleep(0)
    for _ in range(40):
        lag.note(waited(0.01))
    async with asyncio.timeout(60):
        assert await start


async def test_steps_of_begun_runs_that_left_the_cache_do_not_pause() -> None:
    lag = Lag()
    for _ in range(40):
        lag.note(waited(0.5))
    slots = WorkflowSlots(lag)
    assert not await waits(slots, sticky=False), "no run has begun"
    lag.note(waited(0.5, polling.BEGINNING))
    assert await waits(slots, sticky=False)
    assert not await waits(slots, sticky=False), "one pause for each run that begins"


async def test_a_start_pauses_for_a_limited_time() -> None:
    lag = Lag()
    for _ in range(40):
        lag.note(waited(0.5))
    async with asyncio.timeout(60):
        lag.note(waited(0.5, polling.BEGINNING))
        assert await WorkflowSlots(lag).reserve_slot(polls(False))


async def test_what_waited_through_an_outage_is_soon_forgotten() -> None:
    lag = Lag()
    for seconds in [3600.0] * 40 + [0.01] * 40:
        lag.note(waited(seconds))
    assert not await pauses(lag)


async def test_first_come_first_served() -> None:
    slots = WorkflowSlots(Lag(), remembered=1, taken_up=1)
    held = await slots.reserve_slot(polls(True))
    served: list[int] = []

    async def one(number: int) -> None:
        permit = await slots.reserve_slot(polls(True))
        served.append(number)
        slots.release_slot(of(permit))

    waiting = [asyncio.create_task(one(number)) for number in range(20)]
    await asyncio.sleep(0)
    slots.release_slot(of(held))
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
    assert served == list(range(20))


@pytest.mark.parametrize("handed_over", [False, True], ids=["before its turn", "at its turn"])
async def test_a_poll_that_is_cancelled_gives_its_slot_on(handed_over: bool) -> None:
    slots = WorkflowSlots(Lag(), remembered=1, taken_up=1)
    held = await slots.reserve_slot(polls(True))
    waiting = asyncio.create_task(slots.reserve_slot(polls(True)))
    await asyncio.sleep(0)
    if handed_over:
        slots.release_slot(of(held))
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if not handed_over:
        slots.release_slot(of(held))
    async with asyncio.timeout(60):
        assert await slots.reserve_slot(polls(True))


async def test_slots_come_back_from_other_threads() -> None:
    """As from the SDK's own threads.

    All are reused again and again, never more at once than exist, and none is lost.
    """
    slots = WorkflowSlots(Lag(), remembered=3, taken_up=1)
    at_once, most, lock = 0, 0, threading.Lock()

    def work(permit: Any) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        with lock:
            at_once -= 1
        slots.release_slot(of(permit))

    async def lane() -> None:
        for _ in range(100):
            await asyncio.to_thread(work, await slots.reserve_slot(polls(True)))

    async with asyncio.timeout(60):
        await asyncio.gather(*(lane() for _ in range(8)))
    assert 1 <= most <= 3
    async with asyncio.timeout(60):
        assert [await slots.reserve_slot(polls(True)) for _ in range(3)]
    assert await waits(slots, sticky=True)


@pytest.mark.asyncio
async def test_managers_are_told_before_nobody_takes_their_cycles_any_more() -> None:
    done: list[str] = []
    told = asyncio.Event()

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        async def shutdown(self) -> None:
            done.append(self.name)
            told.set()

    async def tell() -> None:
        await told.wait()
        done.append("told")

    async with AsyncExitStack() as stack:
        polling = Polling(cast(Any, None), cast(Any, None), None, stack)
        polling._workers, polling._own = cast(Any, [Named("all others")]), cast(Any, Named("own"))
        await polling.leave(tell())
    assert done == ["all others", "told", "own"]
