"""Tasks that are added to a live run: once for each key, densely, and never to a run that is
over.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    InvalidRequest,
    NotInThisState,
    RunNotFound,
)
from crawler_lifecycle.domain.run import AddedTask, RunStatus
from crawler_lifecycle.domain.task import End, Phase, TaskStatus
from crawler_lifecycle.ports.runs import Fence, RunRow
from crawler_lifecycle.store.runs.tables import task_addition
from crawler_lifecycle.store.store import Store
from tests.contracts.store.test_writers import together
from tests.contracts.store.world import START, World, request, seen

ARGS = [{"letter": "a"}, {"letter": "b"}]


def test_tasks_go_on_after_the_highest_index(world: World) -> None:
    fence = world.run(tasks=3)
    first = world.store.additions.add_tasks(fence.run_id, "k1", ARGS, fence)
    second = world.store.additions.add_tasks(fence.run_id, "k2", ARGS[:1])
    assert [task.index for task in first + second] == [3, 4, 5]
    rows = {row.task_id: row for row in world.store.tasks.list_tasks(fence.run_id)}
    assert [rows[task.task_id].args for task in first] == ARGS
    assert {rows[t.task_id].status for t in first + second} == {TaskStatus.QUEUED}
    assert {row.attempt for row in rows.values()} == {1}
    assert world.deploy(fence) == [0, 1, 2, 3, 4, 5]


def test_one_event_tells_of_the_change(world: World) -> None:
    fence = world.run()
    assert not world.row(fence).multi
    before = world.store.events.events_after(0)
    world.store.additions.add_tasks(fence.run_id, "k1", ARGS)
    [event] = world.store.events.events_after(before[-1].seq)
    assert (event.type, event.body["tasks"]) == ("run.changed", {"QUEUED": 3})
    assert world.row(fence).multi
    world.store.additions.add_tasks(fence.run_id, "k1", ARGS)
    assert world.store.events.events_after(event.seq) == []


def test_a_reserved_run_takes_tasks(world: World) -> None:
    row, _ = world.store.initiation.reserve_run(request(), "r1")
    assert [task.index for task in world.store.additions.add_tasks(row.run_id, "k", ARGS)] == [1, 2]


def test_the_same_key_gets_the_same_answer_in_every_state(world: World) -> None:
    fence = world.run(tasks=1)
    added = world.store.additions.add_tasks(fence.run_id, "k1", ARGS)

    def again() -> None:
        assert world.store.additions.add_tasks(fence.run_id, "k1", ARGS) == added

    again()
    world.store.stops.record_stop(fence.run_id, world.stop(), "s")
    again()
    world.store.stops.cancel_queued(fence, world.clock.now)
    assert world.end(fence).status is RunStatus.FAILED
    again()
    second = world.resume(fence)
    assert len(world.store.tasks.list_tasks(fence.run_id, superseded=True)) == 6
    again()
    world.deploy(second)
    world.finish(second)
    again()
    assert len(world.store.tasks.list_tasks(fence.run_id)) == 3


def test_a_key_with_other_arguments(world: World) -> None:
    fence = world.run(tasks=1)
    world.store.additions.add_tasks(fence.run_id, "k1", ARGS)
    for other in (ARGS[:1], ARGS[::-1], [*ARGS, {}], [{}, {}]):
        with pytest.raises(
            DuplicateRequest, match=rf"'k1' already added 2 other tasks to run {fence.run_id}"
        ):
            world.store.additions.add_tasks(fence.run_id, "k1", other)
    assert world.store.tasks.count_tasks(fence.run_id).queued == 3
    # Keys belong to a run, and letters count.
    other_run = world.run("r2")
    assert [
        task.index for task in world.store.additions.add_tasks(other_run.run_id, "k1", ARGS[:1])
    ] == [1]
    assert [
        task.index for task in world.store.additions.add_tasks(fence.run_id, "K1", ARGS[:1])
    ] == [3]


def test_a_key_that_cannot_be_one(world: World) -> None:
    fence = world.run()
    for key in ("", "x" * 121, " k", "k ", "a\nb", "a\x00b", "a\ud800b"):
        with pytest.raises(InvalidRequest, match="request_id: "):
            world.store.additions.add_tasks(fence.run_id, key, ARGS)
    assert world.store.tasks.count_tasks(fence.run_id).queued == 1


def test_no_tasks_and_no_run(world: World) -> None:
    fence = world.run()
    with pytest.raises(InvalidRequest, match=r"tasks: \[\] is not allowed; give at least one"):
        world.store.additions.add_tasks(fence.run_id, "k", [])
    with pytest.raises(RunNotFound):
        world.store.additions.add_tasks(fence.run_id + 1000, "k", ARGS)


def test_more_tasks_than_a_run_may_have(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crawler_lifecycle.store.runs.additions.TASKS_PER_RUN_MAX", 4)
    fence = world.run(tasks=2)
    with pytest.raises(
        InvalidRequest, match=r"tasks: 3 .* at most 4, and this one has 2: start another run"
    ):
        world.store.additions.add_tasks(fence.run_id, "k", [*ARGS, {}])
    assert len(world.store.additions.add_tasks(fence.run_id, "k", ARGS)) == 2
    # The repeat asks for no more room.
    assert len(world.store.additions.add_tasks(fence.run_id, "k", ARGS)) == 2
    with pytest.raises(InvalidRequest, match="this one has 4"):
        world.store.additions.add_tasks(fence.run_id, "k2", [{}])
    with pytest.raises(InvalidRequest, match="tasks: 5 tasks are not allowed"):
        world.store.initiation.reserve_run(request(), "r2", [{}] * 5)
    assert world.store.runs.find_run("r2") is None


def test_after_a_stop_and_after_the_end(world: World) -> None:
    fence = world.deployed()
    world.store.stops.record_stop(fence.run_id, world.stop(), "s")
    with pytest.raises(
        NotInThisState,
        match=r"was asked to stop and takes no more tasks; wait for its end and resume",
    ):
        world.store.additions.add_tasks(fence.run_id, "k", ARGS)
    world.finish(fence)
    with pytest.raises(
        NotInThisState, match=r"is COMPLETED and takes no more tasks; resume it first"
    ):
        world.store.additions.add_tasks(fence.run_id, "k", ARGS)
    assert world.store.tasks.count_tasks(fence.run_id).by_status == {"SUCCEEDED": 1}
    # The refused key was not used up.
    second = world.resume(fence, rerun=True)
    added = world.store.additions.add_tasks(fence.run_id, "k", ARGS, second)
    assert [
        row.attempt
        for row in world.store.tasks.list_tasks(fence.run_id)
        if row.task_index in (1, 2)
    ] == [2, 2]
    assert [task.index for task in added] == [1, 2]


def test_ten_thousand_tasks_in_a_few_statements(world: World, store: Store) -> None:
    fence = world.run()
    sent: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    sa.event.listen(store.database.engine, "before_cursor_execute", note)
    added = store.additions.add_tasks(fence.run_id, "k", [{"n": str(n)} for n in range(10_000)])
    sa.event.remove(store.database.engine, "before_cursor_execute", note)
    assert [task.index for task in added] == list(range(1, 10_001))
    assert len({task.task_id for task in added}) == 10_000
    assert len(sent) < 15


# --- races ----------------------------------------------------------------------------------------


def test_many_adders_at_once(world: World) -> None:
    fence = world.run(tasks=1)

    def add(key: str) -> Callable[[], list[AddedTask]]:
        return lambda: world.store.additions.add_tasks(fence.run_id, key, [{"key": key}] * 5)

    # Every key twice at the same time, as a caller that lost patience would send it.
    answers = together(*[add(f"k{n % 8}") for n in range(16)])
    assert answers[:8] == answers[8:]
    indexes = [task.index for answer in answers[:8] for task in answer]
    assert sorted(indexes) == list(range(1, 41))
    for answer in answers:
        first = answer[0].index
        assert [task.index for task in answer] == list(range(first, first + 5))
    rows = {row.task_id: row for row in world.store.tasks.list_tasks(fence.run_id)}
    for n, answer in enumerate(answers[:8]):
        assert {rows[task.task_id].args["key"] for task in answer} == {f"k{n}"}
    assert sorted(row.task_index for row in rows.values()) == list(range(41))


@pytest.mark.parametrize("round_", range(3))
def test_an_addition_against_the_end(world: World, store: Store, round_: int) -> None:
    fence = world.executing()
    world.see_ends(fence)
    ended, added = together(
        lambda: world.end(fence), lambda: world.store.additions.add_tasks(fence.run_id, "k", ARGS)
    )
    queued = world.store.tasks.count_tasks(fence.run_id).queued
    if isinstance(ended, RunRow):
        assert isinstance(added, NotInThisState)
        assert (world.status(fence), queued) == (RunStatus.COMPLETED, 0)
        with store.database.reading() as conn:
            assert conn.execute(sa.select(task_addition)).all() == []
    else:
        assert isinstance(ended, NotInThisState)
        assert ([task.index for task in added], queued) == ([1, 2], 2)
        assert not world.status(fence).terminal


@pytest.mark.parametrize("round_", range(2))
def test_an_addition_against_a_stop(world: World, round_: int) -> None:
    fence = world.run(tasks=2)
    _, added = together(
        lambda: world.store.stops.record_stop(fence.run_id, world.stop(), "s"),
        lambda: world.store.additions.add_tasks(fence.run_id, "k", ARGS),
    )
    expected = 2 if isinstance(added, NotInThisState) else 4
    assert world.store.stops.cancel_queued(fence, world.clock.now).by_status == {
        "CANCELLED": expected
    }
    world.end(fence)
    with pytest.raises(NotInThisState):
        world.store.additions.add_tasks(fence.run_id, "k2", ARGS)


def test_additions_beside_offers_and_polls(world: World) -> None:
    """No two of these wait for each other in circles, and what was added is offered."""
    fences = [world.deployed(f"r{n}", 3) for n in range(4)]

    def grow(fence: Fence) -> list[int]:
        offered: list[int] = []
        for n in range(5):
            world.store.additions.add_tasks(fence.run_id, f"k{n}", ARGS)
            offered += world.deploy(fence)
            world.execute(fence)
        return offered

    assert together(*[lambda f=f: grow(f) for f in fences]) == [list(range(3, 13))] * 4


# --- texts ----------------------------------------------------------------------------------------

NASTY = [
    "it's \\ 100 % %s %(x)s :name ?",
    "'); DROP TABLE run_history; -- ",
    "\\",
    "\\'",
    "a\x00b\x1a\r\n\t\b",
    '"quoted" `ticks` /* */ # --',
    "zürich 東京 \U0001f577 \u2028",
]


@pytest.mark.parametrize("text", NASTY)
def test_every_text_arrives_as_it_was_sent(world: World, text: str) -> None:
    fence = world.run(tasks=1)
    world.store.additions.add_tasks(fence.run_id, "k", [{"text": text, text: "key"}] * 2)
    rows = world.store.tasks.list_tasks(fence.run_id)
    assert [row.args for row in rows[1:]] == [{"text": text, text: "key"}] * 2
    world.deploy(fence, limit=1)
    [task] = [
        t for t in world.store.polls.found_state(fence).tasks if t.status is TaskStatus.PENDING
    ]
    end = End(exit_code=1, reason=text, message=text, finished_at=START, finish_reason=text)
    world.poll(fence, [seen(task, Phase.ENDED, START, uid=task.uid, node=text[:200], end=end)])
    world.store.deployment.refuse_queued(fence, text)
    ended, refused, _ = world.store.tasks.list_tasks(fence.run_id)
    assert (ended.node, ended.reason) == (text, text)
    assert (refused.cause, refused.reason) == (text, text)
    told = [t for t in world.store.runs.transitions(fence.run_id) if t.task_id == ended.task_id][-1]
    assert told.evidence["end"]["message"] == text  # type: ignore[index]


def test_the_evidence_leaves_out_what_was_not_seen_and_cuts_what_is_long(world: World) -> None:
    fence = world.deployed()
    [task] = world.store.polls.found_state(fence).tasks
    end = End(exit_code=1, message="m" * 5000, finished_at=START)
    world.poll(fence, [seen(task, Phase.ENDED, START, uid=task.uid, end=end)])
    evidence = world.store.runs.transitions(fence.run_id)[-1].evidence
    assert evidence["end"] == {
        "exit_code": 1,
        "message": "m" * 1000,
        "finished_at": "2026-03-01T12:00:00.123456Z",
        "runner": True,
        "by_itself": False,
        "told": False,
    }
    assert "counters" not in evidence
    assert "node" not in evidence
