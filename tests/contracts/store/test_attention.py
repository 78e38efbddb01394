"""Runs with a smaller result than expected: verdict, events and the list of what needs attention
agree.
"""

from __future__ import annotations

import random
from typing import Any

from crawler_lifecycle.domain.coverage import GOOD_RUNS, Coverage, ExpectedCoverage
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.names import (
    EVENT_RUN_ATTENTION,
    EVENT_RUN_DROPPED,
    EVENT_RUN_EMPTY,
    EVENT_RUN_ENDED,
)
from crawler_lifecycle.domain.run import UNMET_OUTCOMES, RunStatus, verdict
from crawler_lifecycle.domain.task import Counters, Phase
from crawler_lifecycle.ports.runs import RunRow
from tests.contracts.store.harness import Harness, bad_end, good_end, seen
from tests.support.servers import each_on_sqlite

WATCHED = ExpectedCoverage(watched=True)
HALF = ExpectedCoverage(numbers={"items": {"drop": 0.5}}, watched=True)
ENDS = (EVENT_RUN_ENDED, EVENT_RUN_ATTENTION, EVENT_RUN_EMPTY, EVENT_RUN_DROPPED)


def crawl(
    harness: Harness, expected: ExpectedCoverage, items: int | None, *, errors: int = 0, pages: int = 27,
    failed: bool = False, share: float | None = None, stop: bool = False, **fields: Any,
) -> RunRow:  # fmt: skip
    """A complete run with these counters."""
    count = harness.store.events.last_event_seq()
    fence = harness.executing(f"r{count}", **fields)
    if stop:
        harness.store.stops.record_stop(fence.run_id, harness.stop(), f"s{count}")
    at = harness.clock.forward(60)
    told = Coverage(items, {"price": share}) if share is not None and items else None
    end = bad_end(at) if failed else good_end(at)
    counters = Counters(pages, items, errors, 1000)
    [task] = harness.store.polls.found_state(fence).tasks
    harness.poll(
        fence, [seen(task, Phase.ENDED, at, uid=task.uid, counters=counters, end=end, fields=told)]
    )
    return harness.store.completion.end_run(
        fence, lambda groups, intent: verdict(groups, intent), expected
    )


def told(harness: Harness, row: RunRow) -> dict[str, dict[str, object]]:
    """Return the events about the verdict of a run, each type once."""
    events = [
        one
        for one in harness.store.events.events_after(0, 10_000, run_id=row.run_id)
        if one.type in ENDS
    ]
    found = {one.type: dict(one.body) for one in events}
    assert len(found) == len(events)
    return found


def needed(harness: Harness, **wanted: Any) -> list[int]:
    return [row.run_id for row in harness.store.runs.list_runs(attention=True, limit=200, **wanted)]


def test_a_spider_whose_layout_changed_needs_attention_until_it_brings_items_again(
    harness: Harness,
) -> None:
    crawl(harness, WATCHED, 100)
    poor = crawl(harness, ExpectedCoverage(numbers={"items": {"min": 500}}), 300)
    assert (poor.status, poor.outcome, poor.lacks) == (RunStatus.COMPLETED, "unmet", "unmet")
    empty = crawl(harness, WATCHED, 0, errors=24)
    assert (empty.status, empty.outcome, empty.ended_by) == (
        RunStatus.COMPLETED,
        "empty",
        EndedBy.SERVICE,
    )
    assert (
        empty.cause
        == "items: 0, the usual number is 100 (median of 1 good runs), expected at least 1"
    )
    assert needed(harness) == [empty.run_id, poor.run_id], "it clears no alarm of a lesser break"
    events = told(harness, empty)
    assert list(events) == [EVENT_RUN_ENDED, EVENT_RUN_ATTENTION, EVENT_RUN_EMPTY]
    assert len({tuple(body.items()) for body in map(_flat, events.values())}) == 1
    assert events[EVENT_RUN_EMPTY]["attention"] == "empty"
    assert list(told(harness, poor)) == [EVENT_RUN_ENDED, EVENT_RUN_ATTENTION]
    good = crawl(harness, WATCHED, 1)
    assert (good.outcome, good.lacks, told(harness, good)[EVENT_RUN_ENDED]["attention"]) == (
        "finished",
        None,
        None,
    )
    assert needed(harness) == []


def _flat(body: dict[str, object]) -> dict[str, object]:
    return {name: str(value) for name, value in body.items()}


