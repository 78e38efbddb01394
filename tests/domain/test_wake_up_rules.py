"""The rules of wake-ups, against a world of runs whose workflows take looks with a gap between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from crawler_lifecycle.domain.wake_ups import PATIENCE_S, POLL_S, RETRY_MAX_S, Wake, Wakes, WakeUpState
from tests.support.examples import examples

START = datetime(2026, 3, 1, tzinfo=UTC)
GAP = 1.0
RUNS = st.integers(1, 3)


@dataclass
class Run:
    """A run in the database and its workflow."""

    ended: bool = False
    owned: bool = True
    verified: float | None = None
    wanted: bool = False
    look_began: float | None = None
    look_ends: float = 0.0
    look_takes: float = 0.1
    """Of the looks that begin from now on; one that is under way goes on as it began."""
    looked_for: float = 0.0
    """Seconds that the last look took, by which the gap after it goes."""
    changes: list[float] = field(default_factory=list)
    signals: list[tuple[float, float]] = field(default_factory=list)
    """When each came and what it covered, in seconds since the start."""


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class World(RuleBasedStateMachine):
    """Time passes in steps of a twentieth of a second; the waker works whenever something is due."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.runs = {run_id: Run() for run_id in (1, 2, 3)}
        self.wakes = Wakes()
        self.database = self.server = True
        self.meanwhile: int | None = None

    # --- what may happen

    @rule(run_id=RUNS, times=st.integers(1, 40), delay=st.sampled_from([0.0, 0.5]))
    def change(self, run_id: int, times: int, delay: float) -> None:
        for _ in range(times):
            self._change(run_id, delay)

    @rule(run_id=st.integers(90, 99))
    def change_of_nobody(self, run_id: int) -> None:
        self.wakes.changed(run_id, at(self.now), self.now)

    @rule(run_id=RUNS, back=st.floats(0, 5))
    def old_news(self, run_id: int, back: float) -> None:
        self.wakes.changed(run_id, at(self.now - back), self.now)

    @rule(run_id=RUNS)
    def end(self, run_id: int) -> None:
        self.runs[run_id].ended = True

    @rule(run_id=RUNS, takes=st.floats(0.01, 3))
    def alter(self, run_id: int, takes: float) -> None:
        self.runs[run_id].look_takes = takes

    @rule(run_id=RUNS)
    def look_by_the_ladder(self, run_id: int) -> None:
        self.runs[run_id].wanted = True

    @rule(database=st.booleans(), server=st.booleans())
    def outage(self, database: bool, server: bool) -> None:
        self.database, self.server = database, server

    @rule(seconds=st.floats(0.05, 10))
    def time_passes(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.05
            self._workflows()
            self._waker()

    @rule(run_id=RUNS, every=st.integers(1, 12), steps=st.integers(5, 60))
    def busy_time(self, run_id: int, every: int, steps: int) -> None:
        """A run that goes on changing while it is woken and looked at."""
        for step in range(steps):
            if step % every == 0:
                self._change(run_id)
            self.time_passes(0.05)

    @rule(run_id=RUNS)
    def change_while_it_is_signalled(self, run_id: int) -> None:
        self.meanwhile = run_id

    @rule()
    def everything_heals(self) -> None:
        """Once signals arrive again, every change is followed by a look at or after it."""
        self.database = self.server = True
        self.time_passes(RETRY_MAX_S + PATIENCE_S + 20)
        for run_id, run in self.runs.items():
            if not run.ended and run.changes:
                assert run.verified is not None, run_id
                assert run.verified >= run.changes[-1], run_id
        self.time_passes(PATIENCE_S + 1)
        assert len(self.wakes) == 0

    # --- what must hold

    @invariant()
    def no_more_signals_than_looks(self) -> None:
        """Never more than one in a gap, however much changes."""
        for run in self.runs.values():
            times = [when for when, _ in run.signals]
            for first, third in zip(times, times[2:], strict=False):
                assert third - first >= GAP - 1e-9

    # --- the others

    def _change(self, run_id: int, delay: float = 0.0) -> None:
        self.now += 0.001
        self.runs[run_id].changes.append(self.now)
        self.wakes.changed(run_id, at(self.now), self.now, delay)

    def _workflows(self) -> None:
        for run in self.runs.values():
            if run.look_began is not None and self.now >= run.look_ends:
                run.verified, run.look_began = run.look_began, None
                run.looked_for = run.look_ends - run.verified
            self._look(run)

    def _look(self, run: Run) -> None:
        """The workflow begins a look if one is wanted, none is under way, and the gap after the last one is over."""
        ready = run.verified is None or self.now - run.verified >= max(GAP, 2 * run.looked_for)
        if run.wanted and run.look_began is None and ready and not run.ended:
            run.wanted, run.look_began, run.look_ends = False, self.now, self.now + run.look_takes

    def _waker(self) -> None:
        due = self.wakes.due(self.now)
        if not due:
            return
        if not self.database:
            for run_id in due:
                self.wakes.failed(run_id, self.now)
            return
        for wake in self.wakes.decide(due, self._standings(due), self.now):
            self._signal(wake)

    def _standings(self, due: list[int]) -> list[WakeUpState]:
        return [
            WakeUpState(n, f"crawl/{n}", r.ended, None if r.verified is None else at(r.verified))
            for n, r in self.runs.items()
            if n in due
        ]

    def _signal(self, wake: Wake) -> None:
        run = self.runs[wake.run_id]
        assert not run.ended, "a run that ended was woken"
        assert wake.workflow_id == f"crawl/{wake.run_id}"
        if not self.server:
            self.wakes.failed(wake.run_id, self.now)
            return
        if run.signals:
            when, covered = run.signals[-1]
            answered = run.verified is not None and run.verified >= covered
            assert answered or self.now - when >= PATIENCE_S - 1e-9, "two wake-ups outstanding"
        run.signals.append((self.now, (wake.covers - START).total_seconds()))
        run.wanted = True
        if self.meanwhile == wake.run_id:
            self.meanwhile = None
            self._look(run)  # the look that this signal leads to may begin before the change
            self._change(wake.run_id)
        self.wakes.sent(wake, self.now)


TestWakeUps = World.TestCase
TestWakeUps.settings = settings(max_examples=examples(120), stateful_step_count=25)

#: Steps that a search found once, each with what was wrong: the rules, or the world that they are held against.
FOUND: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "a signal whose look begins before the change that comes with it": [
        ("busy_time", {"run_id": 2, "every": 4, "steps": 5}),
        ("change_while_it_is_signalled", {"run_id": 2}),
        ("everything_heals", {}),
    ],
}


