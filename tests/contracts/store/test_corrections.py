"""Corrections that no poll writes: appended once, never changing an end, with the correct time of
the error.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.errors import InvalidRequest, RunNotFound
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports.polls import Correction
from crawler_lifecycle.ports.runs import Fence, TaskRow
from tests.contracts.store.harness import START, Harness
from tests.contracts.store.test_writers import together

STILL_ALIVE = Correction(CorrectionKind.STILL_ALIVE, "FAILED", "RUNNING")


def ended(harness: Harness, tasks: int = 2) -> tuple[Fence, list[TaskRow]]:
    """A run that failed a minute after its deployment, and its tasks."""
    fence = harness.executing(tasks=tasks)
    harness.clock.forward(60)
    harness.finish(fence, failed=range(tasks))
    return fence, harness.store.tasks.list_tasks(fence.run_id)


def test_an_end_is_corrected_beside_it_and_never_changed(harness: Harness) -> None:
    fence, tasks = ended(harness)
    before = harness.row(fence), tasks, harness.store.runs.transitions(fence.run_id)
    now = harness.clock.forward(90)
    wanted = replace(
        STILL_ALIVE, task_id=tasks[1].task_id, evidence={"uid": "uid-1-1", "nothing": None}
    )
    [row] = harness.store.corrections.record_corrections(fence.run_id, [wanted])
    assert (row.run_id, row.task_id, row.attempt) == (fence.run_id, tasks[1].task_id, 1)
    assert (row.kind, row.believed, row.truth, row.found_by) == (
        "still_alive",
        "FAILED",
        "RUNNING",
        "sweep",
    )
    assert (row.believed_since, row.truth_since, row.lag_ms) == (
        now - timedelta(seconds=90),
        None,
        90_000,
    )
    assert (row.evidence, row.created_at) == ({"uid": "uid-1-1"}, now)
    assert harness.store.corrections.list_corrections(fence.run_id)[-1:] == [row]
    after = (
        harness.row(fence),
        harness.store.tasks.list_tasks(fence.run_id),
        harness.store.runs.transitions(fence.run_id),
    )
    assert after == before


def test_the_same_correction_is_written_once(harness: Harness) -> None:
    fence, tasks = ended(harness)
    about = [replace(STILL_ALIVE, task_id=task.task_id) for task in tasks]
    assert len(harness.store.corrections.record_corrections(fence.run_id, [*about, *about])) == 2
    events = harness.store.events.last_event_seq()
    harness.clock.forward(600)
    assert harness.store.corrections.record_corrections(fence.run_id, about) == []
    assert harness.store.events.last_event_seq() == events
    others = [
        replace(about[0], truth="PENDING"),
        replace(about[0], believed="LOST"),
        replace(about[0], kind=CorrectionKind.LATE_EVIDENCE),
        replace(about[0], task_id=None),
    ]
    assert len(harness.store.corrections.record_corrections(fence.run_id, others)) == 4
    again = harness.resume(fence)
    assert (
        len(
            harness.store.corrections.record_corrections(
                fence.run_id, [about[0], replace(about[0], attempt=2)]
            )
        )
        == 1
    )
    assert again.attempt == 2


def test_sweeps_at_once_write_it_once(harness: Harness) -> None:
    fence, tasks = ended(harness)
    about = [replace(STILL_ALIVE, task_id=task.task_id) for task in tasks]
    answers = together(
        *[lambda: harness.store.corrections.record_corrections(fence.run_id, about)] * 8
    )
    assert sorted(len(rows) for rows in answers) == [0] * 7 + [2]
    assert [row.kind for row in harness.store.corrections.list_corrections(fence.run_id)] == [
        "still_alive"
    ] * 2


def test_it_is_told_as_a_change_of_the_run(harness: Harness) -> None:
    fence, _ = ended(harness)
    seq = harness.store.events.last_event_seq()
    harness.store.corrections.record_corrections(
        fence.run_id, [STILL_ALIVE, replace(STILL_ALIVE, believed="LOST")]
    )
    made, event = harness.store.events.events_after(seq)
    assert (event.type, event.body["status"]) == ("run.changed", "FAILED")
    assert (made.type, made.body["count"]) == ("correction.made", 2)


@pytest.mark.parametrize(
    ("believed_since", "truth_since", "lag_ms"),
    [
        (None, None, 90_000),
        (None, timedelta(seconds=-30), 30_000),
        (None, timedelta(seconds=-300), 90_000),
        (timedelta(seconds=-20), timedelta(seconds=-300), 20_000),
        (timedelta(seconds=-300), None, 300_000),
        (None, timedelta(seconds=5), 0),
        (timedelta(microseconds=-1), None, 0),
    ],
    ids=["from the row", "the truth came later", "it was untrue from the first", "given", "given alone", "clock ahead",
         "just now"],
)  # fmt: skip
def test_a_status_is_untrue_from_when_both_hold(
    harness: Harness, believed_since: timedelta | None, truth_since: timedelta | None, lag_ms: int
) -> None:
    fence, tasks = ended(harness, tasks=1)
    now = harness.clock.forward(90)
    wanted = replace(
        STILL_ALIVE,
        task_id=tasks[0].task_id,
        believed_since=None if believed_since is None else now + believed_since,
        truth_since=None if truth_since is None else now + truth_since,
    )
    [row] = harness.store.corrections.record_corrections(fence.run_id, [wanted])
    assert row.lag_ms == lag_ms
    assert row.truth_since == wanted.truth_since


def test_what_was_believed_of_a_run_is_dated_by_its_transition(harness: Harness) -> None:
    fence, _ = ended(harness)
    at = harness.clock.now
    harness.clock.forward(10)
    about = Correction(CorrectionKind.LATE_EVIDENCE, "FAILED", "COMPLETED", truth_since=START)
    unknown = Correction(CorrectionKind.REPAIR, "delivered", "undelivered")
    first, second = harness.store.corrections.record_corrections(fence.run_id, [about, unknown])
    assert (first.task_id, first.believed_since, first.lag_ms) == (None, at, 10_000)
    assert (second.believed_since, second.lag_ms) == (None, None)
    assert harness.status(fence) is RunStatus.FAILED


def test_a_live_run_gets_its_true_status_with_its_transition(harness: Harness) -> None:
    fence = harness.deployed(tasks=1)
    now = harness.clock.forward(30)
    repair = Correction(
        CorrectionKind.REPAIR,
        "INITIALIZING",
        "PROCESSING",
        truth_since=START,
        evidence={"why": "x"},
    )
    [row] = harness.store.corrections.record_corrections(fence.run_id, [repair])
    assert (row.lag_ms, harness.status(fence)) == (30_000, RunStatus.PROCESSING)
    last = harness.store.runs.transitions(fence.run_id)[-1]
    assert (last.task_id, last.from_status, last.to_status) == (None, "INITIALIZING", "PROCESSING")
    assert (last.source, last.cluster_time, last.committed_at, last.evidence) == (
        "sweep",
        START,
        now,
        {"why": "x"},
    )
    assert harness.store.corrections.record_corrections(fence.run_id, [repair]) == []
    assert harness.store.runs.transitions(fence.run_id)[-1] == last


def test_neither_an_end_nor_a_step_back_nor_a_wrong_belief_moves_a_run(harness: Harness) -> None:
    fence = harness.deployed(tasks=1)
    beliefs = [("INITIALIZING", "FAILED"), ("INITIALIZING", "COMPLETED")]
    beliefs += [("STOPPING", "PROCESSING"), ("PROCESSING", "STOPPING")]
    wrong = [Correction(CorrectionKind.REPAIR, believed, truth) for believed, truth in beliefs]
    assert len(harness.store.corrections.record_corrections(fence.run_id, wrong)) == len(wrong)
    assert harness.status(fence) is RunStatus.INITIALIZING
    assert set(harness.statuses(fence).values()) == {TaskStatus.PENDING}


def test_bad_corrections_are_refused_and_nothing_is_written(harness: Harness) -> None:
    fence, _ = ended(harness)
    [other] = harness.store.tasks.list_tasks(harness.deployed("r2", tasks=1).run_id)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"kind": "mistaken"}, "kind: 'mistaken' is not allowed"),
        ({"believed": ""}, "believed: '' is not allowed"),
        ({"truth": "X" * 21}, "truth: 'XXX"),
        ({"task_id": 999_999}, "task_id: 999999 is not a task of run"),
        ({"task_id": other.task_id}, "is not a task of run"),
        ({"attempt": 2}, "attempt: 2 is not allowed"),
        ({"attempt": -1}, "attempt: -1 is not allowed"),
    ]
    for change, named in changes:
        with pytest.raises(InvalidRequest, match=named):
            harness.store.corrections.record_corrections(
                fence.run_id, [STILL_ALIVE, replace(STILL_ALIVE, **change)]
            )
    assert harness.store.corrections.list_corrections(fence.run_id) == []


def test_who_may_write(harness: Harness) -> None:
    fence, _ = ended(harness)
    with pytest.raises(InvalidRequest, match="found_by: 'me' is not allowed"):
        harness.store.corrections.record_corrections(fence.run_id, [STILL_ALIVE], "me")
    with pytest.raises(RunNotFound):
        harness.store.corrections.record_corrections(fence.run_id + 1, [STILL_ALIVE])
    assert harness.store.corrections.record_corrections(fence.run_id, [STILL_ALIVE], "resume")


def test_lists_by_kind_and_the_summary(harness: Harness) -> None:
    assert harness.store.corrections.correction_summary(START).count == 0
    assert harness.store.corrections.correction_summary(START).worst_ms is None
    fence, tasks = ended(harness)
    written = []
    for seconds, one in [
        (10, replace(STILL_ALIVE, task_id=tasks[0].task_id)),
        (20, replace(STILL_ALIVE, task_id=tasks[1].task_id)),
        (5, Correction(CorrectionKind.REPAIR, "delivered", "undelivered")),
        (5, Correction(CorrectionKind.LATE_EVIDENCE, "FAILED", "COMPLETED")),
    ]:
        harness.clock.forward(seconds)
        written += harness.store.corrections.record_corrections(fence.run_id, [one])
    assert harness.store.corrections.list_corrections(kind="still_alive") == written[:2]
    assert harness.store.corrections.list_corrections(fence.run_id, kind="repair") == [written[2]]
    assert harness.store.corrections.list_corrections(
        kind="still_alive", after_id=written[0].id, limit=1
    ) == [written[1]]
    assert harness.store.corrections.list_corrections(kind="killed") == []
    summary = harness.store.corrections.correction_summary(START)
    expected = [("late_evidence", 1, 40_000), ("repair", 1, None), ("still_alive", 2, 30_000)]
    assert [(t.kind, t.count, t.worst_ms) for t in summary.kinds] == expected
    assert (summary.since, summary.count, summary.worst_ms) == (START, 4, 40_000)
    assert harness.store.corrections.correction_summary(written[1].created_at).count == 3
    assert harness.store.corrections.correction_summary(harness.clock.forward(1)).count == 0
