"""The largest values that a crawler may report, and larger ones written by others: every poll can
be committed.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from crawler_lifecycle.clusters.kubernetes.polls.termination_message import (
    last_progress,
    read_summary,
)
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.errors import RunNotFound
from crawler_lifecycle.domain.run import Limits, RunRequest
from crawler_lifecycle.domain.task import End, Phase
from crawler_lifecycle.ports.polls import Details
from crawler_lifecycle.ports.runs import Fence, Owner
from tests.contracts.store.harness import Harness, never_asked, request, seen

#: Possible values in a termination message or a log line where a number or a time is expected.
NUMBERS = (
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -1,
    -(2**63),
    True,
    1e308,
    "5",
    bounds.COUNT_MAX,
    bounds.COUNT_MAX + 1,
    2**31,
)
TIMES = (
    "9999-12-31T23:59:59.999999-14:00",
    "0001-01-01T00:00:00+14:00",
    "2101-01-01T00:00:00Z",
    "1969-12-31T00:00:00Z",
)
WORDS = ("\0", "\ud800", "x" * 100_000, "\U0001f577" * 3000)


def said(n: int) -> dict[str, object]:
    """Return what a crawler may put into its summary: the n-th odd value of everything."""
    number, time, words = NUMBERS[n % len(NUMBERS)], TIMES[n % len(TIMES)], WORDS[n % len(WORDS)]
    names = ("pages", "items", "errors", "bytes", "peak_memory", "exit", "signal")
    texts = ("finish_reason", "message", "resume_note")
    return {
        "runner": "1",
        **dict.fromkeys(names, number),
        **dict.fromkeys(texts, words),
        "finished_at": time,
    }


def test_whatever_a_crawler_says_is_committed_in_one_round(harness: Harness) -> None:
    """Through the readers of a pod's termination message and of its log, into every column."""
    fence = harness.executing(tasks=len(NUMBERS))
    tasks = harness.store.polls.found_state(fence).tasks
    ends, details = [], []
    for n, task in enumerate(tasks):
        word = read_summary(json.dumps(said(n)))
        line = json.dumps(
            {"crawl_progress": {**said(n), "updated_at": TIMES[n % len(TIMES)]}}
        ).encode()
        progress = last_progress(line)
        end = End(
            word.exit, word.signal, "Error", word.message, word.progress.at, word.finish_reason
        )
        ends.append(
            seen(
                task,
                Phase.ENDED,
                harness.clock.now,
                uid=task.uid,
                counters=word.progress.counters,
                progress_at=word.progress.at,
                peak_memory=word.peak_memory,
                resume_note=word.progress.resume_note,
                changed_at=word.progress.at,
                end=end,
            )
        )
        words = WORDS[n % len(WORDS)]
        log = (words * (50_000 // len(words) + 1))[:50_000]
        details.append(Details(task.task_id, log, progress.counters, word.peak_memory))
    harness.stage(fence, ends)
    harness.store.polls.save_details(fence, details[:6])
    harness.store.polls.apply_details(fence)
    harness.store.polls.apply_findings(fence, "look")
    row = harness.store.runs.get_run(fence.run_id)
    assert row is not None
    expected = (None, bounds.COUNT_MAX + 2**31, 0)
    assert (
        row.look_error,
        row.pages,
        harness.store.tasks.count_tasks(fence.run_id).alive,
    ) == expected


def test_a_run_id_that_no_row_can_have_is_not_found_at_once(harness: Harness) -> None:
    for run_id in (2**63 - 1, 2**63, 10**30, 0, -1):
        assert harness.store.runs.get_run(run_id) is None
        fence = Fence(run_id, 1, "chain", "0" * 32)
        with pytest.raises(RunNotFound):
            harness.store.polls.found_state(fence)
        with pytest.raises(RunNotFound):
            harness.store.deployment.note_waiting(fence, "x")
    with pytest.raises(RunNotFound):
        harness.store.initiation.claim_run(
            RunRequest(run_id=2**63 - 1), Owner("w", "c"), never_asked
        )


def test_the_largest_request_survives_its_row(harness: Harness) -> None:
    limits = Limits(
        **{
            n.removeprefix("limits."): b.most
            for n, b in bounds.LIMITS.items()
            if n.startswith("limits.")
        }
    )
    far = datetime(2100, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    asked = request(
        limits=limits, poll_minutes=[1440.0], due_at=far, priority=5, max_parallel_tasks=100_000
    )
    handle = harness.store.initiation.create_run(asked, "r1", Owner("w", "c"))
    found = harness.store.runs.request_of(handle.run_id)
    assert (found.limits, found.poll_minutes, found.due_at) == (limits, [1440.0], far)
    assert harness.clock.now + timedelta(seconds=limits.run_timeout_s or 0) < far
