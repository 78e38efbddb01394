"""Numbers of runs are requested everywhere, reported where they are unknown, and keep nobody from
serving.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from crawler_lifecycle.domain.errors import ClusterUnavailable, StoreUnavailable
from crawler_lifecycle.domain.names import RUN_NUMBER_MAX, run_number
from crawler_lifecycle.store.retention.run_numbers import RunNumberStore
from crawler_lifecycle.worker.run_numbers import Numbers, ask, bring_forward


@dataclass
class Source:
    number: int = 0
    error: Exception | None = None
    asked: int = 0
    hangs: threading.Event | None = None

    def highest_run(self, above: int = 0) -> int:
        self.asked += 1
        if self.hangs is not None:
            self.hangs.wait()
        if self.error is not None:
            raise self.error
        return max(above, self.number)


@dataclass
class Store:
    newest: int = 3
    begun: list[int] = field(default_factory=list)
    error: Exception | None = None

    def newest_run_id(self) -> int:
        if self.error is not None:
            raise self.error
        return self.newest

    def begin_run_ids_above(self, run_id: int) -> bool:
        self.begun.append(run_id)
        return run_id > self.newest


def as_store(store: Store) -> RunNumberStore:
    return cast(RunNumberStore, store)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("1", 1),
        ("42", 42),
        ("42-0e8f", 42),
        (str(RUN_NUMBER_MAX), RUN_NUMBER_MAX),
        (str(RUN_NUMBER_MAX + 1), 0),
        ("99999999999999999999", 0),
        ("1732212345678", 0),
        ("0", 0),
        ("007", 0),
        ("-7", 0),
        ("7.0", 0),
        ("7 ", 0),
        ("7\n", 0),
        ("\u0667", 0),
        ("run7", 0),
        ("", 0),
    ],
)
def test_a_number_is_one_that_a_run_can_have(name: str, number: int) -> None:
    assert run_number(name) == number


def test_all_are_asked_and_the_highest_counts(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    known = bring_forward(
        as_store(store), {"Temporal": Source(7), "the cluster": Source(9), "the archive": Source(2)}
    )
    assert store.begun == [9]
    assert known.words(3) == ["Temporal contains run 7", "the cluster contains run 9"]
    assert "above 9: the newest run in the database is 3" in caplog.text


def test_what_does_not_answer_is_told_and_hides_nobody() -> None:
    hangs = threading.Event()
    sources = {
        "a": Source(error=ClusterUnavailable("away")),
        "b": Source(5),
        "c": Source(9, hangs=hangs),
    }
    # It does not wait for c, which would take forever; the others have far longer than they need.
    try:
        known = ask({**sources, "d": Source(error=KeyError("ours"))}, 3, 3)
    finally:
        hangs.set()
    assert known.highest == {"b": 5}
    assert known.troubles == {"a": "away", "c": "no response within 3 s", "d": "KeyError: 'ours'"}


async def test_a_worker_asks_again_until_each_has_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    store = Store()
    away, there = Source(8, error=ClusterUnavailable("away")), Source(5)
    numbers = Numbers(as_store(store), {"the cluster": away, "Temporal": there}, again_s=0.01)
    task = asyncio.create_task(numbers.run())
    await asyncio.wait_for(numbers.first.wait(), 60)
    assert numbers.state()["complete"] is False
    assert "the cluster" in cast(dict[str, Any], numbers.state()["unanswered"])
    while away.asked < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    away.error = None
    await asyncio.wait_for(task, 60)
    assert numbers.state() == {"complete": True, "unanswered": {}}
    assert there.asked == 1
    assert max(store.begun) == 8
    assert caplog.text.count("an id that is in use: the cluster: away") == 1, (
        "told once, not at every try"
    )


async def test_one_that_hangs_keeps_no_worker_from_leaving() -> None:
    hangs = threading.Event()
    numbers = Numbers(as_store(Store()), {"Temporal": Source(hangs=hangs)})
    task = asyncio.create_task(numbers.run())
    await asyncio.sleep(0.05)
    assert not numbers.first.is_set()
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()
    hangs.set()


async def test_a_database_that_is_away_is_asked_again() -> None:
    store = Store(error=StoreUnavailable("locked"))
    numbers = Numbers(as_store(store), {"Temporal": Source(6)}, again_s=0.01)
    task = asyncio.create_task(numbers.run())
    await asyncio.wait_for(numbers.first.wait(), 60)
    store.error = None
    await asyncio.wait_for(task, 60)
    assert store.begun == [6]
