"""Rows that a person or another program edited are noticed, reported with the fix, and not
overwritten; the rest continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from crawler_lifecycle.domain.bounds import COUNT_MAX
from crawler_lifecycle.domain.errors import (
    Fenced,
    LifecycleError,
    RowEdited,
    RowUnreadable,
    StoreRefused,
)
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.task import Phase, TaskStatus
from crawler_lifecycle.ports.polls import Details
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.engine import KeyTaken, open_engine, parse_url
from tests.contracts.store.graphing import Graphed
from tests.contracts.store.graphing import step as graph_step
from tests.contracts.store.harness import OWNER, START, Harness, closed, request, seen
from tests.contracts.store.managing import Managed, page


class Hand:
    """Somebody with a database client."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sqlite = engine.dialect.name == "sqlite"

    @property
    def checked(self) -> bool:
        """Return whether the database enforces CHECK constraints: MySQL does from 8.0.16 on."""
        version = "" if self.sqlite else str(self.read("SELECT VERSION()"))
        return not version.startswith(("8.0.15", "8.0.14", "8.0.13", "8.0.12", "8.0.11"))

    def write(self, statement: str, **values: Any) -> int:
        with self.engine.begin() as conn:
            return conn.execute(text(statement), values).rowcount

    def read(self, statement: str) -> Any:
        with self.engine.begin() as conn:
            return conn.execute(text(statement)).scalar()

    def set(self, table: str, column: str, value: object) -> Any:
        """Write into every row of the table. Return the previous values."""
        before = self.read(f"SELECT {column} FROM {table} LIMIT 1")
        assert self.write(f"UPDATE {table} SET {column} = :value", value=value)
        return before


@pytest.fixture
def hand(store_url: str) -> Iterator[Hand]:
    engine = open_engine(parse_url(store_url), pool_size=1)
    yield Hand(engine)
    engine.dispose()


def test_statistics_that_another_hand_wrote_count_for_nothing(harness: Harness, hand: Hand) -> None:
    fence = harness.executing(tasks=2)
    for task in harness.store.polls.found_state(fence).tasks:
        harness.store.polls.save_details(fence, [Details(task.task_id, statistics={"a": 1})])
    harness.store.polls.apply_details(fence)
    first = hand.read("SELECT MIN(task_id) FROM task_stats")
    odd = '{"a": "x", "b": {"c": 1}, "d": 2}'
    hand.write("UPDATE task_stats SET stats = :odd WHERE task_id = :first", odd=odd, first=first)
    assert harness.store.tasks.statistics(fence.run_id) == {"d": 2, "a": 1}


#: Table, column, and an impossible value.
REFUSED: dict[str, tuple[str, str, object]] = {
    "unknown status": ("run_history", "status", "BANANA"),
    "empty status": ("run_history", "status", ""),
    "status in lower case": ("run_history", "status", "processing"),
    "unknown stage": ("run_history", "stage", "lunch"),
    "unknown trigger": ("run_history", "trigger", "whim"),
    "attempt 0": ("run_history", "attempt", 0),
    "attempt below": ("run_history", "attempt", -3),
    "no number": ("run_history", "attempt", "many"),
    "status of a stop without one": ("run_history", "status", "STOPPING"),
    "status of an end without one": ("run_history", "status", "FAILED"),
    "request of another kind": ("run_history", "request", "[1, 2]"),
    "no JSON": ("run_history", "request", "{not json"),
    "bytes": ("run_history", "crawler", b"\x00\xff"),
    "time before us": ("run_history", "created_at", "1066-10-14 12:00:00"),
    "time after us": ("run_history", "next_look_at", "9999-12-31 23:59:59"),
    "no time": ("run_history", "verified_at", "yesterday"),
    "no day": ("run_history", "verified_at", "2026-13-41 12:00:00"),
    "unknown status of a task": ("task_history", "status", "BANANA"),
    "end of a task without one": ("task_history", "status", "LOST"),
    "arguments of another kind": ("task_history", "args", "7"),
    **{
        f"{name} below zero": ("task_history", name, -7)
        for name in ("pages", "items", "errors", "bytes")
    },
    "memory below zero": ("task_history", "peak_memory", -1),
    "counter out of bounds": ("task_history", "pages", COUNT_MAX + 1),
    "evidence of another kind": ("status_transition", "evidence", '"oops"'),
    "event of another kind": ("outbox_event", "body", "[]"),
    "unknown status of a manager": ("manager", "status", "odd"),
    "end of a manager without one": ("manager", "status", "COMPLETED"),
    "stop of a manager without one": ("manager", "status", "STOPPING"),
    "no job number": ("manager", "next_seq", 0),
    "tags of another kind": ("manager", "tags", "{}"),
    "unknown state of a job": ("manager_item", "state", "started2"),
    "unknown state of a graph": ("graph", "state", "BANANA"),
    "end of a graph without one": ("graph", "state", "completed"),
    "tags of a graph of another kind": ("graph", "tags", "{}"),
    "unknown state of a step": ("graph_step", "state", "BANANA"),
    "tries below zero": ("graph_step", "tries", -1),
}


