"""Counters between the observer and the database: changes are written once, and no error ends this."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from crawler_lifecycle.domain.errors import ClusterUnavailable, RunNotFound, StoreUnavailable
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports.polls import LiveCounters, ObserverHealth
from crawler_lifecycle.worker import live_counters
from crawler_lifecycle.worker.live_counters import Counting
from tests.support.run_refs import run_ref


@dataclass
class Outside:
    """An observer and a database that report and accept what the test says."""

    told: list[LiveCounters] = field(default_factory=list)
    written: list[tuple[RunRef, list[LiveCounters]]] = field(default_factory=list)
    up: bool = True
    place: int = 0
    blind: Exception | None = None
    refusal: dict[int, Exception] = field(default_factory=dict)

    def health(self) -> ObserverHealth:
        return ObserverHealth(self.up, place=self.place)

    def counted(self) -> Sequence[LiveCounters]:
        if self.blind is not None:
            raise self.blind
        return list(self.told)

    def record_counts(self, run: RunRef, counted: Sequence[LiveCounters]) -> int:
        if run.run_id in self.refusal:
            raise self.refusal[run.run_id]
        self.written.append((run, list(counted)))
        return len(counted)


def one(run_id: int, pages: int, index: int = 0) -> LiveCounters:
    return LiveCounters(run_ref(run_id), 1, index, Counters(pages))


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.fixture
def helper(outside: Outside) -> Counting:
    return Counting(outside, outside)  # type: ignore[arg-type]


def test_what_moved_is_written_run_by_run_and_once(outside: Outside, helper: Counting) -> None:
    outside.told = [one(1, 5), one(2, 7), one(1, 3, index=1)]
    helper.turn()
    assert outside.written == [
        (run_ref(1), [one(1, 5), one(1, 3, index=1)]),
        (run_ref(2), [one(2, 7)]),
    ]
    helper.turn()
    outside.told[1] = one(2, 8)
    helper.turn()
    assert outside.written[2:] == [(run_ref(2), [one(2, 8)])]
    assert helper.state() == {"tasks": 3, "raised": 4, "problem": None}


def test_large_runs_are_written_in_pages(
    outside: Outside, helper: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_counters, "PAGE", 2)
    outside.told = [one(1, 5, index) for index in range(5)]
    helper.turn()
    assert [len(page) for _, page in outside.written] == [2, 2, 1]


@pytest.mark.parametrize("why", [{"up": False}, {"place": 1}])
def test_who_sees_nothing_or_is_not_the_first_does_not_count(
    outside: Outside, helper: Counting, why: dict[str, int]
) -> None:
    outside.told = [one(1, 5)]
    for name, value in why.items():
        setattr(outside, name, value)
    helper.turn()
    assert outside.written == []


def test_what_could_not_be_written_is_written_later(outside: Outside, helper: Counting) -> None:
    outside.told = [one(1, 5), one(2, 7), one(3, 9)]
    outside.refusal = {1: StoreUnavailable("read-only"), 2: RunNotFound("another database")}
    with pytest.raises(StoreUnavailable, match="read-only"):
        helper.turn()
    assert outside.written == [(run_ref(3), [one(3, 9)])]
    outside.refusal = {}
    helper.turn()
    assert outside.written[1:] == [(run_ref(1), [one(1, 5)])]


async def test_nothing_that_fails_ends_it(outside: Outside) -> None:
    helper = Counting(outside, outside, turn_s=0.01)  # type: ignore[arg-type]
    outside.told = [one(1, 5)]
    task = asyncio.create_task(helper.run())
    for trouble in (ClusterUnavailable("503"), OSError("no folder"), ValueError("a flaw of ours")):
        outside.blind = trouble
        while helper.state()["problem"] != str(trouble):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    outside.blind = None
    while not outside.written:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    while helper.state()["problem"] is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])


def test_tasks_that_nobody_speaks_of_are_forgotten(outside: Outside) -> None:
    now = 0.0
    helper = Counting(outside, outside, clock=lambda: now)  # type: ignore[arg-type]
    outside.told = [one(1, 5)]
    helper.turn()
    outside.told, now = [one(2, 5)], live_counters.FORGET_S
    helper.turn()
    assert helper.state()["tasks"] == 1
