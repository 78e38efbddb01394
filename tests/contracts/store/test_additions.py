"""Tasks that are added to a live run: once per key, densely numbered, and never to an ended run."""

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
from tests.contracts.store.harness import START, Harness, request, seen
from tests.contracts.store.test_writers import together

ARGS = [{"letter": "a"}, {"letter": "b"}]


def test_tasks_go_on_after_the_highest_index(harness: Harness) -> None:
    fence = harness.run(tasks=3)
    first = harness.store.additions.add_tasks(fence.run_id, "k1", ARGS, fence)
    second = harness.store.additions.add_tasks(fence.run_id, "k2", ARGS[:1])
    assert [task.index for task in first + second] == [3, 4, 5]
    rows = {row.task_id: row for row in harness.store.tasks.list_tasks(fence.run_id)}
    assert [rows[task.task_id].args for task in first] == ARGS
    assert {rows[t.task_id].status for t in first + second} == {TaskStatus.QUEUED}
    assert {row.attempt for row in rows.values()} == {1}
    assert harness.deploy(fence) == [0, 1, 2, 3, 4, 5]


def test_one_event_tells_of_the_change(harness: Harness) -> None:
    fence = harness.run()
    assert not harness.row(fence).multi
    before = harness.store.events.events_after(0)
    harness.store.additions.add_tasks(fence.run_id, "k1", ARGS)
    [event] = harness.store.events.events_after(before[-1].seq)
    assert (event.type, event.body["tasks"]) == ("run.changed", {"QUEUED": 3})
    assert harness.row(fence).multi
    harness.store.additions.add_tasks(fence.run_id, "k1", ARGS)
    assert harness.store.events.events_after(event.seq) == []


def test_a_reserved_run_takes_tasks(harness: Harness) -> None:
    row, _ = harness.store.initiation.reserve_run(request(), "r1")
    assert [task.index for task in harness.store.additions.add_tasks(row.run_id, "k", ARGS)] == [
        1,
        2,
    ]


def test_the_same_key_gets_the_same_answer_in_every_state(harness: Harness) -> None:
    fence = harness.run(tasks=1)
    added = harness.store.additions.add_tasks(fence.run_id, "k1", ARGS)

    def again() -> None:
        assert harness.store.additions.add_tasks(fence.run_id, "k1", ARGS) == added

    again()
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s")
    again()
    harness.store.stops.cancel_queued(fence, harness.clock.now)
    assert harness.end(fence).status is RunStatus.FAILED
    again()
    second = harness.resume(fence)
    assert len(harness.store.tasks.list_tasks(fence.run_id, superseded=True)) == 6
    again()
    harness.deploy(second)
    harness.finish(second)
    again()
    assert len(harness.store.tasks.list_tasks(fence.run_id)) == 3


def test_a_key_with_other_arguments(harness: Harness) -> None:
    fence = harness.run(tasks=1)
    harness.store.additions.add_tasks(fence.run_id, "k1", ARGS)
    for other in (ARGS[:1], ARGS[::-1], [*ARGS, {}], [{}, {}]):
        with pytest.raises(
            DuplicateRequest, match=rf"'k1' already added 2 other tasks to run {fence.run_id}"
        ):
            harness.store.additions.add_tasks(fence.run_id, "k1", other)
    assert harness.store.tasks.count_tasks(fence.run_id).queued == 3
    # Keys belong to a run, and are case-sensitive.
    other_run = harness.run("r2")
    assert [
        task.index for task in harness.store.additions.add_tasks(other_run.run_id, "k1", ARGS[:1])
    ] == [1]
    assert [
        task.index for task in harness.store.additions.add_tasks(fence.run_id, "K1", ARGS[:1])
    ] == [3]


def test_a_key_that_cannot_be_one(harness: Harness) -> None:
    fence = harness.run()
    for key in ("", "x" * 121, " k", "k ", "a\nb", "a\x00b", "a\ud800b"):
        with pytest.raises(InvalidRequest, match="request_id: "):
            harness.store.additions.add_tasks(fence.run_id, key, ARGS)
    assert harness.store.tasks.count_tasks(fence.run_id).queued == 1


