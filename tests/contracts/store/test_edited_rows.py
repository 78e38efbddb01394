"""Rows that a person or another program wrote: noticed, told with the cure, never written over; the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DataError, IntegrityError, OperationalError

from crawler_lifecycle.domain.errors import Fenced, LifecycleError, RowEdited, RowUnreadable
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.task import Phase, TaskStatus
from crawler_lifecycle.ports.looks import Details
from crawler_lifecycle.ports.runs import Fence, UnknownStatus
from crawler_lifecycle.store.engine import open_engine, parse_url
from tests.contracts.store.world import START, World, seen


class Hand:
    """Somebody with a database client."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sqlite = engine.dialect.name == "sqlite"

    def write(self, statement: str, **values: Any) -> int:
        with self.engine.begin() as conn:
            return conn.execute(text(statement), values).rowcount

    def read(self, statement: str) -> Any:
        with self.engine.begin() as conn:
            return conn.execute(text(statement)).scalar()

    def set(self, table: str, column: str, value: object) -> Any:
        """Write into every row of the table; what stood there before."""
        before = self.read(f"SELECT {column} FROM {table} LIMIT 1")
        assert self.write(f"UPDATE {table} SET {column} = :value", value=value)
        return before


@pytest.fixture
def hand(store_url: str) -> Iterator[Hand]:
    engine = open_engine(parse_url(store_url), pool_size=1)
    yield Hand(engine)
    engine.dispose()


def test_statistics_that_another_hand_wrote_count_for_nothing(world: World, hand: Hand) -> None:
    fence = world.deployed(tasks=2)
    world.execute(fence)
    for task in world.store.looks.found_state(fence).tasks:
        world.store.looks.save_details(fence, [Details(task.task_id, statistics={"a": 1})])
    world.store.looks.apply_details(fence)
    for stats in ("[1]", "7", '{"a": "x", "b": {"c": 1}, "d": 2}'):
        hand.write(
            "UPDATE task_stats SET stats = :stats ORDER BY task_id LIMIT 1"
            if not hand.sqlite
            else "UPDATE task_stats SET stats = :stats WHERE task_id = (SELECT MIN(task_id) FROM task_stats)",
            stats=stats,
        )
        found = world.store.tasks.statistics(fence.run_id)
        assert found == ({"d": 2, "a": 1} if "d" in stats else {"a": 1})


#: column -> a value that cannot be, and what the text says of it besides table, key, column and value.
OF_A_RUN = {
    "unknown status": ("status", "BANANA", "set one of INITIALIZING, PROCESSING"),
    "empty status": ("status", "", "set one of"),
    "status in lower case": ("status", "processing", "set one of"),
    "unknown stage": ("stage", "lunch", "set one of initiation, deployment"),
    "unknown trigger": ("trigger", "whim", "set one of scheduled"),
    "attempt 0": ("attempt", 0, "at least 1"),
    "attempt below": ("attempt", -3, "at least 1"),
    "status of a stop without one": ("status", "STOPPING", "crawlctl stop"),
    "status of an end without one": ("status", "FAILED", "a row that is FAILED has ended"),
    "request of another kind": ("request", "[1, 2]", "set a JSON object"),
    "time before us": ("created_at", "1066-10-14 12:00:00", "of the years"),
    "time after us": ("next_look_at", "9999-12-31 23:59:59", "of the years"),
}
#: What only SQLite lets anybody write: the others' types and checks refuse it.
ONLY_SQLITE = {
    "no time": ("verified_at", "yesterday", "a time such as"),
    "no JSON": ("request", "{not json", "set a JSON object"),
    "no number": ("attempt", "many", "a whole number"),
    "bytes": ("crawler", b"\x00\xff", "set a text"),
}


def quoted(hand: Hand, column: str) -> str:
    """``trigger`` is a word of MySQL's."""
    return hand.engine.dialect.identifier_preparer.quote(column)


def spoil(hand: Hand, table: str, column: str, value: object) -> Any:
    return hand.set(table, quoted(hand, column), value)


