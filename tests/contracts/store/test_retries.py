"""Further tries of tasks: their rows, their times, the run's budget, and a resume after them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from crawler_lifecycle.domain.errors import Fenced
from crawler_lifecycle.domain.retries import EndedTry, NextTry
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.task import Phase, TaskStatus
from crawler_lifecycle.ports.runs import Fence, Resting, TaskRow
from crawler_lifecycle.store.runs import retries

from .harness import Harness, seen

Decide = Callable[[EndedTry, int], NextTry | str]


def after(seconds: float) -> Decide:
    return lambda end, used: NextTry(seconds)


def lose(harness: Harness, fence: Fence, *indexes: int, node: str | None = None) -> None:
    """Let these tasks disappear from the cluster, from this node."""
    tasks = [task for task in harness.store.polls.found_state(fence).tasks if task.index in indexes]
    if node is not None:
        harness.poll(
            fence,
            [seen(t, Phase.EXECUTING, harness.clock.now, uid=t.uid, node=node) for t in tasks],
        )
    harness.poll(fence, [seen(task, Phase.GONE, harness.clock.now) for task in tasks])


def tries(harness: Harness, fence: Fence) -> list[TaskRow]:
    """Return all tries of all tasks, by index and attempt."""
    rows = harness.store.tasks.list_tasks(fence.run_id, superseded=True)
    return sorted(rows, key=lambda row: (row.task_index, row.attempt))


def test_a_lost_task_has_another_try_and_both_stay_on_record(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    lose(harness, fence, 1, node="n-7")
    done = harness.store.retries.retry_ended(fence, after(60), 3)
    assert (done.counts.by_status, done.ended, done.resting) == (
        {"RUNNING": 1, "QUEUED": 1},
        0,
        Resting(1, 60.0),
    )
    kept, first, second = tries(harness, fence)
    assert (kept.superseded_by, first.superseded_by, second.superseded_by) == (
        None,
        second.task_id,
        None,
    )
    assert [(t.status, t.attempt, t.retry) for t in (first, second)] == [
        ("LOST", 1, 0),
        ("QUEUED", 2, 1),
    ]
    assert second.not_before == harness.clock.now + timedelta(seconds=60)
    assert (second.reason or "").startswith("retry (1 of 3): It vanished")
    assert harness.row(
        fence
    ).waiting_for == f"retrying at {second.not_before:%Y-%m-%dT%H:%M:%SZ} " + (
        second.reason or ""
    ).removeprefix("retry ")
    moved = [t for t in harness.store.runs.transitions(fence.run_id) if t.source == "retry"]
    assert [(t.task_id, t.attempt, t.to_status, t.evidence["retry"]) for t in moved] == [
        (second.task_id, 2, "QUEUED", 1)
    ]


def test_a_try_is_offered_at_its_time_and_not_before(harness: Harness) -> None:
    fence = harness.executing(tasks=1)
    lose(harness, fence, 0, node="n-7")
    harness.store.retries.retry_ended(fence, after(60), 3)
    until = harness.clock.forward(59) + timedelta(seconds=25)
    assert harness.store.deployment.offer_tasks(fence, 10, None, until) == ([], None)
    harness.clock.forward(1)
    [task], _ = harness.store.deployment.offer_tasks(fence, 10, None, until)
    assert (task.attempt, task.retry, task.avoid_node) == (2, 1, "n-7")
    assert harness.store.retries.resting(fence.run_id) == Resting(0, None)
    harness.begin(fence)
    assert harness.finish(fence).status is RunStatus.COMPLETED


def test_each_end_is_decided_once(harness: Harness) -> None:
    fence = harness.executing(tasks=3)
    lose(harness, fence, 0, 1)
    asked: list[int] = []

    def one(end: EndedTry, used: int) -> NextTry | str:
        asked.append(used)
        return NextTry(0) if used < 1 else "the budget is used up"

    first = harness.store.retries.retry_ended(fence, one, 3)
    assert (first.ended, first.resting.tasks, asked) == (1, 0, [0, 1])
    assert harness.store.retries.retry_ended(fence, one, 3) == first
    assert asked == [0, 1]
    lose(harness, fence, 2)
    harness.store.retries.retry_ended(fence, one, 3)
    assert asked == [0, 1, 1], "the budget counts what was used before"
    notes = [(row.task_index, row.retry_note) for row in tries(harness, fence) if row.retry_note]
    assert notes == [(1, "the budget is used up"), (2, "the budget is used up")]


@pytest.mark.parametrize("page", [3, 100])
def test_many_ends_are_decided_in_pages_and_a_broken_page_alone_is_decided_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(retries, "PAGE", page)
    fence = harness.executing(tasks=8)
    lose(harness, fence, *range(8))
    asked, broken = list[int](), [4, 1]

    def one(end: EndedTry, used: int) -> NextTry | str:
        asked.append(used)
        if len(asked) == broken[0]:
            broken.pop(0)
            raise RuntimeError("the database went away in the middle of a page")
        return (
            NextTry(60, f"{int(end.key.split('/')[-2]) + 1}Gi")
            if used < 5
            else "the budget is used up"
        )

    left = list[int]()
    while not left or left[-1]:
        before = len(asked)
        try:
            done = harness.store.retries.retry_ended(fence, one, 3, remember=True)
            left.append(done.left)
        except RuntimeError:
            left.append(8 - len([row for row in tries(harness, fence) if row.superseded_by]))
        assert len(asked) - before <= page, "no transaction grows with the number of ends"
    assert left == ([5, 5, 2, 0] if page == 3 else [8, 0])
    assert (done.ended, done.resting.tasks, done.counts.by_status) == (
        3,
        5,
        {"LOST": 3, "QUEUED": 5},
    )
    assert [
        (row.task_index, row.retry_note)
        for row in tries(harness, fence)
        if row.superseded_by is None
    ] == [
        *((index, None) for index in range(5)),
        *((index, "the budget is used up") for index in (5, 6, 7)),
    ]
    assert harness.store.retries.retry_ended(fence, one, 3) == done
    assert harness.store.retries.memory_of("default", "services") == "5Gi", "the most of all pages"


def test_nothing_is_tried_again_after_a_stop_or_by_a_former_owner(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    lose(harness, fence, 0)
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s")
    assert harness.store.retries.retry_ended(fence, after(0), 3).resting == Resting(0, None)
    assert harness.statuses(fence) == {0: TaskStatus.LOST, 1: TaskStatus.RUNNING}
    harness.finish(fence)
    second = harness.resume(fence)
    with pytest.raises(Fenced):
        harness.store.retries.retry_ended(fence, after(0), 3)
    now = [
        (t.attempt, t.run_attempt, t.retry)
        for t in tries(harness, second)
        if t.superseded_by is None
    ]
    assert now == [
        (2, 2, 0),
        (1, 1, 0),
    ]


def test_a_stop_ends_the_wait_of_a_try(harness: Harness) -> None:
    fence = harness.executing(tasks=1)
    lose(harness, fence, 0)
    harness.store.retries.retry_ended(fence, after(3600), 3)
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s")
    assert harness.store.stops.cancel_queued(fence, harness.clock.now).alive == 0
    assert harness.end(fence).outcome == "cancelled"


def test_a_resume_counts_its_own_tries_under_numbers_above_all_before(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    for n in range(3):
        lose(harness, fence, 0)
        decided = after(0) if n < 2 else lambda end, used: "2 of 2 tries made"
        harness.store.retries.retry_ended(fence, decided, 2)
        harness.begin(fence)
    harness.finish(fence, failed=[1])
    second = harness.resume(fence)
    now = [
        (t.task_index, t.attempt, t.run_attempt, t.retry)
        for t in tries(harness, second)
        if t.superseded_by is None
    ]
    assert now == [(0, 4, 2, 0), (1, 4, 2, 0)]
    harness.store.additions.add_tasks(fence.run_id, "more", [{"a": "1"}])
    assert tries(harness, second)[-1].attempt == 4
    harness.begin(second)
    lose(harness, second, 1)
    used: list[int] = []
    harness.store.retries.retry_ended(second, lambda end, n: used.append(n) or NextTry(0), 2)  # type: ignore[func-returns-value]
    assert used == [0], "the tries of the former attempt are not counted"


def test_a_resume_counts_a_try_that_waits_as_the_first_one(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    lose(harness, fence, 1)
    harness.store.retries.retry_ended(fence, after(60), 3)
    second = harness.resume(fence)  # its workflow was terminated
    now = [
        (t.task_index, t.attempt, t.run_attempt, t.retry)
        for t in tries(harness, second)
        if t.superseded_by is None
    ]
    assert now == [(0, 1, 1, 0), (1, 3, 2, 0)]
    assert harness.store.retries.resting(fence.run_id) == Resting(0, None)


def test_the_verdict_counts_the_last_try(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    lose(harness, fence, 0)
    harness.store.retries.retry_ended(fence, after(0), 3)
    harness.begin(fence)
    row = harness.finish(fence)
    assert (row.status, row.outcome) == (RunStatus.COMPLETED, "finished")


def test_the_memory_of_a_crawler_is_remembered_by_project(harness: Harness) -> None:
    assert harness.store.retries.memory_of("default", "services") is None
    for memory, tasks in (("768Mi", 1), ("1Gi", 2)):
        fence = harness.executing(f"r-{memory}", tasks=tasks)
        lose(harness, fence, 0)
        harness.store.retries.retry_ended(
            fence, lambda end, used, given=memory: NextTry(0, given), 3, remember=True
        )  # type: ignore[misc]
        [again] = [task for task in tries(harness, fence) if task.retry]
        [offered], _ = harness.store.deployment.offer_tasks(
            fence, 10, None, harness.clock.now + timedelta(seconds=25)
        )
        assert (offered.task_id, offered.memory) == (again.task_id, memory)
    assert harness.store.retries.memory_of("default", "services") == "1Gi"
    assert harness.store.retries.memory_of("other", "services") is None