def test_an_empty_run_of_which_nothing_is_expected_resolves_nothing(harness: Harness) -> None:
    """A command, which has no items to expect."""
    crawl(harness, ExpectedCoverage(), 100)
    failed = crawl(harness, ExpectedCoverage(), 0, failed=True)
    empty = crawl(harness, ExpectedCoverage(), 0)
    stopped = crawl(harness, WATCHED, 0, stop=True)
    assert (empty.outcome, empty.lacks, list(told(harness, empty))) == (
        "finished",
        "items",
        [EVENT_RUN_ENDED],
    )
    assert (stopped.outcome, stopped.lacks) == ("finished", "items"), (
        "it had finished before it was stopped"
    )
    assert needed(harness) == [failed.run_id]
    crawl(harness, ExpectedCoverage(), 3)
    assert needed(harness) == []


def test_a_crawler_that_never_brings_items_resolves_its_failures(harness: Harness) -> None:
    for items in (None, 0):
        failed = crawl(harness, WATCHED, items, failed=True)
        assert needed(harness) == [failed.run_id]
        done = crawl(harness, WATCHED, items, errors=3)
        assert (done.outcome, done.lacks, needed(harness)) == ("finished", None, [])


def test_requests_that_are_all_refused_are_no_success(harness: Harness) -> None:
    row = crawl(harness, WATCHED, 0, errors=2, pages=0)
    assert (row.outcome, row.cause) == ("empty", "no page and no item, but 2 errors")
    assert needed(harness) == [row.run_id]


def test_a_drop_is_measured_at_the_good_runs_of_its_crawler_and_project(harness: Harness) -> None:
    for items in (150, 100, 110, 90, 105, 95):
        crawl(harness, HALF, items)
    for _ in range(GOOD_RUNS + 2):  # however many follow, they are not usual
        dropped = crawl(harness, HALF, 49)
        assert (dropped.outcome, list(told(harness, dropped))[-1]) == ("dropped", EVENT_RUN_DROPPED)
    assert (
        dropped.cause
        == "items: 49, the usual number is 100 (median of 5 good runs), expected at least 50"
    )
    assert crawl(harness, HALF, 49, crawler="other").lacks is None
    assert crawl(harness, HALF, 49, project="b").lacks is None
    assert crawl(harness, HALF, 50).lacks is None


def test_a_run_that_brought_too_little_may_fail(harness: Harness) -> None:
    strict = ExpectedCoverage(fail=True, watched=True)
    crawl(harness, strict, 100)
    row = crawl(harness, strict, 0)
    assert (row.status, row.outcome, row.ended_by, row.lacks) == (
        RunStatus.FAILED,
        "empty",
        EndedBy.SERVICE,
        "empty",
    )
    [moved] = [
        one for one in harness.store.runs.transitions(row.run_id) if one.to_status == "FAILED"
    ]
    assert (moved.evidence["outcome"], moved.evidence["cause"]) == ("empty", row.cause)
    assert needed(harness) == needed(harness, status=["FAILED"]) == [row.run_id]


@each_on_sqlite(range(3), [0])
def test_every_surface_says_the_same_of_random_histories(harness: Harness, value: int) -> None:
    chosen = random.Random(value)
    brought: dict[int, bool] = {}
    wanted: list[int] = []
    for _ in range(25):
        expected = ExpectedCoverage(
            {"price": 0.9} if chosen.random() < 0.3 else {},
            chosen.random() < 0.2,
            {"items": {"drop": 0.5}} if chosen.random() < 0.3 else {},
            chosen.random() < 0.7,
        )
        items = chosen.choice([0, 0, None, 3, 50, 100, 120])
        row = crawl(
            harness, expected, items, errors=chosen.choice([0, 24]), pages=chosen.choice([0, 27]),
            failed=chosen.random() < 0.2, share=chosen.choice([None, 0.1, 1.0]), stop=chosen.random() < 0.1,
        )  # fmt: skip
        events = told(harness, row)
        reason = events[EVENT_RUN_ENDED]["attention"]
        needs = row.ended_by != EndedBy.PERSON and (
            row.status == RunStatus.FAILED or row.lacks in UNMET_OUTCOMES
        )
        assert (reason is not None) == needs == (EVENT_RUN_ATTENTION in events)
        assert {type.partition(".")[2] for type in events} - {"ended", "attention"} == {reason} & {
            "empty",
            "dropped",
        }
        for body in events.values():
            assert (body["status"], body["outcome"], body["cause"]) == (
                row.status,
                row.outcome,
                row.cause,
            )
        if row.lacks in UNMET_OUTCOMES:
            assert (row.outcome, row.ended_by) == (row.lacks, EndedBy.SERVICE)
        good = row.status == RunStatus.COMPLETED and row.lacks is None
        if good:
            assert items or not any(brought.values()), "an empty run resolves nothing"
            wanted.clear()
        brought[row.run_id] = good and bool(items)
        wanted[:0] = [row.run_id] if needs else []
        assert needed(harness) == wanted
        found = harness.store.runs.get_run(row.run_id)
        assert found == row