@pytest.mark.parametrize("name", [*OF_A_RUN, *ONLY_SQLITE])
def test_a_run_that_cannot_be_is_told_and_left_alone_until_it_is_mended(world: World, hand: Hand, name: str) -> None:
    fence = world.deployed()
    world.execute(fence)
    column, value, words = {**OF_A_RUN, **ONLY_SQLITE}[name]
    if name in ONLY_SQLITE and not hand.sqlite:
        with pytest.raises((OperationalError, IntegrityError, DataError)):
            spoil(hand, "run_history", column, value)
        return
    before = spoil(hand, "run_history", column, value)
    with pytest.raises(RowUnreadable) as told:
        world.store.runs.get_run(fence.run_id)
    for part in ("run_history", f"run_id {fence.run_id}", column, words):
        assert part in str(told.value)
    with pytest.raises(RowUnreadable):
        world.store.runs.find_run("r1")
    if column not in ("request",) or value == "{not json":
        for write in (
            lambda: world.store.looks.found_state(fence),
            lambda: world.store.deployment.mark_started(fence, START),
        ):
            with pytest.raises(RowUnreadable):
                write()
    assert hand.read(f"SELECT {quoted(hand, column)} FROM run_history") is not None
    [row] = world.store.runs.list_runs()
    assert row.run_id == fence.run_id
    assert row.unreadable is not None
    assert column in row.unreadable
    spoil(hand, "run_history", column, before)
    assert world.store.runs.list_runs()[0].unreadable is None
    assert world.finish(fence).status is RunStatus.COMPLETED


def test_a_list_shows_the_status_that_stands_there_and_the_runs_beside_it(world: World, hand: Hand) -> None:
    for n in range(3):
        world.run(f"r{n}")
    hand.write("UPDATE run_history SET status = 'BANANA' WHERE request_id = 'r1'")
    rows = world.store.runs.list_runs()
    assert [str(row.status) for row in rows] == ["INITIALIZING", "BANANA", "INITIALIZING"]
    odd = rows[1].status
    assert isinstance(odd, UnknownStatus)
    assert (odd.terminal, odd.value) == (False, "BANANA")
    assert [row.unreadable is None for row in rows] == [True, False, True]


def test_what_cannot_be_is_null_or_not_unique_is_refused_by_the_schema(world: World, hand: Hand) -> None:
    fence = world.deployed()
    for table, column in (("run_history", "status"), ("task_history", "status"), ("run_history", "attempt")):
        with pytest.raises((IntegrityError, OperationalError)):
            hand.write(f"UPDATE {table} SET {column} = NULL")
    columns = "run_id, attempt, task_index, status, status_since, args, ever_seen"
    with pytest.raises(IntegrityError):
        hand.write(f"INSERT INTO task_history ({columns}) SELECT {columns} FROM task_history")
    assert world.statuses(fence) == {0: TaskStatus.PENDING}


@pytest.mark.parametrize("attempt", [1, 3])
def test_an_attempt_changed_by_hand_holds_the_writer_up_and_takes_nothing_from_it(
    world: World, hand: Hand, attempt: int
) -> None:
    fence = world.resume(ended(world))
    assert fence.attempt == 2
    hand.set("run_history", "attempt", attempt)
    with pytest.raises(RowEdited, match=r"attempt is .*set it back to 2") as told:
        world.store.deployment.mark_started(fence, START)
    assert told.value.retryable
    hand.set("run_history", "attempt", 2)
    assert world.store.deployment.mark_started(fence, START) is RunStatus.PROCESSING


def test_an_owner_changed_by_hand_holds_the_writer_up_and_takes_nothing_from_it(world: World, hand: Hand) -> None:
    fence = world.deployed()
    for owner in ("me", None):
        hand.set("run_history", "owner_run_id", owner)
        with pytest.raises(RowEdited, match=r"owner_run_id is .*set it back to 'chain-1'"):
            world.store.looks.found_state(fence)
    hand.set("run_history", "owner_run_id", "chain-1")
    assert world.store.looks.found_state(fence).tasks


def test_a_takeover_is_no_edit(world: World) -> None:
    fence = ended(world)
    world.resume(fence)
    with pytest.raises(Fenced) as told:
        world.store.deployment.mark_started(fence, START)
    assert not isinstance(told.value, RowEdited)
    assert not told.value.retryable


def ended(world: World) -> Fence:
    fence = world.deployed()
    world.finish(fence, failed=[0])
    return fence


def test_a_task_in_a_status_that_cannot_be_stops_the_look_and_no_list(world: World, hand: Hand) -> None:
    fence = world.deployed(tasks=2)
    world.execute(fence)
    hand.write("UPDATE task_history SET status = 'BANANA' WHERE task_index = 1")
    with pytest.raises(
        RowUnreadable, match=r"task_history task_id \d+, run_id \d+: status is 'BANANA'.*set one of QUEUED"
    ):
        world.stage(fence, [])
    with pytest.raises(RowUnreadable, match="BANANA"):
        world.end(fence)
    good, odd = world.store.tasks.list_tasks(fence.run_id)
    assert (good.status, good.unreadable) == (TaskStatus.RUNNING, None)
    assert odd.status == "BANANA"
    assert odd.unreadable is not None
    assert world.store.tasks.count_tasks(fence.run_id).by_status["BANANA"] == 1
    assert world.store.stops.cancel_queued(fence, START).by_status["BANANA"] == 1, "a stop goes on with the others"
    hand.write("UPDATE task_history SET status = 'RUNNING' WHERE task_index = 1")
    assert world.finish(fence).status is RunStatus.COMPLETED


