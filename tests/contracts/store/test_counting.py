"""Counters read between polls only ever grow, belong to the right task, and confuse no rule."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from crawler_lifecycle.domain.bounds import COUNT_MAX
from crawler_lifecycle.domain.errors import RunNotFound
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters, Phase
from crawler_lifecycle.ports.polls import LiveCounters
from crawler_lifecycle.ports.runs import Fence
from tests.contracts.store.harness import Harness, good_end, seen


def counted(fence: Fence, pages: int | None, index: int = 0, **more: object) -> LiveCounters:
    return replace(
        LiveCounters(fence.run, fence.attempt, index, Counters(pages, items=pages)), **more
    )  # type: ignore[arg-type]


def pages(harness: Harness, fence: Fence) -> tuple[int | None, list[int | None]]:
    return harness.row(fence).pages, [
        task.pages for task in harness.store.tasks.list_tasks(fence.run_id)
    ]


def test_counters_are_on_record_between_polls(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    polled, events = harness.row(fence), harness.store.events.last_event_seq()
    moved = harness.clock.forward(12)
    told = [counted(fence, 6), counted(fence, 2, 1, at=moved - timedelta(seconds=3))]
    assert harness.store.live_counters.record_counts(fence.run, told) == 2
    assert pages(harness, fence) == (8, [6, 2])
    row = harness.row(fence)
    assert (row.items, row.last_progress_at) == (8, moved)
    expected = [moved, moved - timedelta(seconds=3)]
    assert [t.last_progress_at for t in harness.store.tasks.list_tasks(fence.run_id)] == expected
    assert row.pages_per_minute == 40
    assert [t.pages_per_minute for t in harness.store.tasks.list_tasks(fence.run_id)] == [30, 13.3]
    same = ("status", "verified_at", "next_look_at", "updated_at", "stage")
    assert [getattr(row, name) for name in same] == [getattr(polled, name) for name in same]
    assert harness.store.events.last_event_seq() == events
    harness.clock.forward(5)
    assert harness.store.live_counters.record_counts(fence.run, told) == 0, (
        "the same again is no news"
    )
    assert harness.row(fence) == row


def test_each_count_is_news_for_a_page_also_after_a_poll_by_a_clock_that_is_ahead(
    harness: Harness,
) -> None:
    fence = harness.executing()
    [task] = harness.store.polls.found_state(fence).tasks
    harness.poll(fence, [seen(task, Phase.EXECUTING, harness.clock.forward(600), uid=task.uid)])
    harness.clock.forward(-590)
    marks = []
    for number in (5, 6, 7):
        harness.store.live_counters.record_counts(fence.run, [counted(fence, number)])
        marks.append(harness.store.runs.run_marks([fence.run_id])[fence.run_id])
    assert len(set(marks)) == 3


def test_a_counter_is_never_lowered(harness: Harness) -> None:
    fence = harness.executing()
    harness.store.live_counters.record_counts(fence.run, [counted(fence, 9)])
    assert (
        harness.store.live_counters.record_counts(
            fence.run, [counted(fence, 4), counted(fence, None)]
        )
        == 0
    )
    now = harness.clock.forward(60)
    [task] = harness.store.polls.found_state(fence).tasks
    # A poll reads, another process counts, and only then is the poll recorded.
    harness.poll(
        fence, [seen(task, Phase.EXECUTING, now, uid=task.uid, counters=Counters(pages=7))]
    )
    assert pages(harness, fence) == (9, [9])
    end = seen(task, Phase.ENDED, now, uid=task.uid, counters=Counters(pages=8), end=good_end(now))
    harness.poll(fence, [end])
    assert pages(harness, fence) == (8, [8]), "the end has the last word"


def test_nothing_but_the_very_task_is_touched(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    now = harness.clock.forward(60)
    first, _ = harness.store.polls.found_state(fence).tasks
    harness.poll(
        fence,
        [seen(first, Phase.ENDED, now, uid=first.uid, counters=Counters(3), end=good_end(now))],
    )
    before = harness.row(fence), harness.store.tasks.list_tasks(fence.run_id)
    stranger = RunRef(fence.run_id, "0" * 32)
    strange = [counted(fence, 50, 1, attempt=2), counted(fence, 50, 7), counted(fence, 50, 0)]
    assert harness.store.live_counters.record_counts(fence.run, strange) == 0
    assert (
        harness.store.live_counters.record_counts(stranger, [counted(fence, 50, 1, run=stranger)])
        == 0
    )
    assert (harness.row(fence), harness.store.tasks.list_tasks(fence.run_id)) == before
    with pytest.raises(RunNotFound):
        harness.store.live_counters.record_counts(RunRef(10**9, fence.run_uid), [])
    harness.store.live_counters.record_counts(fence.run, [counted(fence, COUNT_MAX, 1)])
    assert pages(harness, fence) == (3 + COUNT_MAX, [3, COUNT_MAX])


def test_a_run_that_ended_is_left_alone(harness: Harness) -> None:
    fence = harness.executing()
    harness.finish(fence)
    before = harness.row(fence)
    assert harness.store.live_counters.record_counts(fence.run, [counted(fence, 99)]) == 0
    assert harness.row(fence) == before


def test_the_stall_rule_sees_progress_between_polls(harness: Harness) -> None:
    """The poll finds its counters on record already, but the run has still made progress."""
    fence = harness.executing()
    [task] = harness.store.polls.found_state(fence).tasks

    def poll(counters: Counters) -> float:
        now = harness.clock.forward(30)
        observation = seen(task, Phase.EXECUTING, now, uid=task.uid, counters=counters)
        return harness.stage(fence, [observation]).quiet.total_seconds()

    assert poll(Counters(1, 1)) == 0
    assert poll(Counters(1, 1)) == 30
    harness.clock.forward(30)
    harness.store.live_counters.record_counts(fence.run, [counted(fence, 5)])
    assert poll(Counters(5, 5)) == 0
    assert poll(Counters(5, 5)) == 30, "once, and not at every poll from then on"
    harness.clock.forward(30)
    harness.store.live_counters.record_counts(fence.run, [counted(fence, 5)])
    assert poll(Counters(5, 5)) == 90, "the same counters again are no progress"


def test_that_a_crawler_counts_is_no_progress_yet(harness: Harness) -> None:
    fence = harness.executing()
    assert harness.store.live_counters.record_counts(fence.run, [counted(fence, 0)]) == 1
    row = harness.row(fence)
    assert (row.pages, row.last_progress_at, row.pages_per_minute) == (0, None, None)


def test_the_pace_of_a_resumed_run_is_unknown_and_that_of_its_tasks_is_not(
    harness: Harness,
) -> None:
    fence = harness.executing()
    harness.clock.forward(60)
    harness.finish(fence)
    assert harness.row(fence).pages_per_minute == 10
    again = harness.resume(fence, rerun=True)
    harness.begin(again)
    harness.clock.forward(30)
    harness.store.live_counters.record_counts(again.run, [counted(again, 10)])
    assert harness.row(again).pages_per_minute is None
    assert [task.pages_per_minute for task in harness.store.tasks.list_tasks(again.run_id)] == [20]