@pytest.mark.parametrize("steps", FOUND.values(), ids=FOUND)
def test_what_was_found_once(steps: list[tuple[str, dict[str, Any]]]) -> None:
    world = World()
    for name, given in steps:
        getattr(world, name)(**given)
        world.no_more_signals_than_looks()


def standing(run_id: int = 1, **more: object) -> WakeUpState:
    known: dict[str, object] = {"workflow_id": "w", "ended": False, "verified_at": None}
    return WakeUpState(run_id, **{**known, **more})  # type: ignore[arg-type]


def test_a_change_is_sent_at_once_and_one_more_after_the_look() -> None:
    wakes = Wakes()
    assert wakes.changed(1, at(1), 1.0)
    assert wakes.due(1.0) == [1]
    (first,) = wakes.decide([1], [standing()], 1.0)
    wakes.sent(first, 1.0)
    assert not wakes.changed(1, at(2), 2.0)
    assert not wakes.changed(1, at(3), 2.0)
    assert wakes.decide(wakes.due(2 + POLL_S), [standing(verified_at=at(0.5))], 2 + POLL_S) == []
    (second,) = wakes.decide(wakes.due(3.0), [standing(verified_at=at(2.5))], 3.0)
    assert (first.covers, second.covers) == (at(1), at(3))


def test_what_the_look_has_seen_already_sends_nothing() -> None:
    wakes = Wakes()
    wakes.changed(1, at(1), 1.0)
    assert wakes.decide(wakes.due(1.0), [standing(verified_at=at(1))], 1.0) == []
    assert len(wakes) == 0


def test_a_change_while_the_signal_is_on_its_way_is_not_forgotten() -> None:
    wakes = Wakes()
    wakes.changed(1, at(1), 1.0)
    (first,) = wakes.decide(wakes.due(1.0), [standing()], 1.0)
    wakes.changed(1, at(1.5), 1.5)
    wakes.sent(first, 2.0)
    assert wakes.due(2 + POLL_S) == [1]
    (second,) = wakes.decide([1], [standing(verified_at=at(1.2))], 2 + POLL_S)
    assert second.covers == at(1.5)


def test_runs_that_cannot_be_woken_are_forgotten() -> None:
    wakes = Wakes()
    for run_id in (1, 2, 3, 4):
        wakes.changed(run_id, at(1), 1.0)
    told = [standing(1, ended=True), standing(2, workflow_id=None), standing(4)]
    (wake,) = wakes.decide(wakes.due(1.0), told, 1.0)
    assert wake.run_id == 4
    wakes.sent(wake, 1.0, heard=False)
    assert len(wakes) == 0


def test_the_one_who_waits_for_another_sends_only_what_was_not_seen() -> None:
    wakes = Wakes()
    wakes.changed(1, at(1), 1.0, delay=0.5)
    assert (wakes.due(1.2), wakes.next_at()) == ([], 1.5)
    assert wakes.decide(wakes.due(1.5), [standing(verified_at=at(1.3))], 1.5) == []


def test_ten_thousand_runs_are_served_in_pages() -> None:
    wakes = Wakes()
    for run_id in range(10_000):
        wakes.changed(run_id, at(1), run_id / 1e6)
    assert wakes.due(1.0) == list(range(500))