def test_no_tasks_and_no_run(harness: Harness) -> None:
    fence = harness.run()
    with pytest.raises(InvalidRequest, match=r"tasks: \[\] is not allowed; give at least one"):
        harness.store.additions.add_tasks(fence.run_id, "k", [])
    with pytest.raises(RunNotFound):
        harness.store.additions.add_tasks(fence.run_id + 1000, "k", ARGS)


def test_more_tasks_than_a_run_may_have(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crawler_lifecycle.store.runs.additions.TASKS_PER_RUN_MAX", 4)
    fence = harness.run(tasks=2)
    with pytest.raises(
        InvalidRequest, match=r"tasks: 3 .* at most 4, and this one has 2: start another run"
    ):
        harness.store.additions.add_tasks(fence.run_id, "k", [*ARGS, {}])
    assert len(harness.store.additions.add_tasks(fence.run_id, "k", ARGS)) == 2
    # The repetition needs no more capacity.
    assert len(harness.store.additions.add_tasks(fence.run_id, "k", ARGS)) == 2
    with pytest.raises(InvalidRequest, match="this one has 4"):
        harness.store.additions.add_tasks(fence.run_id, "k2", [{}])
    with pytest.raises(InvalidRequest, match="tasks: 5 tasks are not allowed"):
        harness.store.initiation.reserve_run(request(), "r2", [{}] * 5)
    assert harness.store.runs.find_run("r2") is None


def test_after_a_stop_and_after_the_end(harness: Harness) -> None:
    fence = harness.deployed()
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s")
    with pytest.raises(
        NotInThisState,
        match=r"was asked to stop and accepts no more tasks; wait for its end and resume",
    ):
        harness.store.additions.add_tasks(fence.run_id, "k", ARGS)
    harness.finish(fence)
    with pytest.raises(
        NotInThisState, match=r"is COMPLETED and accepts no more tasks; resume it first"
    ):
        harness.store.additions.add_tasks(fence.run_id, "k", ARGS)
    assert harness.store.tasks.count_tasks(fence.run_id).by_status == {"SUCCEEDED": 1}
    # The refused key was not used up.
    second = harness.resume(fence, rerun=True)
    added = harness.store.additions.add_tasks(fence.run_id, "k", ARGS, second)
    assert [
        row.attempt
        for row in harness.store.tasks.list_tasks(fence.run_id)
        if row.task_index in (1, 2)
    ] == [2, 2]
    assert [task.index for task in added] == [1, 2]


def test_ten_thousand_tasks_in_a_few_statements(harness: Harness, store: Store) -> None:
    fence = harness.run()
    sent: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    sa.event.listen(store.database.engine, "before_cursor_execute", note)
    added = store.additions.add_tasks(fence.run_id, "k", [{"n": str(n)} for n in range(10_000)])
    sa.event.remove(store.database.engine, "before_cursor_execute", note)
    assert [task.index for task in added] == list(range(1, 10_001))
    assert len({task.task_id for task in added}) == 10_000
    assert len(sent) < 20


# --- races ----------------------------------------------------------------------------------------


def test_many_adders_at_once(harness: Harness) -> None:
    fence = harness.run(tasks=1)

    def add(key: str) -> Callable[[], list[AddedTask]]:
        return lambda: harness.store.additions.add_tasks(fence.run_id, key, [{"key": key}] * 5)

    # Every key twice at the same time, as an impatient caller would send it.
    answers = together(*[add(f"k{n % 8}") for n in range(16)])
    assert answers[:8] == answers[8:]
    indexes = [task.index for answer in answers[:8] for task in answer]
    assert sorted(indexes) == list(range(1, 41))
    for answer in answers:
        first = answer[0].index
        assert [task.index for task in answer] == list(range(first, first + 5))
    rows = {row.task_id: row for row in harness.store.tasks.list_tasks(fence.run_id)}
    for n, answer in enumerate(answers[:8]):
        assert {rows[task.task_id].args["key"] for task in answer} == {f"k{n}"}
    assert sorted(row.task_index for row in rows.values()) == list(range(41))


@pytest.mark.parametrize("round_", range(3))
def test_an_addition_against_the_end(harness: Harness, store: Store, round_: int) -> None:
    fence = harness.executing()
    harness.see_ends(fence)
    ended, added = together(
        lambda: harness.end(fence),
        lambda: harness.store.additions.add_tasks(fence.run_id, "k", ARGS),
    )
    queued = harness.store.tasks.count_tasks(fence.run_id).queued
    if isinstance(ended, RunRow):
        assert isinstance(added, NotInThisState)
        assert (harness.status(fence), queued) == (RunStatus.COMPLETED, 0)
        with store.database.reading() as conn:
            assert conn.execute(sa.select(task_addition)).all() == []
    else:
        assert isinstance(ended, NotInThisState)
        assert ([task.index for task in added], queued) == ([1, 2], 2)
        assert not harness.status(fence).terminal


@pytest.mark.parametrize("round_", range(2))
def test_an_addition_against_a_stop(harness: Harness, round_: int) -> None:
    fence = harness.run(tasks=2)
    _, added = together(
        lambda: harness.store.stops.record_stop(fence.run_id, harness.stop(), "s"),
        lambda: harness.store.additions.add_tasks(fence.run_id, "k", ARGS),
    )
    expected = 2 if isinstance(added, NotInThisState) else 4
    assert harness.store.stops.cancel_queued(fence, harness.clock.now).by_status == {
        "CANCELLED": expected
    }
    harness.end(fence)
    with pytest.raises(NotInThisState):
        harness.store.additions.add_tasks(fence.run_id, "k2", ARGS)


def test_additions_beside_offers_and_polls(harness: Harness) -> None:
    """None of them wait for each other in a circle, and what was added is offered."""
    fences = [harness.deployed(f"r{n}", 3) for n in range(4)]

    def grow(fence: Fence) -> list[int]:
        offered: list[int] = []
        for n in range(5):
            harness.store.additions.add_tasks(fence.run_id, f"k{n}", ARGS)
            offered += harness.deploy(fence)
            harness.execute(fence)
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
def test_every_text_arrives_as_it_was_sent(harness: Harness, text: str) -> None:
    fence = harness.run(tasks=1)
    harness.store.additions.add_tasks(fence.run_id, "k", [{"text": text, text: "key"}] * 2)
    rows = harness.store.tasks.list_tasks(fence.run_id)
    assert [row.args for row in rows[1:]] == [{"text": text, text: "key"}] * 2
    harness.deploy(fence, limit=1)
    [task] = [
        t for t in harness.store.polls.found_state(fence).tasks if t.status is TaskStatus.PENDING
    ]
    end = End(exit_code=1, reason=text, message=text, finished_at=START, finish_reason=text)
    harness.poll(fence, [seen(task, Phase.ENDED, START, uid=task.uid, node=text[:200], end=end)])
    harness.store.deployment.refuse_queued(fence, text)
    ended, refused, _ = harness.store.tasks.list_tasks(fence.run_id)
    assert (ended.node, ended.reason) == (text, text)
    assert (refused.cause, refused.reason) == (text, text)
    told = [t for t in harness.store.runs.transitions(fence.run_id) if t.task_id == ended.task_id][
        -1
    ]
    assert told.evidence["end"]["message"] == text  # type: ignore[index]


def test_the_evidence_leaves_out_what_was_not_seen_and_cuts_what_is_long(harness: Harness) -> None:
    fence = harness.deployed()
    [task] = harness.store.polls.found_state(fence).tasks
    end = End(exit_code=1, message="m" * 5000, finished_at=START)
    harness.poll(fence, [seen(task, Phase.ENDED, START, uid=task.uid, end=end)])
    evidence = harness.store.runs.transitions(fence.run_id)[-1].evidence
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