def test_a_kind_of_steps_that_is_not_known_is_named(harness: Harness, hand: Hand) -> None:
    """The database accepts it, because a newer version may have sent the graph."""
    graphed = Graphed.made(harness, [graph_step("a")])
    hand.set("graph_step", "kind", "poem")
    step = harness.store.graphs.load(graphed.id).steps[0]
    assert "kind is 'poem'" in str(step.unreadable)
    assert "newer version" in str(step.unreadable)


def test_what_cannot_be_is_refused_at_its_own_statement(harness: Harness, hand: Hand) -> None:
    fence = harness.executing()
    managed = Managed.begun(harness)
    harness.store.managers.add_page(managed.fence, page([1]))
    Graphed.made(harness, [graph_step("a")])
    for name, (table, column, value) in REFUSED.items() if hand.checked else ():
        # Trigger is a reserved word in MySQL.
        quoted = hand.engine.dialect.identifier_preparer.quote(column)
        assert hand.read(f"SELECT COUNT(*) FROM {table}"), table
        try:
            hand.set(table, quoted, value)
        except DBAPIError:
            continue
        pytest.fail(f"{name} was written")
    assert harness.finish(fence).status is RunStatus.COMPLETED


def test_a_check_that_refuses_is_no_key_that_is_taken(harness: Harness, hand: Hand) -> None:
    harness.run()
    if not hand.checked:
        return
    with (
        pytest.raises(StoreRefused, match=r"CHECK|3819|4025") as told,
        harness.store.database.writing() as conn,
    ):
        conn.execute(text("UPDATE run_history SET attempt = 0"))
    assert not isinstance(told.value, KeyTaken)


def test_what_cannot_be_is_null_or_not_unique_is_refused_by_the_schema(
    harness: Harness, hand: Hand
) -> None:
    fence = harness.deployed()
    for table, column in (
        ("run_history", "status"),
        ("task_history", "status"),
        ("run_history", "attempt"),
    ):
        with pytest.raises((IntegrityError, OperationalError)):
            hand.write(f"UPDATE {table} SET {column} = NULL")
    columns = "run_id, attempt, run_attempt, task_index, status, status_since, args, ever_seen"
    with pytest.raises(IntegrityError):
        hand.write(f"INSERT INTO task_history ({columns}) SELECT {columns} FROM task_history")
    assert harness.statuses(fence) == {0: TaskStatus.PENDING}


@pytest.mark.parametrize("attempt", [1, 3])
def test_an_attempt_changed_by_hand_holds_the_writer_up_and_takes_nothing_from_it(
    harness: Harness, hand: Hand, attempt: int
) -> None:
    fence = harness.resume(ended(harness))
    assert fence.attempt == 2
    hand.set("run_history", "attempt", attempt)
    with pytest.raises(RowEdited, match=r"attempt is .*set it back to 2") as told:
        harness.store.deployment.mark_started(fence, START)
    assert told.value.retryable
    hand.set("run_history", "attempt", 2)
    assert harness.store.deployment.mark_started(fence, START) is RunStatus.PROCESSING


def test_an_owner_changed_by_hand_holds_the_writer_up_and_takes_nothing_from_it(
    harness: Harness, hand: Hand
) -> None:
    fence = harness.deployed()
    for owner in ("me", None):
        hand.set("run_history", "owner_run_id", owner)
        with pytest.raises(RowEdited, match=r"owner_run_id is .*set it back to 'chain-1'"):
            harness.store.polls.found_state(fence)
    hand.set("run_history", "owner_run_id", "chain-1")
    assert harness.store.polls.found_state(fence).tasks


def test_a_takeover_is_no_edit(harness: Harness) -> None:
    fence = ended(harness)
    harness.resume(fence)
    with pytest.raises(Fenced) as told:
        harness.store.deployment.mark_started(fence, START)
    assert not isinstance(told.value, RowEdited)
    assert not told.value.retryable


def ended(harness: Harness) -> Fence:
    fence = harness.deployed()
    harness.finish(fence, failed=[0])
    return fence


@pytest.mark.parametrize("lost", [[0], [1], [2], [0, 1, 2]], ids=str)
def test_no_verdict_is_over_fewer_tasks_than_the_run_had(
    harness: Harness, hand: Hand, lost: list[int]
) -> None:
    fence = harness.deployed(tasks=2)
    harness.store.additions.add_tasks(fence.run_id, "more", [{"part": "2"}])
    harness.begin(fence)
    gone = {}
    for index in lost:
        gone[index] = hand.read(f"SELECT task_id FROM task_history WHERE task_index = {index}")
        hand.write(f"DELETE FROM task_history WHERE task_index = {index}")
    with pytest.raises(
        RowUnreadable,
        match=f"no row that counts has task_index {', '.join(map(str, lost))}; insert",
    ):
        harness.finish(fence)
    assert harness.status(fence) is RunStatus.PROCESSING
    for index in lost:
        hand.write(
            "INSERT INTO task_history (run_id, attempt, run_attempt, task_index, status, status_since, args, "
            "ever_seen, ended_at) VALUES (:run, 1, 1, :index, 'LOST', '2026-03-01 12:00:00', '{}', "
            "0, '2026-03-01 12:00:00')",
            run=fence.run_id,
            index=index,
        )
    row = harness.end(fence)
    assert (row.status, row.outcome) == (RunStatus.FAILED, "partial" if len(lost) < 3 else "failed")


