"""How far polls stretch their intervals: never below the polling schedule or beyond its last step,
as much as an overload needs, and back.
"""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.polling_schedule import (
    MIN_GAP_SECONDS,
    OVERLOADED_S,
    OVERLOADED_SHARE,
    POLLING_MINUTES,
    STRETCH_MAX,
    stretched,
)
from crawler_lifecycle.domain.waiting import stretch_of, stretch_words

LONGEST_S = POLLING_MINUTES[-1] * 60
FACTORS = st.floats(1, 1000)


def late_of(gap_s: float) -> float:
    """Return how late a poll is by overload."""
    return max(OVERLOADED_S, gap_s * OVERLOADED_SHARE)


@given(st.floats(MIN_GAP_SECONDS, 1e6), FACTORS, st.floats(0, 1000))
def test_an_interval_gets_no_shorter_and_ends_with_the_ladder(
    gap_s: float, before: float, late_s: float
) -> None:
    found = stretched(gap_s, before, late_s)
    assert gap_s <= found <= max(gap_s, min(LONGEST_S, STRETCH_MAX * gap_s))
    assert found <= stretched(gap_s, before, late_of(gap_s))


@given(st.floats(MIN_GAP_SECONDS, LONGEST_S), st.floats(1, 20))
def test_without_an_overload_every_interval_comes_back_to_its_schedule(
    gap_s: float, factor: float
) -> None:
    for _ in range(15):
        factor = stretched(gap_s, factor, OVERLOADED_S / 2) / gap_s
    assert factor == 1
    assert stretch_words(factor) is None


@pytest.mark.parametrize(
    ("gap_s", "late_s", "found"), [(1.2, 0.3, 2.4), (5, 0.9, 5), (5, 1, 10), (60, 11, 60)]
)
def test_a_moment_is_no_overload_of_a_long_interval(
    gap_s: float, late_s: float, found: float
) -> None:
    assert stretched(gap_s, 1, late_s) == pytest.approx(found)


@given(FACTORS)
def test_the_words_say_the_stretch_and_are_read_again(factor: float) -> None:
    assert stretch_of(stretch_words(factor)) == pytest.approx(factor, abs=0.0501)


@pytest.mark.parametrize(
    "text", [None, "", "polls", "polls x times their interval", "polls 2 times", "waiting: polls"]
)
def test_any_other_text_is_no_stretch(text: str | None) -> None:
    assert stretch_of(text) == 1


class Queue:
    """One server for the polls of ``runs`` runs, first come, first served, in virtual time."""

    def __init__(self, runs: int, interval_s: float, each_s: float) -> None:
        self.interval_s, self.each_s = interval_s, each_s
        self._due = [(number * interval_s / runs, number) for number in range(runs)]
        self._words: list[str | None] = [None] * runs
        self._free_at = 0.0

    def until(self, end_s: float) -> list[float]:
        """Return how long each poll has waited up to this time."""
        waits = []
        while self._due[0][0] < end_s:
            due_at, number = heapq.heappop(self._due)
            begins = max(due_at, self._free_at)
            self._free_at = begins + self.each_s
            waits.append(begins - due_at)
            gap_s = stretched(self.interval_s, stretch_of(self._words[number]), begins - due_at)
            self._words[number] = stretch_words(gap_s / self.interval_s)
            heapq.heappush(self._due, (self._free_at + gap_s, number))
        return waits

    def stretches(self) -> list[float]:
        return [stretch_of(words) for words in self._words]


@pytest.mark.parametrize(("runs", "interval_s"), [(80, 1.2), (400, 5.0), (10_000, 60.0)])
def test_a_lasting_overload_ends_after_a_few_polls_of_each_run(
    runs: int, interval_s: float
) -> None:
    """At least twice what the worker can do.

    It then has time for other work, which waits behind a short queue.
    """
    queue = Queue(runs, interval_s, each_s=0.03)
    queue.until(20 * interval_s)
    later = sorted(queue.until(60 * interval_s))
    assert later[len(later) // 2] < interval_s / 2
    assert later[len(later) * 9 // 10] < 1.2 * interval_s
    assert 0.3 < len(later) * queue.each_s / (40 * interval_s) < 0.8, (
        "the share of its time that polls take"
    )


def test_an_outage_after_which_all_come_at_once_stretches_little_and_not_for_long() -> None:
    queue = Queue(200, 60.0, each_s=0.03)
    queue.until(300)
    assert max(queue.stretches()) == 1
    queue._free_at = 900.0
    queue.until(930)
    assert max(queue.stretches()) == 2
    queue.until(1800)
    assert max(queue.stretches()) < 1.5
    queue.until(3600)
    assert max(queue.stretches()) == 1