def test_a_status_written_between_look_and_sync_is_read_again_not_overwritten(world: World, hand: Hand) -> None:
    fence = world.deployed()
    [task] = world.store.looks.found_state(fence).tasks
    world.stage(fence, [seen(task, Phase.EXECUTING, world.clock.now, uid=task.uid)])
    hand.write("UPDATE task_history SET status = 'LOST', ended_at = '2026-03-01 12:00:00'")
    assert world.store.looks.apply_findings(fence, "look").positive() == {"LOST": 1}
    assert [t.to_status for t in world.store.runs.transitions(fence.run_id) if t.task_id] == ["PENDING"]


@pytest.mark.parametrize("column", ["pages", "items", "errors", "bytes", "peak_memory"])
def test_counters_below_zero_are_unknown_and_counted_anew(world: World, hand: Hand, column: str) -> None:
    fence = world.deployed()
    world.execute(fence)
    hand.set("task_history", column, -7)
    assert world.store.tasks.list_tasks(fence.run_id)[0].unreadable is not None
    if column != "peak_memory":
        hand.set("run_history", column, -7)
        assert f"{column} is -7" in str(world.row(fence).unreadable)
    row = world.finish(fence)
    assert (row.status, row.pages, row.items, row.errors) == (RunStatus.COMPLETED, 10, 5, 0)
    assert world.row(fence).unreadable is None


@pytest.mark.parametrize("lost", [[0], [1], [2], [0, 1, 2]], ids=str)
def test_no_verdict_is_over_fewer_tasks_than_the_run_had(world: World, hand: Hand, lost: list[int]) -> None:
    fence = world.deployed(tasks=2)
    world.store.additions.add_tasks(fence.run_id, "more", [{"part": "2"}])
    world.deploy(fence)
    world.execute(fence)
    gone = {}
    for index in lost:
        gone[index] = hand.read(f"SELECT task_id FROM task_history WHERE task_index = {index}")
        hand.write(f"DELETE FROM task_history WHERE task_index = {index}")
    with pytest.raises(RowUnreadable, match=f"no row that counts has task_index {', '.join(map(str, lost))}; insert"):
        world.finish(fence)
    assert world.status(fence) is RunStatus.PROCESSING
    for index in lost:
        hand.write(
            "INSERT INTO task_history (run_id, attempt, task_index, status, status_since, args, ever_seen, ended_at) "
            "VALUES (:run, 1, :index, 'LOST', '2026-03-01 12:00:00', '{}', 0, '2026-03-01 12:00:00')",
            run=fence.run_id,
            index=index,
        )
    row = world.end(fence)
    assert (row.status, row.outcome) == (RunStatus.FAILED, "partial" if len(lost) < 3 else "failed")


def test_an_index_with_two_rows_that_count_gets_no_verdict(world: World, hand: Hand) -> None:
    fence = world.resume(ended(world))
    world.deploy(fence)
    hand.write("UPDATE task_history SET superseded_by = NULL")
    with pytest.raises(RowUnreadable, match="two rows that count; set superseded_by"):
        world.finish(fence)
    ids = [task.task_id for task in world.store.tasks.list_tasks(fence.run_id, superseded=True)]
    hand.write("UPDATE task_history SET superseded_by = :new WHERE task_id = :old", new=ids[1], old=ids[0])
    assert world.end(fence).status is RunStatus.COMPLETED


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED"])
def test_an_end_set_by_hand_is_no_verdict(world: World, hand: Hand, status: str) -> None:
    fence = world.deployed()
    world.execute(fence)
    end = "UPDATE run_history SET ended_at = '2026-03-01 13:00:00', status = :status"
    hand.write(end, status=status)
    for step in (lambda: world.stage(fence, []), lambda: world.end(fence)):
        with pytest.raises(RowUnreadable, match="1 of its tasks are alive: set it back to PROCESSING"):
            step()
    hand.write("UPDATE task_history SET status = 'SUCCEEDED', ended_at = '2026-03-01 13:00:00'")
    with pytest.raises(RowUnreadable, match="no verdict of attempt 1 set it"):
        world.end(fence)
    assert hand.read("SELECT status FROM run_history") == status
    hand.write("UPDATE run_history SET ended_at = NULL, status = 'PROCESSING'")
    assert world.end(fence).status is RunStatus.COMPLETED
    assert world.store.events.last_event(fence.run_id, "run.ended") is not None


