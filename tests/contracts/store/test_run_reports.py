"""Events that no status shows: corrections, overdue polls, workflows that cannot continue."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import update

from crawler_lifecycle.domain.audits.overdue import overdue_before
from crawler_lifecycle.domain.names import (
    EVENT_CORRECTION_MADE,
    EVENT_RUN_BLOCKED,
    EVENT_RUN_STALE,
    workflow_id,
)
from crawler_lifecycle.domain.task import End, Phase
from crawler_lifecycle.ports.runs import Event
from crawler_lifecycle.store.runs.tables import run_history
from tests.contracts.store.harness import START, Harness, seen
from tests.contracts.store.test_overdue import executing


def events(harness: Harness, type: str) -> list[Event]:
    return [one for one in harness.store.events.events_after(0, 1000) if one.type == type]


def test_what_a_poll_found_untrue_is_one_event(harness: Harness) -> None:
    fence = harness.executing(tasks=30)
    harness.clock.forward(3600)
    tasks = harness.store.polls.found_state(fence).tasks
    killed = End(exit_code=137, signal=9, finished_at=START)
    harness.poll(
        fence, [seen(t, Phase.ENDED, harness.clock.now, uid=t.uid, end=killed) for t in tasks]
    )
    written = harness.store.corrections.list_corrections(fence.run_id)
    [event] = events(harness, EVENT_CORRECTION_MADE)
    shown = event.body["corrections"]
    assert isinstance(shown, list)
    assert (event.run_id, event.body["crawler"], event.body["count"]) == (
        fence.run_id,
        "services",
        len(written),
    )
    assert len(written) == 30
    assert [one["id"] for one in shown] == [one.id for one in written[:20]]
    expected = (
        written[0].kind,
        written[0].truth_since.isoformat() if written[0].truth_since else None,
    )
    assert (shown[0]["kind"], shown[0]["truth_since"]) == expected


def test_an_overdue_poll_is_told_once_and_the_next_one_again(harness: Harness) -> None:
    fence, store = executing(harness, "r1"), harness.store
    harness.clock.forward(91)
    [run] = store.overdue.overdue_runs(overdue_before(harness.clock.now))
    assert [store.run_reports.note_stale(run) for _ in range(2)] == [True, False]
    [event] = events(harness, EVENT_RUN_STALE)
    assert run.due_at is not None
    assert (event.subject, event.body["due_at"]) == (f"runs/{fence.run_id}", run.due_at.isoformat())
    assert not store.run_reports.note_stale(
        replace(run, due_at=run.due_at - timedelta(seconds=1))
    ), "it came meanwhile"
    assert not store.run_reports.note_stale(replace(run, planned=False))
    tasks = store.polls.found_state(fence).tasks
    harness.poll(fence, [seen(t, Phase.EXECUTING, harness.clock.now, uid=t.uid) for t in tasks])
    assert not store.run_reports.note_stale(run), "polled by now"
    harness.clock.forward(91)
    [run] = store.overdue.overdue_runs(overdue_before(harness.clock.now))
    assert store.run_reports.note_stale(run)


def test_a_blocked_workflow_is_told_once_for_each_time(harness: Harness) -> None:
    fence, store, since = executing(harness, "r1"), harness.store, harness.clock.now
    own = harness.row(fence).owner_workflow_id or ""
    assert [
        store.run_reports.note_blocked(own, fence.run_id, "a bug", since) for _ in range(2)
    ] == [
        True,
        False,
    ]
    assert not store.run_reports.note_blocked("another/workflow", fence.run_id, "a bug", since)
    assert not store.run_reports.note_blocked("another/workflow", None, "a bug", since)
    assert not store.run_reports.note_blocked(
        workflow_id("services", "unknown"), None, "a bug", since
    )
    assert store.run_reports.note_blocked(own, None, "a bug", since + timedelta(seconds=9))
    with store.database.writing() as conn:
        conn.execute(update(run_history).values(owner_workflow_id="own-2026-11-22T02:30:00Z"))
    own = "own-2026-11-22T02:30:00Z"
    assert store.run_reports.note_blocked(own, None, "a bug", since + timedelta(seconds=19)), (
        "an outside starter's id"
    )
    assert {one.body["why"] for one in events(harness, EVENT_RUN_BLOCKED)} == {"a bug"}
    harness.finish(fence)
    assert not store.run_reports.note_blocked(
        own, fence.run_id, "a bug", since + timedelta(seconds=90)
    )