def test_an_index_with_two_rows_that_count_gets_no_verdict(harness: Harness, hand: Hand) -> None:
    fence = harness.resume(ended(harness))
    harness.deploy(fence)
    hand.write("UPDATE task_history SET superseded_by = NULL")
    with pytest.raises(RowUnreadable, match="two rows that count; set superseded_by"):
        harness.finish(fence)
    ids = [task.task_id for task in harness.store.tasks.list_tasks(fence.run_id, superseded=True)]
    hand.write(
        "UPDATE task_history SET superseded_by = :new WHERE task_id = :old", new=ids[1], old=ids[0]
    )
    assert harness.end(fence).status is RunStatus.COMPLETED


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED"])
def test_an_end_set_by_hand_is_no_verdict(harness: Harness, hand: Hand, status: str) -> None:
    fence = harness.executing()
    end = "UPDATE run_history SET ended_at = '2026-03-01 13:00:00', status = :status"
    hand.write(end, status=status)
    for step in (lambda: harness.stage(fence, []), lambda: harness.end(fence)):
        with pytest.raises(
            RowUnreadable, match="1 of its tasks are alive: set it back to PROCESSING"
        ):
            step()
    hand.write("UPDATE task_history SET status = 'SUCCEEDED', ended_at = '2026-03-01 13:00:00'")
    with pytest.raises(RowUnreadable, match="a manual edit set it in attempt 1"):
        harness.end(fence)
    assert hand.read("SELECT status FROM run_history") == status
    hand.write("UPDATE run_history SET ended_at = NULL, status = 'PROCESSING'")
    assert harness.end(fence).status is RunStatus.COMPLETED
    assert harness.store.events.last_event(fence.run_id, "run.ended") is not None


@pytest.mark.parametrize("column", ["finding", "details"])
def test_what_a_poll_staged_and_cannot_be_read_is_thrown_away_by_hand(
    harness: Harness, hand: Hand, column: str
) -> None:
    fence = harness.deployed()
    [task] = harness.store.polls.found_state(fence).tasks
    observation = seen(task, Phase.EXECUTING, harness.clock.now, uid=task.uid)
    harness.stage(fence, [observation])
    hand.set("task_observation", column, '{"pages": "many"}')
    with pytest.raises(
        RowUnreadable,
        match=rf"task_observation task_id \d+, run_id \d+: {column} is .*delete this row",
    ):
        harness.store.polls.apply_details(fence)
    hand.write("DELETE FROM task_observation")
    harness.poll(fence, [observation])
    assert harness.statuses(fence) == {0: TaskStatus.RUNNING}


REQUESTS: list[tuple[str, str]] = [
    ('{"crawler": 7}', "crawler of the request"),
    ('{"crawler": "services", "limits": {"run_timeout_s": -1}}', "run_timeout_s"),
    ('{"crawler": "services", "priority": "high"}', "priority of the request"),
    ('{"crawler": "services", "priority": 9}', "priority"),
    ('{"crawler": "services", "poll_minutes": [1e308]}', "poll_minutes"),
    ('{"crawler": "services", "limits": {"run_timeout_s": 9223372036854775808}}', "run_timeout_s"),
    ('{"crawler": "services", "due_at": "2026-01-01T00:00:00"}', "due_at"),
]


def test_a_stored_request_that_is_none_is_told(harness: Harness, hand: Hand) -> None:
    fence = harness.run()
    before = hand.read("SELECT request FROM run_history")
    for request_text, words in REQUESTS:
        hand.set("run_history", "request", request_text)
        for ask in (
            lambda: harness.store.runs.request_of(fence.run_id),
            lambda: harness.store.runs.get_run(fence.run_id),
            lambda: harness.store.initiation.claim_run(request(run_id=fence.run_id), OWNER, closed),
            lambda: harness.run(),
        ):
            with pytest.raises(
                RowUnreadable,
                match=rf"run_history run_id {fence.run_id}: request .*{words}.*; set the request",
            ):
                ask()
    hand.set("run_history", "request", before)
    assert harness.run() == fence


def test_every_error_is_one_that_is_tried_again() -> None:
    kinds: list[type[LifecycleError]] = [RowUnreadable, RowEdited]
    assert all(kind.retryable for kind in kinds)
