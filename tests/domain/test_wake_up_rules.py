"""The rules of polls and signals without a workflow: none is lost, and none comes too often."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from crawler_lifecycle.domain.wake_ups import (
    AGAIN_S,
    REST_S,
    RETRY_MAX_S,
    SIGNAL_GAP_S,
    Change,
    Changes,
    Signal,
    Signals,
)
from tests.support.examples import examples

START = datetime(2026, 3, 1, tzinfo=UTC)
RUNS = st.integers(1, 3)


class Harness(RuleBasedStateMachine):
    """Runs change, polls take time and fail, and time advances in steps of a twentieth of a second."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.number = 0.0, 0
        self.changes = Changes()
        self.open: dict[int, int] = {}
        """The newest change of each run that no poll has seen."""
        self.polling: dict[int, tuple[float, int]] = {}
        self.ended: dict[int, tuple[float, float]] = {}
        self.takes, self.failing = 0.1, False

    @rule(run_id=RUNS, times=st.integers(1, 20), delay=st.sampled_from([0.0, 0.5]))
    def change(self, run_id: int, times: int, delay: float) -> None:
        for _ in range(times):
            self.number += 1
            self.open[run_id] = self.number
            self.changes.noticed(run_id, self._change(), self.now, delay)

    @rule(run_id=RUNS)
    def overdue(self, run_id: int) -> None:
        self.changes.noticed(run_id, Change(tasks=None), self.now)

    @rule()
    def an_outage_may_be_over(self) -> None:
        self.changes.retry_now(self.now)

    @rule(takes=st.floats(0.01, 3), failing=st.booleans())
    def alter(self, takes: float, failing: bool) -> None:
        self.takes, self.failing = takes, failing

    @rule(seconds=st.floats(0.05, 5))
    def time_passes(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.05
            self._finish()
            for run_id, change in self.changes.take(self.now, 2 - len(self.polling)):
                assert run_id not in self.polling, "a run is polled by one at a time"
                before, took = self.ended.get(run_id, (-100.0, 0.0))
                assert self.now - before >= max(REST_S, 2 * took) - 1e-9
                covered = change.tasks is None or self.open.get(run_id, 0) in {
                    index for index, _ in change.tasks
                }
                assert covered or run_id not in self.open, "a task that changed is left out"
                self.polling[run_id] = (self.now + self.takes, self.open.get(run_id, 0))

    def _change(self) -> Change:
        return Change(START + timedelta(seconds=self.number), frozenset({(self.number, 1)}))

    def _finish(self) -> None:
        for run_id, (until, covers) in list(self.polling.items()):
            if until > self.now:
                continue
            del self.polling[run_id]
            if self.failing:
                self.changes.failed(run_id, Change(START, frozenset({(covers, 1)})), self.now)
                continue
            self.changes.polled(run_id, self.now, self.takes)
            self.ended[run_id] = (self.now, self.takes)
            if self.open.get(run_id, 0) <= covers:
                self.open.pop(run_id, None)

    @rule()
    def everything_heals(self) -> None:
        self.failing, self.takes = False, 0.1
        self.time_passes(60)
        assert not self.open, "a change was never polled"
        self.time_passes(1)
        assert len(self.changes) == 0, "a run is remembered for ever"

    @invariant()
    def next_is_never_in_the_past_of_what_is_due(self) -> None:
        assert self.changes.next_at() >= 0


Harness.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestHarness = Harness.TestCase


def test_the_end_of_an_outage_ends_the_waits_and_a_sick_run_is_still_polled_at_rarely() -> None:
    changes = Changes()
    changes.noticed(1, Change(START), 0.0)
    now = 0.0
    for _ in range(8):
        [(run_id, change)] = changes.take(now, 5)
        changes.failed(run_id, change, now)
        now = changes.next_at()
    failed_at = now - RETRY_MAX_S
    changes.retry_now(failed_at + 0.1)
    assert changes.next_at() == failed_at + AGAIN_S
    changes.retry_now(failed_at + 5)
    assert changes.take(failed_at + 5, 5)


def test_a_poll_that_is_needed_again_comes_without_a_change() -> None:
    changes = Changes()
    one = Change(START, frozenset({(0, 1)}))
    changes.noticed(1, one, 0.0)
    assert changes.take(0.0, 5) == [(1, one)]
    changes.polled(1, 0.1, 0.01, again_s=6.0)
    assert changes.next_at() == 6.1
    assert changes.take(6.1, 5) == [(1, Change(tasks=None))]


def test_a_signal_waits_for_its_delivery_and_a_run_gets_one_a_second() -> None:
    signals, signal = Signals(), Signal(1, "crawl/1", True)
    signals.add(signal)
    [first] = signals.due(0.0, 9)
    assert signals.due(0.0, 9) == [first] == [signal], "it was not delivered"
    signals.add(signal)
    signals.sent(first, 0.0)
    assert len(signals) == 1, "what came while the first was sent is sent after it"
    assert signals.due(0.5, 9) == []
    assert signals.next_at() == SIGNAL_GAP_S
    [second] = signals.due(SIGNAL_GAP_S, 9)
    signals.sent(second, 1.0)
    assert len(signals) == 0


def test_a_wanted_poll_stays_wanted() -> None:
    signals = Signals()
    for recorded in (True, False, True):
        signals.add(Signal(1, "crawl/1", recorded))
    assert signals.due(0.0, 9) == [Signal(1, "crawl/1", False)]
