"""How noticed changes are recorded: first the poll, then the signal, and no outage of one loses the
other.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawler_lifecycle.activities.poll_step import PollOutcome
from crawler_lifecycle.domain import wake_ups
from crawler_lifecycle.domain.errors import ClusterUnavailable, StoreUnavailable
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.wake_ups import Tasks, WakeUpState
from crawler_lifecycle.ports.polls import ObserverHealth
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.worker import recording
from crawler_lifecycle.worker.recording import Recording

Tell = Callable[[int, datetime, Tasks], None]


ONE: Tasks = frozenset({(0, 1)})


@dataclass
class Script:
    """An observer that reports what the test says."""

    place: int = 0
    tell: Tell | None = None
    ended: bool = False
    blind: bool = False

    def watch(self, changed: Tell, over: threading.Event) -> None:
        self.tell = changed
        over.wait()
        self.ended = True

    def health(self) -> ObserverHealth:
        return ObserverHealth(
            not self.blind and self.tell is not None and not self.ended, place=self.place
        )


@dataclass
class Outside:
    """The rows, the polls and the signals."""

    changed: int = 1
    """What each poll finds."""
    resumed: bool = False
    poll_s: float = 0.0
    targets: dict[int, WakeUpState] = field(default_factory=dict)
    polls: Counter[int] = field(default_factory=Counter)
    sources: set[str] = field(default_factory=set)
    few: list[Tasks] = field(default_factory=list)
    signals: list[tuple[str, bool]] = field(default_factory=list)
    down: dict[str, Exception] = field(default_factory=dict)

    def add(self, run_id: int, **more: Any) -> None:
        state = WakeUpState(
            RunRef(run_id, f"uid-{run_id}"), 1, f"crawl/{run_id}", "chain", False, None
        )
        self.targets[run_id] = replace(state, **more)

    def wake_target(self, run_id: int) -> WakeUpState | None:
        self._raise("database")
        return self.targets.get(run_id)

    def unverified(self, before: datetime) -> list[WakeUpState]:
        return [
            one for one in self.targets.values() if one.due_at is not None and one.due_at < before
        ]

    def record(self, fence: Fence, source: str, few: Tasks) -> PollOutcome | None:
        self._raise("cluster")
        time.sleep(self.poll_s)
        self.polls[fence.run_id] += 1
        self.sources.add(source)
        self.few.append(few)
        self.targets[fence.run_id] = replace(self.targets[fence.run_id], verified_at=now())
        return None if self.resumed else PollOutcome(self.changed, self.poll_s)

    async def notify(self, workflow_id: str, recorded: bool) -> bool:
        self._raise("temporal")
        self.signals.append((workflow_id, recorded))
        return True

    def _raise(self, what: str) -> None:
        if what in self.down:
            raise self.down[what]


@asynccontextmanager
async def running(
    observer: Script | None, outside: Outside
) -> AsyncIterator[tuple[Recording, Tell]]:
    found = Recording(observer, outside, outside, outside.notify)  # type: ignore[arg-type]
    task = asyncio.create_task(found.run())
    try:
        if observer is not None:
            await until(lambda: observer.tell)
        yield (
            found,
            observer.tell
            if observer is not None and observer.tell is not None
            else lambda *_: None,
        )
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=60)
        if observer is not None:
            await until(lambda: observer.ended)


async def until(condition: Callable[[], object], seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come within {seconds:g} s"
        await asyncio.sleep(0.005)


def now() -> datetime:
    return datetime.now(UTC)


async def test_a_change_is_one_poll_and_then_one_signal_to_the_owner() -> None:
    outside = Outside()
    outside.add(5, workflow_id="another/5")
    async with running(Script(), outside) as (found, tell):
        tell(5, now(), ONE)
        await until(lambda: outside.signals)
        assert (outside.polls, outside.signals, outside.sources) == (
            {5: 1},
            [("another/5", True)],
            {"wake"},
        )
        assert outside.few == [ONE]
        assert found.counts == {"noticed": 1, "recorded": 1, "sent": 1, "coalesced": 0, "failed": 0}
        assert (found.state()["observer"], found.state()["unsent"]) == ("up", 0)


async def test_a_poll_that_found_nothing_signals_nobody() -> None:
    outside = Outside(changed=0)
    outside.add(1)
    async with running(Script(), outside) as (found, tell):
        tell(1, now(), ONE)
        await until(lambda: found.counts["recorded"])
        outside.changed = 1
        tell(1, now(), ONE)
        await until(lambda: outside.signals)
    assert outside.signals == [("crawl/1", True)]


@pytest.mark.parametrize("row", [{"ended": True}, {"workflow_id": None}, None])
async def test_a_run_that_nobody_owns_is_not_polled_at(row: dict[str, Any] | None) -> None:
    outside = Outside()
    outside.add(2)
    if row is not None:
        outside.add(1, **row)
    async with running(Script(), outside) as (_, tell):
        tell(1, now(), ONE)
        tell(2, now(), ONE)
        await until(lambda: outside.signals)
    assert outside.polls == {2: 1}


async def test_a_run_that_was_just_resumed_is_left_to_its_workflow() -> None:
    outside = Outside(resumed=True)
    outside.add(1)
    async with running(Script(), outside) as (_, tell):
        tell(1, now(), ONE)
        await until(lambda: outside.signals)
    assert outside.signals == [("crawl/1", False)]


async def test_a_thousand_changes_of_a_run_are_few_polls_and_the_last_one_is_seen() -> None:
    outside = Outside(poll_s=0.05)
    outside.add(1)
    async with running(Script(), outside) as (found, tell):
        for _ in range(1000):
            last = now()
            tell(1, last, ONE)
            await asyncio.sleep(0)
        await until(lambda: (outside.targets[1].verified_at or last) > last)
        await until(lambda: found.counts["noticed"] == 1000)
    assert outside.polls[1] < 100
    assert found.counts["coalesced"] > 900


@pytest.mark.parametrize("what", ["database", "cluster"])
async def test_what_cannot_be_recorded_is_left_to_the_workflow_and_tried_again(what: str) -> None:
    outside = Outside()
    outside.add(1)
    outside.down[what] = (
        StoreUnavailable("down") if what == "database" else ClusterUnavailable("503")
    )
    async with running(Script(), outside) as (found, tell):
        tell(1, now(), ONE)
        await until(lambda: found.counts["failed"] >= 2)
        # Without the database, the workflow is unknown, and polls as planned.
        assert outside.signals == ([] if what == "database" else [("crawl/1", False)])
        del outside.down[what]
        await until(lambda: ("crawl/1", True) in outside.signals)
        assert found.state()["problem"] is None


@pytest.mark.parametrize("sign", ["the observer sees again", "another run can be polled"])
async def test_the_end_of_an_outage_is_the_end_of_the_waits(
    sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_ups, "RETRY_S", 3600.0)
    monkeypatch.setattr(wake_ups, "RETRY_MAX_S", 3600.0)
    outside, observer = Outside(), Script()
    outside.add(1)
    outside.add(2)
    outside.down["cluster"] = ClusterUnavailable("503")
    async with running(observer, outside) as (found, tell):
        observer.blind = sign == "the observer sees again"
        tell(1, now(), ONE)
        await until(lambda: found.counts["failed"])
        del outside.down["cluster"]
        if observer.blind:
            await until(lambda: not found.health().up)
            await asyncio.sleep(
                2 * recording.HEALTH_S
            )  # it was noticed that the observer cannot watch
            observer.blind = False
        else:
            tell(2, now(), ONE)
        await until(lambda: outside.polls[1])


async def test_statuses_are_recorded_while_temporal_is_away_and_no_signal_is_lost() -> None:
    outside = Outside()
    for run_id in range(1, 31):
        outside.add(run_id)
    outside.down["temporal"] = RuntimeError("no connection")
    async with running(Script(), outside) as (found, tell):
        for run_id in range(1, 31):
            tell(run_id, now(), ONE)
        await until(lambda: len(outside.polls) == 30)
        await until(lambda: found.counts["failed"])
        await until(lambda: found.state()["unsent"] == 30)
        assert outside.signals == []
        del outside.down["temporal"]
        await until(lambda: len(outside.signals) == 30)


async def test_a_signal_without_an_answer_is_sent_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that comes back never answers a call whose bytes a proxy has lost."""
    outside, lost = Outside(), asyncio.Event()
    outside.add(1)
    answer = outside.notify

    async def notify(workflow_id: str, recorded: bool) -> bool:
        if not lost.is_set():
            lost.set()
            await asyncio.Event().wait()
        return await answer(workflow_id, recorded)

    monkeypatch.setattr(outside, "notify", notify)
    monkeypatch.setattr(recording, "SEND_S", 0.05)
    async with running(Script(), outside) as (found, tell):
        tell(1, now(), ONE)
        await until(lambda: outside.signals)
        assert found.counts["failed"] == 1
    assert outside.signals == [("crawl/1", True)]


async def test_a_poll_that_does_not_come_is_done_without_an_observer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "SEARCH_S", 0.05)
    outside = Outside(changed=0)
    due = now() - timedelta(seconds=recording.LATE_S + 1)
    outside.add(1, next_look_at=due)
    outside.add(2, next_look_at=due + timedelta(hours=1))
    async with running(None, outside):
        await until(lambda: outside.polls)
    assert (outside.polls, outside.sources, outside.few) == ({1: 1}, {"look"}, [None])


async def test_the_second_observer_polls_only_at_what_the_first_has_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "STAGGER_S", 0.01)
    outside = Outside()
    at = now()
    outside.add(1, verified_at=at)
    outside.add(2, verified_at=at - timedelta(seconds=1))
    async with running(Script(place=1), outside) as (_, tell):
        tell(1, at, ONE)
        tell(2, at, ONE)
        await until(lambda: outside.signals)
    assert outside.polls == {2: 1}
