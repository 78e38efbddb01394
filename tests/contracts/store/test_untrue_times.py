"""For how long a recorded status was untrue, whatever the clocks show and however often a poll is
tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from crawler_lifecycle.domain.task import Change, Counters, End, Observation, Phase, TaskStatus
from crawler_lifecycle.ports.polls import CommittedChanges, CorrectionRow, Poll, TaskFinding
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.base import unit
from crawler_lifecycle.store.runs.tables import task_history
from crawler_lifecycle.store.runs.unit import Unit
from crawler_lifecycle.store.store import open_store
from tests.contracts.store.harness import START, Clock, Harness, seen

KILLED = End(exit_code=137, signal=9, reason="Error")
#: Seconds by which one worker's clock is ahead of the others.
AHEAD_S = 600.0


def observed(harness: Harness, fence: Fence, phase: Phase, **fields: object) -> Observation:
    [task] = harness.store.polls.found_state(fence).tasks
    return seen(task, phase, harness.clock.now, **fields)


def polled(harness: Harness, fence: Fence, after: float, phase: Phase, **fields: object) -> None:
    """Poll the only task, this number of seconds later."""
    harness.clock.forward(after)
    harness.poll(fence, [observed(harness, fence, phase, **fields)])


def only(harness: Harness, fence: Fence) -> CorrectionRow:
    [row] = harness.store.corrections.list_corrections(fence.run_id)
    return row


def test_an_end_with_a_time_is_untrue_from_then_on(harness: Harness) -> None:
    fence = harness.executing(tasks=1)
    when = harness.clock.forward(40)
    polled(harness, fence, 20, Phase.ENDED, uid="uid-1-0", end=replace(KILLED, finished_at=when))
    row = only(harness, fence)
    assert (row.believed, row.believed_since, row.truth, row.truth_since) == (
        "RUNNING",
        START,
        "FAILED",
        when,
    )
    assert row.lag_ms == 20_000
    [moved] = [t for t in harness.store.runs.transitions(fence.run_id) if t.to_status == "FAILED"]
    assert (moved.cluster_time, moved.committed_at, moved.lag_ms) == (
        when,
        harness.clock.now,
        20_000,
    )


def test_a_clock_that_is_ahead_makes_no_negative_time(harness: Harness) -> None:
    fence = harness.executing(tasks=1)
    ahead = harness.clock.forward(60) + timedelta(seconds=3)
    harness.poll(
        fence,
        [
            observed(
                harness, fence, Phase.ENDED, uid="uid-1-0", end=replace(KILLED, finished_at=ahead)
            )
        ],
    )
    assert only(harness, fence).lag_ms == 0
    assert {
        t.lag_ms for t in harness.store.runs.transitions(fence.run_id) if t.to_status == "FAILED"
    } == {0}


def test_an_end_dated_before_its_status_was_on_record_is_untrue_from_the_record_on(
    harness: Harness,
) -> None:
    fence = harness.executing(tasks=1)
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1", fence)
    harness.clock.forward(30)
    [task] = harness.store.polls.found_state(fence).tasks
    harness.store.stops.mark_stopping(fence, [task.task_id])
    harness.clock.forward(10)
    early = START - timedelta(seconds=5)
    harness.poll(
        fence,
        [
            observed(
                harness, fence, Phase.ENDED, uid="uid-1-0", end=replace(KILLED, finished_at=early)
            )
        ],
    )
    row = only(harness, fence)
    assert (row.believed, row.truth_since, row.lag_ms) == ("STOPPING", early, 10_000)


@pytest.mark.parametrize(
    ("polls", "lag_ms"),
    [
        ([(60, Phase.EXECUTING), (90, Phase.GONE)], 90_000),
        # If the proof of absence needs two polls, the first of them does not count as seeing the
        # task.
        (
            [(60, Phase.EXECUTING), (45, Phase.ABSENT), (45, Phase.ABSENT), (45, Phase.GONE)],
            135_000,
        ),
        # A task that is seen again was never gone.
        ([(60, Phase.ABSENT), (60, Phase.EXECUTING), (30, Phase.GONE)], 30_000),
    ],
)
def test_what_vanished_was_untrue_since_a_poll_last_saw_it(
    harness: Harness, polls: list[tuple[float, Phase]], lag_ms: int
) -> None:
    fence = harness.executing(tasks=1)
    for after, phase in polls:
        polled(harness, fence, after, phase, uid=None if phase is Phase.ABSENT else "uid-1-0")
    row = only(harness, fence)
    assert (row.kind, row.truth_since, row.lag_ms) == ("vanished", None, lag_ms)


def test_a_poll_by_a_clock_that_is_ahead_vouches_when_it_was_ordered(harness: Harness) -> None:
    """Its own time is in the future.

    By that time, a task that vanished would have had an untrue status for no time at all.
    """
    fence = harness.executing(tasks=1)
    ordered = harness.clock.forward(60)
    harness.clock.forward(AHEAD_S)
    there = [observed(harness, fence, Phase.EXECUTING, uid="uid-1-0")]
    harness.store.polls.record_poll(fence, Poll(harness.clock.now, 0.1, there), [], None, ordered)
    polled(harness, fence, 40 - AHEAD_S, Phase.GONE, uid="uid-1-0")
    assert (only(harness, fence).kind, only(harness, fence).lag_ms) == ("vanished", 40_000)


def test_an_absence_by_a_clock_that_is_ahead_begins_anew(harness: Harness) -> None:
    fence = harness.executing(tasks=1)
    polled(harness, fence, AHEAD_S, Phase.ABSENT)
    polled(harness, fence, 10 - AHEAD_S, Phase.ABSENT)
    first = harness.clock.now
    polled(harness, fence, 30, Phase.ABSENT)
    assert harness.store.polls.found_state(fence).tasks[0].missed_at == first


@pytest.fixture
def dated(store_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    """A harness whose store asks the database whether its own clock is ahead.

    At first, both clocks agree.
    """
    clock.now = datetime.now(UTC)
    monkeypatch.setattr(unit, "utc_now", clock)
    with closing(open_store(store_url)) as store:
        yield Harness(store, clock)


@pytest.mark.parametrize("phase", [Phase.ENDED, Phase.GONE])
def test_a_worker_whose_clock_is_ahead_counts_by_the_database(
    dated: Harness, store_url: str, phase: Phase
) -> None:
    """A task that ended or was last seen 30 s ago was untrue for about that long, not for ten
    minutes more.
    """
    fence = dated.executing(tasks=1)
    real, ordered = dated.clock.now, dated.clock.now - timedelta(seconds=30)
    with dated.store.database.writing() as conn:
        conn.execute(update(task_history).values(status_since=ordered))
    dated.clock.forward(AHEAD_S)
    there = [observed(dated, fence, Phase.EXECUTING, uid="uid-1-0")]
    dated.store.polls.record_poll(fence, Poll(dated.clock.now, 0.1, there), [], None, ordered)
    end = replace(KILLED, finished_at=ordered) if phase is Phase.ENDED else None
    polled(dated, fence, 6, phase, uid="uid-1-0", end=end)
    found, on_a_server = only(dated, fence), not store_url.startswith("sqlite")
    [moved] = [t for t in dated.store.runs.transitions(fence.run_id) if t.to_status == found.truth]
    late = timedelta(seconds=AHEAD_S / 2)
    assert (found.created_at - real < late, moved.committed_at - real < late) == (
        on_a_server,
        on_a_server,
    )
    # A file's clock is the worker's own: its polls and its corrections are equally ahead.
    least, most = (
        (30_000, 300_000)
        if on_a_server
        else (6_000, 6_000)
        if phase is Phase.GONE
        else (636_000, 636_000)
    )
    assert found.lag_ms is not None
    assert least <= found.lag_ms <= most


HEARD = End(exit_code=11, reason="Error", finish_reason="shutdown")
CRASHED = End(exit_code=1, reason="Error", by_itself=True)


@pytest.mark.parametrize(
    ("ahead_s", "end", "ended_s", "by_server", "by_file"),
    [
        (AHEAD_S, HEARD, AHEAD_S / 2, "CANCELLED", "FAILED"),
        (-AHEAD_S, CRASHED, -60, "FAILED", "CANCELLED"),
    ],
)
def test_a_stop_of_a_gateway_whose_clock_is_wrong_is_dated_by_the_database(
    dated: Harness, ahead_s: float, end: End, ended_s: float, by_server: str, by_file: str
) -> None:
    """By its own date, the stop came after the end that it caused, as if somebody else had stopped
    the task.
    """
    fence = dated.executing(tasks=1)
    asked = dated.clock.now
    dated.clock.forward(ahead_s)
    dated.store.stops.record_stop(fence.run_id, dated.stop(), "s1")
    dated.clock.forward(AHEAD_S / 2 - ahead_s)
    over = replace(end, finished_at=asked + timedelta(seconds=ended_s))
    polled(dated, fence, 1, Phase.ENDED, uid="uid-1-0", end=over)
    [task] = dated.store.tasks.list_tasks(fence.run_id)
    assert task.status == (
        by_server if dated.store.database.engine.dialect.name == "mysql" else by_file
    )


@pytest.mark.parametrize("missed", [0, 1])
def test_one_task_is_missed_by_the_poll_that_counts_another(harness: Harness, missed: int) -> None:
    """Both rows are written at once, with each value in its own column."""
    fence = harness.executing(tasks=2)
    now = harness.clock.forward(5)
    tasks = harness.store.polls.found_state(fence).tasks
    gone = seen(tasks[missed], Phase.ABSENT, now, reason="It is not on the cluster any more")
    there = seen(
        tasks[1 - missed],
        Phase.EXECUTING,
        now,
        uid=tasks[1 - missed].uid,
        counters=Counters(7, 5, 3),
        node="node-1",
    )
    harness.poll(fence, sorted([gone, there], key=lambda one: one.index))
    rows = harness.store.tasks.list_tasks(fence.run_id)
    said = [(row.pages, row.items, row.errors, row.node, row.reason) for row in rows]
    assert said[1 - missed] == (7, 5, 3, "node-1", None)
    assert said[missed] == (None, None, None, None, "It is not on the cluster any more")
    assert {str(row.status) for row in rows} == {"RUNNING"}


def test_what_is_missed_says_so_until_it_is_seen_again(harness: Harness) -> None:
    """Nothing is proved and no status changes, but people can read what the problem is."""
    fence = harness.executing(tasks=1)
    reasons = []
    for phase, uid, words in (
        (Phase.ABSENT, None, "It is not on the cluster any more"),
        (Phase.ABSENT, None, "The namespace crawls does not exist any more"),
        (Phase.ABSENT, None, None),
        (Phase.EXECUTING, "uid-1-0", None),
    ):
        polled(harness, fence, 5, phase, uid=uid, reason=words)
        [task] = harness.store.tasks.list_tasks(fence.run_id)
        reasons.append((str(task.status), task.reason))
    gone = "The namespace crawls does not exist any more"
    missed = [
        ("RUNNING", "It is not on the cluster any more"),
        ("RUNNING", gone),
        ("RUNNING", gone),
    ]
    assert reasons == [*missed, ("RUNNING", None)]
    assert harness.store.corrections.list_corrections(fence.run_id) == []


def test_what_never_existed_was_untrue_from_the_first(harness: Harness) -> None:
    fence = harness.deployed(tasks=1)
    for _ in range(3):
        polled(harness, fence, 60, Phase.ABSENT)
    polled(harness, fence, 20, Phase.GONE, uid="uid-1-0")
    row = only(harness, fence)
    assert (row.kind, row.believed, row.believed_since, row.lag_ms) == (
        "never_existed",
        "PENDING",
        START,
        200_000,
    )


def test_another_object_does_not_date_the_end_of_ours(harness: Harness) -> None:
    fence = harness.executing(tasks=1)
    other = harness.clock.forward(50)
    polled(harness, fence, 10, Phase.EXECUTING, uid="uid-other", changed_at=other)
    row = only(harness, fence)
    assert (row.kind, row.truth_since, row.lag_ms) == ("not_ours", None, 60_000)
    [task] = harness.store.tasks.list_tasks(fence.run_id)
    assert (task.status, task.ended_at) == (TaskStatus.LOST, harness.clock.now)


def staged(
    harness: Harness,
    fence: Fence,
    observation: Observation,
    correction: str | None,
    when: datetime | None,
) -> None:
    """A poll whose worker dies before its findings are applied."""
    [task] = harness.store.polls.found_state(fence).tasks
    change = Change(task.task_id, task.status, TaskStatus.FAILED, when, "failed", "x", correction)
    poll = Poll(harness.clock.now, 0.1, [observation])
    harness.store.polls.record_poll(
        fence,
        poll,
        [TaskFinding(change, observation)],
        harness.clock.now + timedelta(minutes=5),
    )


def test_lateness_survives_a_poll_that_is_tried_again(harness: Harness) -> None:
    """The first try moves the time of the next poll, so the second one alone would consider the
    change punctual.
    """
    fence = harness.executing(tasks=1)
    when = harness.clock.forward(60)
    end = replace(KILLED, finished_at=when)
    harness.clock.forward(100)
    staged(
        harness, fence, observed(harness, fence, Phase.ENDED, uid="uid-1-0", end=end), "late", when
    )
    harness.clock.forward(20)
    staged(
        harness, fence, observed(harness, fence, Phase.ENDED, uid="uid-1-0", end=end), None, when
    )
    harness.store.polls.apply_findings(fence, "look")
    assert (only(harness, fence).kind, only(harness, fence).lag_ms) == ("late", 120_000)


def test_the_last_sight_survives_a_poll_that_is_tried_again(harness: Harness) -> None:
    fence = harness.executing(tasks=1)
    for _ in range(3):
        harness.clock.forward(50)
        staged(harness, fence, observed(harness, fence, Phase.ENDED, uid="uid-1-0"), "killed", None)
    harness.store.polls.apply_findings(fence, "look")
    assert only(harness, fence).lag_ms == 150_000


def test_another_finding_takes_nothing_over(harness: Harness) -> None:
    fence = harness.executing(tasks=1)
    harness.clock.forward(50)
    staged(harness, fence, observed(harness, fence, Phase.ENDED, uid="uid-1-0"), "late", None)
    [task] = harness.store.polls.found_state(fence).tasks
    observation = observed(harness, fence, Phase.ENDED, uid="uid-1-0")
    change = Change(
        task.task_id, task.status, TaskStatus.SUCCEEDED, harness.clock.now, "finished", "exit 0"
    )
    poll = Poll(harness.clock.now, 0.1, [observation])
    harness.store.polls.record_poll(fence, poll, [TaskFinding(change, observation)], None)
    harness.store.polls.apply_findings(fence, "look")
    assert harness.store.corrections.list_corrections(fence.run_id) == []


@pytest.fixture
def told(store_url: str, clock: Clock) -> Iterator[tuple[Harness, list[CommittedChanges]]]:
    """A harness whose store reports what it has committed."""
    news: list[CommittedChanges] = []
    store = open_store(store_url, clock=clock, told=news.append)
    yield Harness(store, clock), news
    store.close()


def test_what_is_committed_is_told_once(told: tuple[Harness, list[CommittedChanges]]) -> None:
    harness, news = told
    fence = harness.executing(tasks=1)
    expected = [("PENDING", "deploy", None), ("RUNNING", "look", 0)]
    assert [(c.status, c.source, c.lag_ms) for n in news for c in n.changes] == expected
    assert [n.corrections for n in news] == [[], []]
    when = harness.clock.forward(10)
    harness.clock.forward(5)
    end = observed(
        harness, fence, Phase.ENDED, uid="uid-1-0", end=replace(KILLED, finished_at=when)
    )
    harness.poll(fence, [end], "wake")
    [*_, last] = news
    assert (last.run_id, last.attempt, len(news)) == (fence.run_id, 1, 3)
    assert [(c.status, c.source, c.lag_ms) for c in last.changes] == [("FAILED", "wake", 5_000)]
    [wrong] = last.corrections
    assert wrong.row == only(harness, fence)
    assert wrong.cause == "Killed by SIGKILL, exit 137, which we did not send"
    harness.store.polls.apply_findings(fence, "wake")
    harness.end(fence)
    assert len(news) == 3


def test_what_is_rolled_back_is_not_told(
    told: tuple[Harness, list[CommittedChanges]], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, news = told
    fence = harness.executing(tasks=1)
    before = len(news)
    staged(harness, fence, observed(harness, fence, Phase.ENDED, uid="uid-1-0"), "killed", None)
    with monkeypatch.context() as cut:
        cut.delattr(Unit, "announce")
        with pytest.raises(AttributeError, match="announce"):
            harness.store.polls.apply_findings(fence, "look")
    assert len(news) == before
    harness.store.polls.apply_findings(fence, "look")
    assert len(news) == before + 1
