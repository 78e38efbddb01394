"""Background loops: their pauses, what they log, and that only an end ends them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.background import DONE, JITTER, Beside, Failures, Loop
from crawler_lifecycle.domain.errors import ClusterUnavailable, StoreUnavailable

Outcome = float | None | Exception


class Gone(OSError):
    """Nobody is there, and a try costs nothing."""

    retry_within_s = 1.5


GONE = Gone("nobody is there")
OUTCOMES = st.one_of(
    st.none(),
    st.floats(0, 100),
    st.sampled_from(
        [
            ClusterUnavailable("away"),
            StoreUnavailable("locked"),
            OSError("no disk"),
            KeyError("ours"),
            GONE,
        ]
    ),
)


class Script:
    """The outcomes of turns, one after the other; then the end."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.left = list(outcomes)

    def __call__(self) -> float | None:
        outcome = self.left.pop(0) if self.left else DONE
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def soon(self) -> float | None:
        return self()


class Time(threading.Event):
    """An event that nobody sets, on a clock that advances only while somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now += timeout
        return self.is_set()


class Jumping(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer if there is nothing else to do."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def play(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=Jumping) as runner:
        return runner.run(main)


@contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    """Return what the loops log meanwhile; Hypothesis has no fixtures for each example."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger("crawler_lifecycle.background")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield records
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def expected(
    outcomes: list[Outcome], every: float, first: float, retry: tuple[float, float]
) -> list[float]:
    """Return the documented pauses, without jitter."""
    pauses, row = [first], 0.0
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            most = min(retry[1], 1.5) if outcome is GONE else retry[1]
            pauses.append(min(2 * row if row else retry[0], most))
            row = pauses[-1]
        else:
            pauses.append(every if outcome is None else outcome)
            row = 0.0
    return pauses


def rows(outcomes: list[Outcome]) -> tuple[int, int]:
    """Return how many failures are reported, and how many ends of failures."""
    told, ends, kinds = 0, 0, set[type]()
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            told += type(outcome) not in kinds
            kinds.add(type(outcome))
        else:
            ends += bool(kinds)
            kinds.clear()
    return told, ends


@given(
    st.lists(OUTCOMES, max_size=40), st.sampled_from([None, (0.5, 3.0), (5.0, 60.0)]), st.booleans()
)
def test_pauses_and_log_lines_are_those_of_the_rules(
    outcomes: list[Outcome], retry: tuple[float, float] | None, in_thread: bool
) -> None:
    time = Time()
    with logged() as records:
        if in_thread:
            loop = Loop("work", 7.0, first_s=2.0, retry_s=retry, clock=lambda: time.now)
            loop.run_in_thread(Script(outcomes), time)
            waits = time.waits
        else:
            waits = play(recorded(outcomes, retry))
    pauses = expected([*outcomes], 7.0, 2.0, retry or (1.0, 7.0))
    assert len(waits) == len(pauses)
    for wait, pause in zip(waits, pauses, strict=True):
        assert JITTER * pause - 1e-6 <= wait <= pause + 1e-6
    told, ends = rows([*outcomes, DONE])
    assert [record.levelname for record in records].count("WARNING") == told
    assert [record.levelname for record in records].count("INFO") == ends


async def recorded(outcomes: list[Outcome], retry: tuple[float, float] | None) -> list[float]:
    """Return the pauses before each turn of a loop in an event loop."""
    now = asyncio.get_running_loop().time
    script, waits, began = Script(outcomes), list[float](), now()

    async def turn() -> float | None:
        nonlocal began
        waits.append(now() - began)
        began = now()
        return script()

    await Loop("work", 7.0, first_s=2.0, retry_s=retry).run(turn)
    return waits


def test_a_row_is_told_at_its_beginning_and_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    failures = Failures("reading", "what was read last holds", clock=lambda: now)
    failures.worked()
    failures.failed(StoreUnavailable("locked"))
    failures.failed(StoreUnavailable("still locked"))
    failures.failed(KeyError("ours"))
    assert (failures.count, failures.problem) == (3, "'ours'")
    now = 12.0
    failures.worked()
    failures.worked()
    failures.failed(StoreUnavailable(""))
    assert caplog.messages == [
        "reading failed and is retried; what was read last holds: locked",
        "reading failed and is retried; what was read last holds: 'ours'",
        "reading works again after 3 failures in 12.0 s; the last one: 'ours'",
        "reading failed and is retried; what was read last holds: StoreUnavailable",
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [False, True, False, False], (
        "a flaw shows its stack"
    )


def test_a_set_event_ends_a_loop_before_its_next_turn() -> None:
    over, turns = threading.Event(), []

    def turn() -> float:
        turns.append(1)
        over.set()
        return 3600.0

    Loop("work", 3600.0).run_in_thread(turn, over)
    assert turns == [1]


@pytest.mark.parametrize("while_it", ["waits", "works"])
async def test_a_cancellation_ends_a_loop_at_once(while_it: str) -> None:
    began = asyncio.Event()

    async def turn() -> float:
        began.set()
        if while_it == "works":
            await asyncio.Event().wait()
        return 3600.0

    async with Beside() as beside:
        beside.start(Loop("work", 1.0).run(turn))
        await began.wait()
    assert not any(
        "run" in str(task.get_coro()) and "Loop" in str(task.get_coro())
        for task in asyncio.all_tasks()
    )


async def test_what_is_beside_ends_with_it_and_an_error_of_it_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = []

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(1)

    async def broken() -> None:
        raise KeyError("ours")

    async with Beside() as beside:
        beside.start(for_ever())
        beside.start(broken())
        await asyncio.sleep(0)
        beside.leave()
    assert ended == [1]
    assert "a background task ended with an error" in caplog.text


async def test_what_is_beside_ends_also_where_a_time_limit_in_it_runs_out_at_that_moment() -> None:
    working = asyncio.get_running_loop().create_future()

    async def work() -> None:
        working.set_result(asyncio.current_task())
        await Loop("work", 0.0).run(turn)

    async def turn() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()

    async with asyncio.timeout(60), Beside() as beside:
        beside.start(work())
        task = await working
        while not task.cancelling():  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert task.cancelled()


def test_a_loop_waits_as_long_as_the_other_side_asked_it_to() -> None:
    time, error = Time(), ClusterUnavailable("slow down")
    error.retry_after_s = 45.0

    def turn() -> float:
        if len(time.waits) < 2:
            raise error
        return DONE

    Loop("work", 0.0, retry_s=(0.8, 30.0)).run_in_thread(turn, time)
    assert 45.0 - 1e-6 <= time.waits[1] <= 45.0 / JITTER + 1e-6
