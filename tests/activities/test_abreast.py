"""Many concurrent calls: each gets a response, and a call that hangs does not block others."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from crawler_lifecycle.activities import abreast
from crawler_lifecycle.activities.abreast import Abreast
from tests.support.testbed import PATIENCE_S


@dataclass
class Clock:
    """A clock that advances only while hanging calls are the only ones in progress, so that a slow
    machine makes no call slow.
    """

    on_its_way: Callable[[], bool]
    now: float = 0.0
    answers: SimpleQueue[Any] = field(default_factory=SimpleQueue)

    def monotonic(self) -> float:
        return self.now

    def get(self, timeout: float) -> Any:
        if self.on_its_way():
            return self.answers.get(timeout=PATIENCE_S)
        self.now += timeout
        raise Empty

    def __getattr__(self, name: str) -> Any:
        return getattr(self.answers, name)


def test_every_call_is_told_with_its_error() -> None:
    def call(item: int) -> int:
        if item % 10 == 3:
            raise ValueError(f"not {item}")
        return item * 2

    told = dict(Abreast(call, width=4).over(range(100)))
    assert len(told) == 100
    assert all(told[n] == 2 * n for n in range(100) if n % 10 != 3)
    assert str(told[13]) == "not 13"


def test_no_more_than_the_width_at_once_and_items_are_taken_late() -> None:
    lock, now, most = threading.Lock(), [0], [0]
    taken: list[int] = []

    def items() -> Iterator[int]:
        for n in range(40):
            taken.append(n)
            yield n

    def call(_: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.002)
        with lock:
            now[0] -= 1
            return len(taken)

    told = list(Abreast(call, width=5).over(items()))
    assert len(told) == 40
    assert most[0] <= 5
    assert min(seen for _, seen in told if isinstance(seen, int)) <= 5


def test_calls_that_hang_keep_no_other_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more hanging calls than threads, and they come first."""
    over = threading.Event()

    def call(item: int) -> int:
        if item < 6:
            over.wait()
        return item

    clock = Clock(lambda: any(number > 6 for number in calls._busy))  # the first call has number 1
    monkeypatch.setattr(abreast, "time", clock)
    monkeypatch.setattr(abreast, "SimpleQueue", lambda: clock)
    calls = Abreast(call, width=3, slow_s=5)
    try:
        told = {item for item, _ in calls.over(range(50))}
    finally:
        over.set()
    assert told == set(range(6, 50))
    assert calls.slow == 6
    assert clock.now == 10, "the first three, and the second three"


def test_when_too_many_hang_the_rest_is_left() -> None:
    over = threading.Event()
    calls = Abreast(lambda item: over.wait(), width=2, slow_s=0.02, most=5)
    try:
        assert list(calls.over(range(50))) == []
    finally:
        over.set()
    assert calls.slow == 5


def test_what_the_caller_has_in_its_context_is_there() -> None:
    word = contextvars.ContextVar("word", default="none")
    word.set("run 7")
    assert [told for _, told in Abreast(lambda _: word.get()).over(range(3))] == ["run 7"] * 3


def test_an_error_of_the_items_is_raised() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise RuntimeError("the database is away")

    with pytest.raises(RuntimeError, match="the database is away"):
        list(Abreast(lambda item: item).over(items()))
