"""A run without a row is inserted again with its number and uid, and continues under its owner."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from crawler_lifecycle.domain.errors import NotInThisState, RowMissing, RunNotFound
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports.runs import Fence, LostRun, TaskRecord
from tests.contracts.store.harness import OTHER, OWNER, Harness, request

UID = "0123456789abcdef" * 2


def lost(number: int, **more: object) -> LostRun:
    tasks = [record(number, index) for index in range(2)]
    given = {
        "attempt": 1,
        "request_id": "r1",
        "request": request(tags=["a"]),
        "multi": True,
        "owner": OWNER,
    }
    return LostRun(RunRef(number, UID), tasks=tasks, cluster="local", **{**given, **more})  # type: ignore[arg-type]


def record(number: int, index: int) -> TaskRecord:
    return TaskRecord(
        index,
        1,
        7_000_000 + 10 * number + index,
        "services",
        {"part": str(index)},
        {},
        f"c-{index}",
        f"uid-{index}",
    )


def number(harness: Harness) -> int:
    return harness.store.run_numbers.newest_run_id() + 3


def test_it_is_there_as_it_was_and_its_owner_may_write(harness: Harness) -> None:
    run = lost(number(harness))
    fence = Fence(run.run.run_id, 1, OWNER.first_run_id, UID)
    with pytest.raises(RowMissing, match="--adopt"):
        harness.store.polls.found_state(fence)
    with pytest.raises(RowMissing):
        harness.store.stops.mark_stopping(fence, [])
    with pytest.raises(RunNotFound):
        harness.store.initiation.claim_run(request(run_id=run.run.run_id), OTHER, lambda _: False)
    row = harness.store.adoption.adopt_run(run)
    assert (row.run_id, row.run_uid, row.request_id, row.attempt, row.status) == (
        run.run.run_id, UID, "r1", 1, RunStatus.PROCESSING,
    )  # fmt: skip
    assert (row.owner_workflow_id, row.multi, row.request["tags"]) == (
        OWNER.workflow_id,
        True,
        ["a"],
    )
    assert harness.store.adoption.adopt_run(run).updated_at == row.updated_at, (
        "again: nothing changes"
    )
    assert [
        (t.task_id, t.status, t.args, t.cluster_uid)
        for t in harness.store.tasks.list_tasks(row.run_id)
    ] == [(one.task_id, TaskStatus.PENDING, one.args, one.uid) for one in run.tasks]
    assert harness.finish(fence).status is RunStatus.COMPLETED
    assert harness.run("r2").run_id > row.run_id, "new numbers begin above it"


def test_a_task_of_which_nothing_is_left_is_lost(harness: Harness) -> None:
    run = lost(number(harness), total=3)
    row = harness.store.adoption.adopt_run(replace(run, tasks=run.tasks[1:]))
    statuses = {t.task_index: str(t.status) for t in harness.store.tasks.list_tasks(row.run_id)}
    assert statuses == {0: "LOST", 1: "PENDING", 2: "LOST"}
    assert (
        len([t for t in harness.store.runs.transitions(row.run_id) if t.to_status == "LOST"]) == 2
    )


def test_numbers_that_are_taken_are_told(harness: Harness) -> None:
    fence = harness.run("r1")
    run = lost(fence.run_id)
    with pytest.raises(NotInThisState, match=f"the number {fence.run_id} belongs to another run"):
        harness.store.adoption.adopt_run(run)
    [task] = harness.store.tasks.list_tasks(fence.run_id)
    other = lost(number(harness))
    with pytest.raises(NotInThisState, match=f"the number {task.task_id} of one of its tasks"):
        harness.store.adoption.adopt_run(
            replace(other, tasks=[replace(other.tasks[0], task_id=task.task_id)])
        )
    assert harness.store.runs.get_run(other.run.run_id) is None
    row = harness.store.adoption.adopt_run(other)
    assert row.request_id == f"r1/{UID[:8]}", "the request was sent again meanwhile"


def test_what_an_older_row_does_not_know_of_its_tasks_is_added(harness: Harness) -> None:
    run = lost(number(harness))
    harness.store.adoption.adopt_run(replace(run, tasks=run.tasks[:1], multi=False))
    row = harness.store.adoption.adopt_run(run)
    assert row.multi
    expected = {0: "PENDING", 1: "PENDING"}
    assert {
        t.task_index: str(t.status) for t in harness.store.tasks.list_tasks(row.run_id)
    } == expected
    later = replace(record(row.run_id, 3), record={"tasks": 6, "attempt": 1})
    resumed = replace(record(row.run_id, 9), attempt=2, record={"tasks": 99, "attempt": 2})
    for tasks in ([*run.tasks, later, resumed], [*run.tasks, later]):
        harness.store.adoption.adopt_run(replace(run, tasks=tasks))
        statuses = {t.task_index: str(t.status) for t in harness.store.tasks.list_tasks(row.run_id)}
        assert statuses == {**expected, 2: "LOST", 3: "PENDING", 4: "LOST", 5: "LOST"}, (
            "what was queued too"
        )
        assert (
            len([t for t in harness.store.runs.transitions(row.run_id) if t.to_status == "LOST"])
            == 3
        )
    for one in (resumed, replace(run.tasks[0], attempt=2)):
        with pytest.raises(
            NotInThisState, match=f"lacks attempt 2 of task {one.index} of run .*--end-unknown"
        ):
            harness.store.adoption.adopt_run(replace(run, tasks=[*run.tasks, one]))
    fence = Fence(row.run_id, 1, OWNER.first_run_id, UID)
    harness.finish(fence)
    with pytest.raises(NotInThisState, match="crawlctl resume"):
        harness.store.adoption.adopt_run(replace(run, tasks=[*run.tasks, record(row.run_id, 6)]))


# --- numbers


def test_new_runs_begin_above_a_number_and_nothing_is_left_of_it(harness: Harness) -> None:
    first = harness.run("r1").run_id
    [task] = harness.store.tasks.list_tasks(first)
    assert harness.store.run_numbers.newest_run_id() == first
    assert not harness.store.run_numbers.begin_run_ids_above(first), "it is known"
    assert harness.store.run_numbers.begin_run_ids_above(first + 40)
    assert not harness.store.run_numbers.begin_run_ids_above(first + 40), "again: nothing changes"
    assert not harness.store.run_numbers.begin_run_ids_above(first + 7), "it never goes back"
    assert harness.store.run_numbers.newest_run_id() == first
    assert set(harness.store.audits.existing_runs(range(first + 100))) == {first}
    second = harness.run("r2").run_id
    assert second > first + 40
    [other] = harness.store.tasks.list_tasks(second)
    assert other.task_id >= task.task_id + 40 * 100_000, (
        "the tasks of runs that are missing had numbers as well"
    )


def test_an_empty_database_begins_above(harness: Harness) -> None:
    newest = harness.store.run_numbers.newest_run_id()
    assert newest == 0
    assert harness.store.run_numbers.begin_run_ids_above(10_000_000)
    assert harness.run("r1").run_id > 10_000_000
    assert not harness.store.run_numbers.begin_run_ids_above(0)


def test_many_bring_it_forward_at_once(harness: Harness) -> None:
    begin = harness.run("r1").run_id
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(
                harness.store.run_numbers.begin_run_ids_above, [begin + n for n in range(1, 33)]
            )
        )
    assert harness.run("r2").run_id > begin + 32
    assert len(harness.store.runs.list_runs()) == 2
