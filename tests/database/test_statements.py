"""How many statements a change of many tasks takes, and which indexes the hot queries use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from crawler_lifecycle.adapters.database import SqlRunStore, open_store, upgrade
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.task import Counters, Phase, TaskStatus
from crawler_lifecycle.ports import Details, Fence
from tests.contracts.store.world import OWNER, START, Clock, World, closed, good_end, request, seen
from tests.support.mariadb import MariaDb


@contextmanager
def counted(store: SqlRunStore) -> Iterator[list[str]]:
    """The statements that are sent, begins and commits aside; a bulk statement counts once."""
    sent: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    sa.event.listen(store._db.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(store._db.engine, "before_cursor_execute", note)


def large(store: SqlRunStore, tasks: int) -> Fence:
    """A run of more tasks than fit into a request, as the gateway starts it."""
    row, _ = store.reserve_run(request(), "r1", [{}] * tasks)
    handle = store.claim_run(RunRequest(run_id=row.run_id), OWNER, closed)
    return Fence(handle.run_id, handle.attempt, OWNER.first_run_id)


def test_a_sync_of_a_thousand_tasks(empty_url: str) -> None:
    upgrade(empty_url)
    store = open_store(empty_url, clock=Clock())
    world = World(store, Clock())
    with counted(store) as sent:
        fence = large(store, 1000)
    assert len(sent) < 20
    with counted(store) as sent:
        world.deploy(fence)
    assert len(sent) < 25
    tasks = store.found_state(fence).tasks
    ends = [
        seen(t, Phase.ENDED, START, uid=t.uid, node="n", counters=Counters(t.index, 1, 0, 1), end=good_end(START))
        for t in tasks
    ]
    with counted(store) as sent:
        world.stage(fence, ends)
        store.save_details(fence, [Details(t.task_id, "log " * 100) for t in tasks])
        store.apply_details(fence)
        counts = store.apply_findings(fence, "look")
    assert counts.by_status == {"SUCCEEDED": 1000}
    print(f"{store._db.engine.dialect.name}: {len(sent)} statements for a sync of 1,000 tasks")
    assert len(sent) < 60, Counter(sent).most_common(5)
    assert store.get_run(fence.run_id).pages == sum(range(1000))  # type: ignore[union-attr]
    with counted(store) as sent:
        world.end(fence)
    assert len(sent) < 20
    store.close()


def test_cancelling_ten_thousand_tasks(empty_url: str) -> None:
    upgrade(empty_url)
    store = open_store(empty_url, clock=Clock())
    world = World(store, Clock())
    fence = large(store, 10_000)
    with counted(store) as sent:
        assert store.cancel_queued(fence, START).by_status == {"CANCELLED": 10_000}
    assert len(sent) < 20
    with counted(store) as sent:
        world.end(fence)
        world.resume(fence)
    assert store.count_tasks(fence.run_id).by_status == {"QUEUED": 10_000}
    assert len(sent) < 40
    store.close()


# --- indexes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(mariadb: MariaDb) -> Iterator[tuple[SqlRunStore, int]]:
    """A database with enough rows for an optimizer to care: 120 runs of 20 tasks, most of them ended."""
    with mariadb.database() as url:
        upgrade(url)
        clock = Clock()
        store = open_store(url, clock=clock)
        world = World(store, clock)
        fence = world.run("r0")
        for n in range(1, 120):
            fence = world.deployed(f"r{n}", 20, crawler=f"crawler-{n % 10}", flow_id=f"flow-{n % 20}")
            clock.forward(1)
            if n % 20:
                world.finish(fence)
            elif n % 40:
                store.record_stop(fence.run_id, world.stop(), "s")
            else:
                tasks = store.found_state(fence).tasks
                world.look(fence, [seen(t, Phase.GONE, START) for t in tasks])
            store.append_event(fence, "run.ended", f"{fence.run_id}/1/run.ended", {})
        for table in (
            "run_history",
            "task_history",
            "status_transition",
            "correction",
            "outbox_event",
            "task_observation",
        ):
            mariadb.execute(f"ANALYZE TABLE {table}", url.rpartition("/")[2])
        yield store, fence.run_id
        store.close()


HOT: dict[str, tuple[Callable[[SqlRunStore, int], object], str]] = {
    "runs, newest first": (lambda s, r: s.list_runs(limit=20), "PRIMARY"),
    "runs, a page": (lambda s, r: s.list_runs(limit=20, before_run_id=50), "PRIMARY"),
    "runs by status": (lambda s, r: s.list_runs(limit=20, status=["PROCESSING"]), "ix_run_history_status_run_id"),
    "runs of a crawler": (lambda s, r: s.list_runs(limit=20, crawler="crawler-3"), "ix_run_history_crawler_run_id"),
    "runs of a flow": (lambda s, r: s.list_runs(limit=20, flow_id="flow-3"), "ix_run_history_flow_id_run_id"),
    "run by request": (lambda s, r: s.find_run("r7"), "uq_run_history_request_id"),
    "count": (lambda s, r: s.count_tasks(r), "ix_task_history_current"),
    "a page of tasks": (
        lambda s, r: s.task_page(r, [TaskStatus.RUNNING, TaskStatus.PENDING]),
        "uq_task_history_run_id_task_index_attempt",
    ),
    "transitions": (lambda s, r: s.transitions(r, after_seq=10), "ix_status_transition_run_id_seq"),
    "corrections": (lambda s, r: s.corrections(r), "ix_correction_run_id_id"),
    "events": (lambda s, r: s.events_after(100, limit=50), "PRIMARY"),
    "event by key": (lambda s, r: s.find_event("7/1/run.ended"), "uq_outbox_event_event_key"),
    "unowned": (lambda s, r: s.unowned_runs(START), "ix_run_history_unowned"),
    "unheard": (lambda s, r: s.unheard_stops(START + timedelta(hours=1)), "ix_run_history_unheard"),
}


@pytest.mark.parametrize("name", HOT)
def test_hot_queries_use_their_index(filled: tuple[SqlRunStore, int], name: str) -> None:
    store, run_id = filled
    call, expected = HOT[name]
    assert used(store, lambda: call(store, run_id)) == {expected}


def used(store: SqlRunStore, call: Callable[[], object]) -> set[str]:
    """The indexes that MariaDB uses for the SELECT statements of a call."""
    sent: list[tuple[str, object]] = []

    def note(_c: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        if statement.lstrip().startswith("SELECT"):
            sent.append((statement, parameters))

    sa.event.listen(store._db.engine, "before_cursor_execute", note)
    call()
    sa.event.remove(store._db.engine, "before_cursor_execute", note)
    keys = set()
    with store._db.engine.connect() as connection:
        for statement, parameters in sent:
            for row in connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).mappings():  # type: ignore[call-overload]
                keys.add(str(row["key"]))
    return keys


def test_the_state_of_a_run_is_found_by_index(mariadb: MariaDb, filled: tuple[SqlRunStore, int]) -> None:
    store, run_id = filled
    row = store.get_run(run_id)
    assert row is not None
    assert row.owner_run_id is not None
    fence = Fence(run_id, row.attempt, row.owner_run_id)
    assert used(store, lambda: store.found_state(fence)) <= {
        "PRIMARY",
        "ix_task_history_current",
        "uq_task_history_run_id_task_index_attempt",
    }
    assert used(store, lambda: store.staged(fence)) <= {"PRIMARY", "ix_task_observation_run_id_task_index"}


def test_sqlite_uses_the_same_indexes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    upgrade(url)
    store = open_store(url)
    World(store, Clock()).deployed(tasks=3)
    plans = []

    def note(conn: sa.Connection, cursor: object, statement: str, parameters: object, *_: object) -> None:
        if statement.startswith("SELECT"):
            raw = conn.connection.cursor()
            plans.append([r[3] for r in raw.execute("EXPLAIN QUERY PLAN " + statement, parameters).fetchall()])

    sa.event.listen(store._db.engine, "before_cursor_execute", note)
    for call, _ in HOT.values():
        call(store, 1)
    store.close()
    scans = [step for plan in plans for step in plan if step.startswith("SCAN")]
    assert set(scans) <= {"SCAN run_history"}, "only the newest runs are read in the order of the key"
