"""The waker between an observer, the database and Temporal: few signals, never a wrong one, and no end of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.wake_ups import WakeUpState
from crawler_lifecycle.ports.looks import ObserverHealth
from crawler_lifecycle.worker import wake_ups
from crawler_lifecycle.worker.wake_ups import Waker

Tell = Callable[[int, datetime], None]


@dataclass
class Script:
    """An observer that tells what the test says."""

    place: int = 0
    tell: Tell | None = None
    ended: bool = False

    def watch(self, changed: Tell, over: threading.Event) -> None:
        self.tell = changed
        over.wait()
        self.ended = True

    def health(self) -> ObserverHealth:
        return ObserverHealth(self.tell is not None and not self.ended, place=self.place)


@dataclass
class Outside:
    """The database's answers and the workflows that are signalled. A signal leads to a look after ``look_s``."""

    look_s: float | None = 0.02
    gap_s: float = 0.2
    targets: dict[int, WakeUpState] = field(default_factory=dict)
    signals: Counter[str] = field(default_factory=Counter)
    error: Exception | None = None
    refusal: Exception | None = None
    asked: list[Sequence[int]] = field(default_factory=list)
    wanted: set[str] = field(default_factory=set)

    def add(self, run_id: int, **more: Any) -> None:
        self.targets[run_id] = replace(WakeUpState(run_id, f"crawl/{run_id}", False, None), **more)

    def wake_targets(self, run_ids: Sequence[int]) -> list[WakeUpState]:
        if self.error is not None:
            raise self.error
        self.asked.append(list(run_ids))
        return [self.targets[run_id] for run_id in run_ids if run_id in self.targets]

    async def wake(self, workflow_id: str) -> bool:
        if self.refusal is not None:
            raise self.refusal
        self.signals[workflow_id] += 1
        if self.look_s is not None and workflow_id not in self.wanted:
            self.wanted.add(workflow_id)
            asyncio.get_running_loop().call_later(self.gap_s, self._look, workflow_id)
        return True

    def _look(self, workflow_id: str) -> None:
        self.wanted.discard(workflow_id)
        run_id, now = int(workflow_id.rpartition("/")[2]), datetime.now(UTC)
        done = replace(self.targets[run_id], verified_at=now)
        asyncio.get_running_loop().call_later(self.look_s or 0, self.targets.__setitem__, run_id, done)


@asynccontextmanager
async def running(
    observer: Script, outside: Outside, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[tuple[Waker, Tell]]:
    waker = Waker(observer, outside, outside.wake, clock=clock)  # type: ignore[arg-type]
    task = asyncio.create_task(waker.run())
    try:
        await until(lambda: observer.tell)
        assert observer.tell is not None
        yield waker, observer.tell
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=60)
        await until(lambda: observer.ended)


async def until(condition: Callable[[], object], seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come within {seconds:g} s"
        await asyncio.sleep(0.005)


def now() -> datetime:
    return datetime.now(UTC)


async def test_a_change_is_one_signal_to_the_owner() -> None:
    outside = Outside()
    outside.add(5, workflow_id="another/5")
    async with running(Script(), outside) as (waker, tell):
        tell(5, now())
        await until(lambda: outside.signals)
        await asyncio.sleep(0.3)
        assert outside.signals == {"another/5": 1}
        assert waker.counts == {"noticed": 1, "sent": 1, "coalesced": 0}
        assert waker.state()["observer"] == "up"


async def test_a_thousand_changes_a_second_are_one_signal_a_look() -> None:
    outside = Outside(gap_s=0.2)
    outside.add(1)
    outside.add(2)
    last: dict[int, datetime] = {}

    def storm(tell: Tell) -> None:
        for n in range(1000):
            run_id = 1 + n % 2
            last[run_id] = now()
            tell(run_id, last[run_id])
            time.sleep(0.001)

    async with running(Script(), outside) as (waker, tell):
        began = time.monotonic()
        await asyncio.to_thread(storm, tell)
        await until(lambda: (outside.targets[1].verified_at or last[1]) > last[1])
        await until(lambda: (outside.targets[2].verified_at or last[2]) > last[2])
        await until(lambda: waker.counts["noticed"] == 1000)
        looks = (time.monotonic() - began) / outside.gap_s + 2
        assert max(outside.signals.values()) <= looks
        assert waker.counts["coalesced"] >= 1000 - 2 * looks


@pytest.mark.parametrize("where", ["database", "temporal"])
async def test_an_outage_delays_a_signal_and_loses_none(where: str) -> None:
    outside = Outside()
    outside.add(1)
    trouble = StoreUnavailable("it is down") if where == "database" else RuntimeError("no connection")
    if where == "database":
        outside.error = trouble
    else:
        outside.refusal = trouble
    async with running(Script(), outside) as (waker, tell):
        tell(1, now())
        await until(lambda: waker.counts["failed"] >= 2)
        assert outside.signals == {}
        outside.error = outside.refusal = None
        await until(lambda: outside.signals == {"crawl/1": 1})


async def test_the_second_observer_leaves_the_first_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = Outside(gap_s=0.01)
    outside.add(1)
    first, second, moment = Script(place=0), Script(place=1), [0.0]
    async with running(first, outside) as (_, tell), running(second, outside, lambda: moment[0]) as (later, tell_too):
        at = now()
        tell_too(1, at)
        await until(lambda: later.counts["noticed"])
        tell(1, at)
        await until(lambda: outside.targets[1].verified_at)
        assert len(outside.asked) == 1, "the second one has not asked yet"
        moment[0] = wake_ups.STAGGER_S
        await until(lambda: len(outside.asked) == 2)
        await asyncio.sleep(0.1)
        assert outside.signals == {"crawl/1": 1}
        assert later.counts["sent"] == 0
    monkeypatch.setattr(wake_ups, "STAGGER_S", 0.1)
    alone = Script(place=1)
    async with running(alone, outside) as (_, tell):
        tell(1, now())
        await until(lambda: outside.signals == {"crawl/1": 2})
