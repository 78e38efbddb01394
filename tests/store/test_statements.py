"""How many statements a change of many tasks needs, and which indexes the hot queries use."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from crawler_lifecycle.activities.cancellation import STOP_PAGE
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.task import Counters, Phase
from crawler_lifecycle.ports.polls import Details
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.runs import stops
from crawler_lifecycle.store.runs.moves import move_tasks
from crawler_lifecycle.store.runs.stops import CANCEL_PAGE
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import (
    OWNER,
    START,
    Clock,
    Harness,
    closed,
    good_end,
    request,
    seen,
)
from tests.support.databases import empty_tables, wait_patiently
from tests.support.servers import EXPLAINED

#: Tasks for a stop with several pages.
MANY = 3_000


@pytest.fixture(params=EXPLAINED)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """MySQL gets the same statements as MariaDB."""
    return empty_tables(request.param, tmp_path / "state.db")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand tasks take long on a slow machine."""
    wait_patiently(monkeypatch)


@contextmanager
def counted(store: Store) -> Iterator[list[str]]:
    """Return the statements that are sent, without begins and commits; a bulk statement counts
    once.
    """
    sent: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    sa.event.listen(store.database.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(store.database.engine, "before_cursor_execute", note)


def large(store: Store, tasks: int) -> Fence:
    """A run with more tasks than fit into a request, as the gateway starts it."""
    row, _ = store.initiation.reserve_run(request(), "r1", [{}] * tasks)
    handle = store.initiation.claim_run(RunRequest(run_id=row.run_id), OWNER, closed)
    return Fence(handle.run_id, handle.attempt, OWNER.first_run_id, handle.run_uid)


def test_a_sync_of_a_thousand_tasks(store: Store) -> None:
    harness = Harness(store, Clock())
    with counted(store) as sent:
        fence = large(store, 1000)
    assert len(sent) <= 20
    with counted(store) as sent:
        harness.deploy(fence)
    assert len(sent) <= 29
    tasks = store.polls.found_state(fence).tasks
    ends = [
        seen(
            t,
            Phase.ENDED,
            START,
            uid=t.uid,
            node="n",
            counters=Counters(t.index, 1, 0, 1),
            end=good_end(START),
        )
        for t in tasks
    ]
    with counted(store) as sent:
        harness.stage(fence, ends)
        store.polls.save_details(fence, [Details(t.task_id, "log " * 100) for t in tasks])
        store.polls.apply_details(fence)
        counts = store.polls.apply_findings(fence, "look")
    assert counts.by_status == {"SUCCEEDED": 1000}
    print(f"{store.database.engine.dialect.name}: {len(sent)} statements for a sync of 1,000 tasks")
    assert len(sent) < 60, Counter(sent).most_common(5)
    assert store.runs.get_run(fence.run_id).pages == sum(range(1000))  # type: ignore[union-attr]
    with counted(store) as sent:
        harness.end(fence)
    assert len(sent) <= 30


def test_cancelling_ten_thousand_tasks(store: Store) -> None:
    harness = Harness(store, Clock())
    fence = large(store, 10_000)
    seq = store.events.last_event_seq()
    with counted(store) as sent:
        assert store.stops.cancel_queued(fence, START).by_status == {"CANCELLED": 10_000}
    pages = 3
    assert len(sent) < 20 * pages
    assert store.events.last_event_seq() - seq <= pages
    with counted(store) as sent:
        harness.end(fence)
        harness.resume(fence)
    assert store.tasks.count_tasks(fence.run_id).by_status == {"QUEUED": 10_000}
    assert len(sent) <= 62


def test_cancelling_is_committed_page_by_page(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted try leaves what it did, and the next one continues with the rest."""
    monkeypatch.setattr(stops, "CANCEL_PAGE", 40)
    fence = large(store, 100)
    moved: list[int] = []

    def cut_off(*args: Any, **more: Any) -> int:
        if len(moved) == 2:
            raise KeyboardInterrupt
        moved.append(move_tasks(*args, **more))
        return moved[-1]

    monkeypatch.setattr(stops, "move_tasks", cut_off)
    with pytest.raises(KeyboardInterrupt):
        store.stops.cancel_queued(fence, START)
    assert store.tasks.count_tasks(fence.run_id).by_status == {"QUEUED": 20, "CANCELLED": 80}
    monkeypatch.setattr(stops, "move_tasks", move_tasks)
    assert store.stops.cancel_queued(fence, START).by_status == {"CANCELLED": 100}
    assert moved == [40, 40]


@pytest.mark.slow
def test_cancelling_a_hundred_thousand_tasks(store: Store) -> None:
    fence = large(store, 100_000)
    with counted(store) as sent:
        assert store.stops.cancel_queued(fence, START).by_status == {"CANCELLED": 100_000}
    assert len(sent) < 20 * (100_000 // CANCEL_PAGE + 1)


@pytest.mark.parametrize("killed", [False, True])
def test_stopping_thousands_of_tasks(store: Store, killed: bool) -> None:
    """A page of a stop is one transaction, however many tasks it has, and one event."""
    harness = Harness(store, Clock())
    fence = large(store, MANY)
    harness.deploy(fence)
    seq, began, after = store.events.last_event_seq(), time.monotonic(), -1
    with counted(store) as sent:
        while page := store.stops.unstopped(fence, killed, None, after, STOP_PAGE):
            store.stops.mark_stopping(fence, [task.task_id for task in page], killed=killed)
            after = page[-1].index
    assert store.tasks.count_tasks(fence.run_id).by_status == {"STOPPING": MANY}
    pages = 3
    took = time.monotonic() - began
    print(
        f"{store.database.engine.dialect.name}: {len(sent)} statements and {took:.1f} s to mark {MANY:,} tasks"
    )
    assert len(sent) <= 23 * pages
    assert store.events.last_event_seq() - seq == pages
    assert store.stops.unstopped(fence, killed) == []