def test_a_stop_is_recorded_although_a_counter_and_a_task_cannot_be(world: World, hand: Hand) -> None:
    fence = world.deployed(tasks=2)
    hand.set("run_history", "pages", -1)
    hand.write("UPDATE task_history SET status = 'BANANA' WHERE task_index = 1")
    assert world.store.stops.record_stop(fence.run_id, world.stop(), "s1", fence).status is RunStatus.STOPPING


def test_records_that_cannot_be_read_are_marked_and_the_others_told(world: World, hand: Hand) -> None:
    fence = world.deployed()
    world.execute(fence)
    world.finish(fence)
    newest = world.store.events.last_event_seq()
    odd = "{oops" if hand.sqlite else '"oops"'
    second = world.store.runs.transitions(fence.run_id)[1].seq
    hand.write("UPDATE status_transition SET evidence = :odd WHERE seq = :seq", odd=odd, seq=second)
    hand.write("UPDATE outbox_event SET body = :odd WHERE seq = :seq", odd=odd, seq=newest)
    told = [t.evidence.get("unreadable") for t in world.store.runs.transitions(fence.run_id)]
    assert [text is not None for text in told] == [n == 1 for n in range(len(told))]
    assert f"status_transition seq {second}, run_id {fence.run_id}: evidence is" in str(told[1])
    events = world.store.events.events_after(0)
    assert [event.seq for event in events] == list(range(1, newest + 1))
    assert "outbox_event seq" in str(events[-1].body["unreadable"])
    with pytest.raises(RowUnreadable, match="outbox_event seq"):
        world.store.events.get_event(newest)


@pytest.mark.parametrize("column", ["finding", "details"])
def test_what_a_look_staged_and_cannot_be_read_is_thrown_away_by_hand(world: World, hand: Hand, column: str) -> None:
    fence = world.deployed()
    [task] = world.store.looks.found_state(fence).tasks
    observation = seen(task, Phase.EXECUTING, world.clock.now, uid=task.uid)
    world.stage(fence, [observation])
    hand.set("task_observation", column, '{"pages": "many"}')
    with pytest.raises(
        RowUnreadable, match=rf"task_observation task_id \d+, run_id \d+: {column} is .*delete this row"
    ):
        world.store.looks.apply_details(fence)
    hand.write("DELETE FROM task_observation")
    world.look(fence, [observation])
    assert world.statuses(fence) == {0: TaskStatus.RUNNING}


REQUESTS: list[tuple[str, str]] = [
    ('{"crawler": 7}', "crawler of the request"),
    ('{"crawler": "services", "limits": {"run_timeout_s": -1}}', "run_timeout_s"),
    ('{"crawler": "services", "priority": "high"}', "priority of the request"),
]


@pytest.mark.parametrize(("request_text", "words"), REQUESTS)
def test_a_stored_request_that_is_none_is_told(world: World, hand: Hand, request_text: str, words: str) -> None:
    fence = world.run()
    before = hand.set("run_history", "request", request_text)
    asked: list[Callable[[], Any]] = [
        lambda: world.store.runs.request_of(fence.run_id),
        lambda: world.store.runs.get_run(fence.run_id),
    ]
    asked.append(lambda: world.run())
    for ask in asked:
        with pytest.raises(RowUnreadable, match=words):
            ask()
    hand.set("run_history", "request", before)
    assert world.run() == fence


def test_the_sweep_finds_unreadable_rows_and_the_others(world: World, hand: Hand) -> None:
    for n in range(3):
        world.store.initiation.reserve_run(
            replace(world.store.runs.request_of(world.run("x").run_id), request_id=None), f"n{n}"
        )
    hand.write("UPDATE run_history SET request = '[]' WHERE request_id = 'n1'")
    world.clock.forward(60)
    rows = world.store.sweep.unowned_runs(world.clock.now - timedelta(seconds=10))
    assert [(row.request_id, row.unreadable is None) for row in rows] == [("n0", True), ("n1", False), ("n2", True)]


def test_every_error_is_one_that_is_tried_again() -> None:
    kinds: list[type[LifecycleError]] = [RowUnreadable, RowEdited]
    assert all(kind.retryable for kind in kinds)
