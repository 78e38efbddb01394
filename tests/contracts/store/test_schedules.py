"""Schedules: definitions, the single row of each due time, overlaps, and missed due times."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from crawler_lifecycle.cloudevents import cloud_event
from crawler_lifecycle.domain.errors import NotInThisState, RunNotFound
from crawler_lifecycle.features.schedules.domain.decision import Decision
from crawler_lifecycle.features.schedules.domain.definition import Overlap, ScheduleSpec, TargetKind
from crawler_lifecycle.features.schedules.ports import DueRow, NotedFirings, ScheduleRow, TargetRef
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import Clock, Harness

RUN: dict[str, Any] = {"crawler": "services"}


def made(store: Store, name: str = "nightly", **fields: Any) -> ScheduleRow:
    spec = ScheduleSpec(run=RUN, **{"every_s": 60, **fields})
    return store.schedules.put(name, spec.document(), "ann")[0]


def due(store: Store, at: datetime, name: str = "nightly") -> DueRow:
    """Decide as for a trigger in Temporal, also at times that are not due."""
    row = store.schedules.get(name)
    line = store.schedules.decide_due(name, at, row.revision if row is not None else None)
    assert line is not None
    return line


def test_a_definition_is_kept_changed_deleted_and_there_again(store: Store, clock: Clock) -> None:
    s = store.schedules
    row = made(store)
    assert (row.revision, row.checked_until, row.requested_by) == (1, clock.now, "ann")
    assert s.put("nightly", row.definition, "bob") == (row, False), "the same again changes nothing"
    clock.forward(60)
    assert made(store, every_s=120).revision == 2
    assert ScheduleSpec.read(s.get("nightly").definition).every_s == 120  # type: ignore[union-attr]
    assert [one.name for one in s.page()] == ["nightly"]
    line = due(store, clock.now)
    assert s.delete("nightly")
    assert not s.delete("nightly")
    assert s.page() == []
    assert s.decide_due("nightly", clock.now + timedelta(seconds=9)) is None
    again = made(store, every_s=120)
    assert (again.schedule_id, again.revision, again.checked_until) == (
        row.schedule_id,
        3,
        clock.now,
    )
    assert due(store, clock.now) == line, "a due time of before has its line already"
    with pytest.raises(RunNotFound, match="crawlctl schedule list"):
        s.pause("weekly", "why not")


def test_what_waits_comes_to_nothing_with_its_schedule_also_where_it_is_made_anew(
    store: Store, clock: Clock
) -> None:
    s = store.schedules
    made(store, overlap=Overlap.QUEUE)
    first = due(store, clock.now)
    clock.forward(60)
    waits, begins = (due(store, clock.now), due(store, clock.now + timedelta(seconds=1)))
    clock.forward(9)
    [asked] = s.ask_due("nightly", [clock.now], "ann", "triggered by ann")
    assert {one.decision for one in (waits, begins, asked)} == {Decision.QUEUED}
    s.delete("nightly")
    again = made(store, overlap=Overlap.QUEUE, every_s=120)
    assert (s.get_due(waits.due_id).decision, s.get_due(asked.due_id).decision) == (
        "failed",
        "queued",
    )
    assert s.get_due(asked.due_id).after_id == first.due_id, "it still waits for its verdict"
    assert "deleted before it began" in str(s.get_due(waits.due_id).reason)
    [told] = [
        event.body for event in store.events.events_after(0) if event.body["decision"] == "failed"
    ]
    assert (told["count"], told["reason"]) == (2, s.get_due(waits.due_id).reason)
    s.due_begun(begins.due_id, TargetRef(TargetKind.RUN, 7))  # it was just being started
    line = s.get_due(begins.due_id)
    assert (line.decision, line.reason, again.revision) == ("started", None, 2)


def test_a_due_time_is_decided_once_by_however_many(store: Store, clock: Clock) -> None:
    made(store)
    with ThreadPoolExecutor(8) as pool:
        lines = list(pool.map(lambda _: due(store, clock.now), range(16)))
    assert {line.due_id for line in lines} == {lines[0].due_id}
    assert [line.decision for line in store.schedules.list_firings(lines[0].schedule_id)] == [
        Decision.STARTED
    ]


@pytest.mark.parametrize(
    ("overlap", "decision"),
    [
        (Overlap.SKIP, Decision.SKIPPED_OVERLAP),
        (Overlap.QUEUE, Decision.QUEUED),
        (Overlap.STOP_PREVIOUS, Decision.QUEUED),
        (Overlap.ALLOW, Decision.STARTED),
    ],
)
def test_what_overlaps_is_judged_by_the_verdict(
    store: Store, harness: Harness, clock: Clock, overlap: Overlap, decision: Decision
) -> None:
    s = store.schedules
    made(store, overlap=overlap)
    first = due(store, clock.now)
    fence = harness.executing()
    s.due_begun(first.due_id, TargetRef(TargetKind.RUN, fence.run_id))
    clock.forward(60)
    second = due(store, clock.now)
    assert second.decision is decision
    previous = s.previous_target(second.due_id)
    if decision is Decision.QUEUED:
        assert previous.live
        assert previous.target == TargetRef(TargetKind.RUN, fence.run_id)
        [left] = s.due_to_begin(clock.now + timedelta(seconds=1))
        assert left.due_id == second.due_id
    else:
        assert previous is None
    harness.finish(fence)
    assert previous is None or not s.previous_target(second.due_id).live  # type: ignore[union-attr]
    clock.forward(60)
    third = due(store, clock.now)
    begun = overlap in (Overlap.SKIP, Overlap.ALLOW)
    assert third.decision is (
        Decision.STARTED if overlap is not Overlap.QUEUE and begun else Decision.QUEUED
    )
    listed = s.list_firings(first.schedule_id)
    assert [line.due_at for line in listed] == [third.due_at, second.due_at, first.due_at]
    assert listed[-1].status == "COMPLETED"
    assert s.list_firings(first.schedule_id, before=second.due_at) == listed[2:]


def test_stop_previous_begins_the_newest_of_those_that_came_together(
    store: Store, harness: Harness, clock: Clock
) -> None:
    s = store.schedules
    row, start = made(store, overlap=Overlap.STOP_PREVIOUS), clock.now.replace(microsecond=0)
    times = [start + timedelta(seconds=60 * n - start.timestamp() % 60) for n in range(1, 6)]
    fence = harness.deployed()
    clock.now = times[0]
    s.due_begun(due(store, times[0]).due_id, TargetRef(TargetKind.RUN, fence.run_id))
    clock.now = times[1]
    second = due(store, times[1])  # its stop is not yet proved
    clock.now = times[3] + timedelta(seconds=5)
    later = [due(store, at) for at in (times[3], times[2])]
    assert [line.decision for line in (second, *later)] == ["queued", "queued", "skipped_overlap"]
    assert "was due again" in str(later[1].reason)
    assert s.previous_target(later[0].due_id).target is None  # type: ignore[union-attr]
    assert s.give_way(second.due_id)
    assert not s.give_way(second.due_id)
    assert not s.give_way(later[0].due_id)
    assert s.get_due(second.due_id).decision is Decision.SKIPPED_OVERLAP
    waits_for = s.previous_target(later[0].due_id)
    assert (waits_for.live, waits_for.target) == (True, TargetRef(TargetKind.RUN, fence.run_id)), (
        "still for its proof"
    )
    asked = s.ask_due("nightly", [times[2]], "ann", "backfilled by ann")[0]
    clock.now = times[4]
    due(store, times[4])
    assert not s.give_way(asked.due_id), "what a person asks for begins"
    assert [
        line.due_at for line in s.list_firings(row.schedule_id, decision=Decision.SKIPPED_OVERLAP)
    ] == [times[1]]


def test_what_came_too_late_or_in_a_pause_begins_when_a_person_asks(
    store: Store, clock: Clock
) -> None:
    s = store.schedules
    made(store, catch_up_s=600)
    late = clock.now - timedelta(seconds=601)
    missed = due(store, late)
    assert (missed.decision, missed.lateness_ms) == (Decision.MISSED, 601_000)
    assert due(store, late + timedelta(seconds=1)).decision is Decision.STARTED
    s.pause("nightly", "a migration")
    paused = due(store, clock.now)
    assert (paused.decision, paused.reason) == (Decision.PAUSED, "a migration")
    asked = s.ask_due("nightly", [paused.due_at, late], "ann", "asked for by ann")
    assert [(line.due_id, line.decision) for line in asked] == [
        (missed.due_id, Decision.QUEUED),  # after those that have not begun
        (paused.due_id, Decision.QUEUED),
    ]
    assert s.ask_due("nightly", [late], "bob", "asked for by bob")[0].asked_by == "ann", (
        "once is enough"
    )
    with pytest.raises(NotInThisState, match="ann requested the due time"):
        s.ask_due("nightly", [clock.now], "bob", "now", seen=paused.due_at - timedelta(seconds=1))
    assert (
        s.ask_due("nightly", [paused.due_at], "bob", "now", seen=paused.due_at)[0].asked_by == "ann"
    )
    assert s.asked_due("nightly", "k") is None
    [keyed] = s.ask_due("nightly", [clock.now], "bob", "now", request_key="k")
    assert s.asked_due("nightly", "k") == keyed
    later = [clock.now + timedelta(seconds=9)]
    assert s.ask_due("nightly", later, "eve", "now", seen=paused.due_at, request_key="k") == [keyed]
    with pytest.raises(NotInThisState, match="a second later"):
        s.ask_due("nightly", [clock.now], "eve", "now", request_key="other")
    s.due_failed(missed.due_id, "crawler: 'services' is unknown")
    s.due_failed(missed.due_id, "another reason")
    assert s.get_due(missed.due_id).reason == "crawler: 'services' is unknown"
    s.due_begun(paused.due_id, TargetRef(TargetKind.RUN, 1))
    s.due_failed(paused.due_id, "too late")
    assert s.get_due(paused.due_id).decision is Decision.QUEUED, (
        "what has begun does not fail any more"
    )


def test_what_never_fired_gets_its_line(store: Store, clock: Clock) -> None:
    s = store.schedules
    row, start = made(store), clock.now.replace(microsecond=0)
    times = [start + timedelta(seconds=60 * n) for n in range(1, 7)]
    clock.forward(400)
    fired = due(store, times[0])
    s.pause("nightly", "paused by ann", times[2])
    assert s.note_due(row.schedule_id, times[4]) == NotedFirings(missed=1, paused=3)
    assert s.note_due(row.schedule_id, times[4]) == NotedFirings(), "each once"
    s.pause("nightly", None)
    lines = {line.due_at: line.decision for line in s.list_firings(row.schedule_id)}
    assert lines == dict(
        zip(times, [fired.decision, Decision.MISSED, *[Decision.PAUSED] * 4], strict=True)
    )
    now = s.get("nightly")
    assert now.checked_until == clock.now, "a pause ends when all it held back is on record"
    assert s.list_firings(row.schedule_id, decision=Decision.PAUSED, limit=2)[0].due_at == times[5]
    assert due(store, times[1]).decision is Decision.SKIPPED_OVERLAP, (
        "Temporal fired after all, behind the first"
    )
    assert due(store, times[2]).decision is Decision.PAUSED
    assert s.note_due(row.schedule_id + 1, clock.now) == NotedFirings()


def test_what_is_due_is_due_by_the_definition_of_that_time(store: Store, clock: Clock) -> None:
    """For a while, Temporal may have an older definition than the database, and fire by that."""
    s, start = store.schedules, clock.now.replace(microsecond=0)
    row = made(store, overlap="allow")
    clock.forward(150)
    changed = made(store, every_s=3600, overlap="allow")
    times = [start + timedelta(seconds=60 * n) for n in range(1, 4)]
    lines = s.list_firings(row.schedule_id)
    expected = [(times[1], Decision.MISSED, 1), (times[0], Decision.MISSED, 1)]
    assert [(one.due_at, one.decision, one.revision) for one in lines] == expected
    clock.forward(60)
    late = s.decide_due("nightly", times[0], row.revision)
    assert (late.due_id, late.decision, late.revision) == (lines[1].due_id, Decision.STARTED, 2)
    assert s.decide_due("nightly", times[2], row.revision) is None, "not due any more"
    assert s.decide_due("nightly", times[2]) is None, "whoever starts the workflow by hand"
    assert s.decide_due("nightly", start + timedelta(days=400), changed.revision) is None, (
        "far ahead"
    )
    clock.forward(3600)
    assert s.delete("nightly")
    assert s.list_firings(row.schedule_id)[0].due_at == start + timedelta(hours=1)


def test_failures_in_a_row_pause_a_schedule_until_it_is_resumed(
    store: Store, harness: Harness, clock: Clock
) -> None:
    s = store.schedules
    made(store, pause_after_failures=2)
    for n in range(2):
        line, fence = due(store, clock.now), harness.deployed(f"r{n}")
        harness.execute(fence)
        s.due_begun(line.due_id, TargetRef(TargetKind.RUN, fence.run_id))
        harness.finish(fence, failed=[0])
        clock.forward(60)
    line = due(store, clock.now)
    assert line.decision is Decision.PAUSED
    assert "the last 2 targets failed" in str(line.reason)
    row = s.get("nightly")
    assert row.paused_at == clock.now
    assert row.pause_reason == line.reason
    assert s.pause("nightly", None).paused_at is None
    clock.forward(60)
    assert due(store, clock.now).decision is Decision.STARTED
    s.told_schedule(
        row.schedule_id, row.revision, trouble="it was deleted there", ended_at=clock.now
    )
    row = s.get("nightly")
    assert row.told == row.revision
    assert row.ended_at == clock.now


def test_a_stop_of_a_person_is_no_failure_of_a_schedule(
    store: Store, harness: Harness, clock: Clock
) -> None:
    made(store, pause_after_failures=2)
    for n in range(2):
        line, fence = due(store, clock.now), harness.executing(f"r{n}")
        store.schedules.due_begun(line.due_id, TargetRef(TargetKind.RUN, fence.run_id))
        if n == 1:
            store.stops.record_stop(fence.run_id, harness.stop(), "s", fence)
        assert harness.finish(fence, failed=[0]).status == "FAILED"
        clock.forward(60)
    assert due(store, clock.now).decision is Decision.STARTED


def test_what_a_person_asks_for_begins_one_after_the_other(store: Store, clock: Clock) -> None:
    """Old and new firings, in the order of their due times, and behind a decision by a clock that
    is ahead.
    """
    s, row = store.schedules, made(store)
    clock.forward(125)
    s.note_due(row.schedule_id, clock.now)
    times = [line.due_at for line in reversed(s.list_firings(row.schedule_id))]
    times += [clock.now - timedelta(minutes=10 - n) for n in range(4)]
    times.sort()
    running = due(store, clock.now)
    clock.forward(-3)
    asked = s.ask_due("nightly", times, "ann", "backfilled")
    assert [line.due_at for line in asked] == times
    assert [line.after_id for line in asked] == [
        running.due_id,
        *(line.due_id for line in asked[:-1]),
    ]
    last = due(store, clock.now)
    assert last.decision is Decision.SKIPPED_OVERLAP
    s.due_failed(asked[-1].due_id, "no crawler")
    assert due(store, clock.now - timedelta(seconds=1)).decision is Decision.SKIPPED_OVERLAP, (
        "others wait still"
    )
    left = s.due_to_begin(clock.now + timedelta(seconds=9))
    assert {line.due_at for line in left} == {running.due_at, *times[:-1]}
    assert s.due_to_begin(clock.now + timedelta(seconds=9), left[2].due_id, 2) == left[3:5], (
        "a page behind a page"
    )


def test_what_came_to_nothing_is_told(store: Store, clock: Clock) -> None:
    s, start = store.schedules, clock.now.replace(microsecond=0)
    row = made(store)
    clock.forward(190)
    s.note_due(row.schedule_id, clock.now)
    first = due(store, start + timedelta(seconds=180))
    assert first.decision is Decision.STARTED, "it fired after all"
    skipped = due(store, clock.now)
    s.due_failed(first.due_id, "crawler: 'services' is unknown")
    s.due_failed(first.due_id, "again")
    clock.forward(700)
    due(store, start + timedelta(seconds=100))
    s.pause("nightly", "a migration")
    due(store, clock.now)
    events = store.events.events_after(0)
    assert [(event.type, event.body["decision"], event.body["count"]) for event in events] == [
        ("schedule.missed", "missed", 3),
        ("schedule.skipped", "skipped_overlap", 1),
        ("schedule.missed", "failed", 1),
        ("schedule.missed", "missed", 1),
    ]
    whole, body = cloud_event(events[0]), events[0].body
    assert (whole["subject"], body["crawler"], body["kind"]) == (
        "schedules/nightly",
        "services",
        "run",
    )
    assert (body["due_at"], body["last_due_at"]) == (
        "2026-03-01T12:01:00+00:00",
        "2026-03-01T12:03:00+00:00",
    )
    assert whole["id"] == "schedules/nightly-20260301T120100Z/1/schedule.missed/1"
    assert events[1].body["due_at"] == skipped.due_at.isoformat()
