"""The decision table, and the invariants of reconciliation, whatever the cluster reports."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.task import (
    End,
    Observation,
    Phase,
    TaskState,
    TaskStatus,
    read_end,
    reconcile,
    task_may_become,
    told_exit,
)

T0 = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
PERSON = StopIntent(T0, requested_by="ada")
FORCED = dataclasses.replace(PERSON, force=True, escalated=True)
TIMED_OUT = StopIntent(T0, limit="timed_out")

#: The table of the contract, line by line: (evidence, stop, status, outcome).
TABLE = [
    (End(exit_code=0, finish_reason="finished"), None, "SUCCEEDED", "finished"),
    (End(exit_code=0, finish_reason="finished"), PERSON, "SUCCEEDED", "finished"),
    (End(exit_code=11, finish_reason="shutdown"), PERSON, "CANCELLED", "cancelled"),
    (End(exit_code=137, signal=9), FORCED, "CANCELLED", "cancel_timeout"),
    (End(exit_code=137, reason="OOMKilled"), PERSON, "CANCELLED", "cancelled"),
    (End(exit_code=11, finish_reason="shutdown"), TIMED_OUT, "FAILED", "timed_out"),
    (
        End(exit_code=137, signal=9),
        StopIntent(T0, limit="cancelled (stalled)"),
        "FAILED",
        "cancelled (stalled)",
    ),
    (End(exit_code=137, signal=9, reason="OOMKilled"), None, "FAILED", "killed by oom"),
    (End(exit_code=1, reason="OOMKilled"), None, "FAILED", "killed by oom"),
    (
        End(exit_code=0, finish_reason="finished", disruption="evicted"),
        None,
        "SUCCEEDED",
        "finished",
    ),
    (
        End(exit_code=0, finish_reason="finished", disruption="interrupted"),
        PERSON,
        "SUCCEEDED",
        "finished",
    ),
    (End(exit_code=1, finish_reason="finished", disruption="evicted"), None, "FAILED", "evicted"),
    (End(exit_code=0, finish_reason="shutdown", disruption="evicted"), None, "FAILED", "evicted"),
    (
        End(exit_code=0, finish_reason="closespider_x", disruption="evicted"),
        None,
        "FAILED",
        "evicted",
    ),
    (End(exit_code=0, runner=False, disruption="interrupted"), None, "FAILED", "interrupted"),
    (End(reason="DeadlineExceeded"), None, "FAILED", "timed_out"),
    (
        End(exit_code=0, reason="DeadlineExceeded", finish_reason="finished"),
        None,
        "SUCCEEDED",
        "finished",
    ),
    (
        End(exit_code=11, reason="DeadlineExceeded", finish_reason="shutdown"),
        PERSON,
        "CANCELLED",
        "cancelled",
    ),
    (End(exit_code=137, signal=9, reason="Evicted"), None, "FAILED", "diskusage_exceeded"),
    (End(exit_code=128, reason="StartError"), None, "FAILED", "failed"),
    (End(exit_code=0, reason="PodFailed", runner=False), None, "FAILED", "failed"),
    (End(exit_code=0, reason="PodFailed", finish_reason="finished"), None, "SUCCEEDED", "finished"),
    (End(exit_code=143, signal=15, disruption="interrupted"), None, "FAILED", "interrupted"),
    (
        End(exit_code=0, verdict=11, told=True, finish_reason="shutdown"),
        None,
        "FAILED",
        "interrupted",
    ),
    (End(exit_code=13, verdict=13, told=True), None, "FAILED", "interrupted"),
    (End(exit_code=0, finish_reason="shutdown"), None, "FAILED", "failed"),
    (End(exit_code=11, verdict=11, finish_reason="shutdown"), None, "FAILED", "failed"),
    (End(exit_code=13, verdict=13, told=True, disruption="evicted"), None, "FAILED", "evicted"),
    (End(disruption="lost", reason="NotFound"), None, "LOST", "lost"),
    (End(disruption="lost", reason="NotFound"), PERSON, "CANCELLED", "cancelled"),
    (End(exit_code=1, finish_reason="memusage_exceeded"), None, "FAILED", "memusage_exceeded"),
    (End(exit_code=0, finish_reason="memusage_exceeded"), None, "FAILED", "memusage_exceeded"),
    (End(exit_code=3, verdict=3), None, "FAILED", "diskusage_exceeded"),
    (End(exit_code=1, verdict=3), None, "FAILED", "diskusage_exceeded"),
    (End(exit_code=3), None, "FAILED", "failed"),
    (
        End(exit_code=0, finish_reason="closespider_itemcount"),
        None,
        "SUCCEEDED",
        "closespider_itemcount",
    ),
    (End(exit_code=0), None, "FAILED", "failed"),
    (End(exit_code=0, runner=False), None, "SUCCEEDED", "finished"),
    *(
        (End(exit_code=code), None, "FAILED", "failed")
        for code in (4, 8, 11, 13, 14, 15, 17, 18, 75, 143, 255)
    ),
    (End(exit_code=143, signal=15), None, "FAILED", "failed"),
    (End(exit_code=4, verdict=4), None, "FAILED", "failed"),
    (End(exit_code=1), None, "FAILED", "failed"),
    (End(exit_code=1, finish_reason="start_error"), None, "FAILED", "start_error"),
    (End(exit_code=137, signal=9), None, "FAILED", "failed"),
    (End(), None, "FAILED", "failed"),
]


@pytest.mark.parametrize(("end", "stop", "status", "outcome"), TABLE)
def test_each_line_of_the_table(
    end: End, stop: StopIntent | None, status: str, outcome: str
) -> None:
    ending = read_end(end, stop)
    assert (ending.status, ending.outcome) == (status, outcome)
    assert ending.cause
    assert "None" not in ending.cause


def test_cause_carries_the_evidence() -> None:
    end = End(exit_code=137, signal=9, reason="OOMKilled", memory_limit="512Mi")
    assert read_end(end).cause == "Out of memory (limit 512Mi), SIGKILL, exit 137"
    assert "which we did not send" in read_end(End(exit_code=137, signal=9)).cause


def test_cause_does_not_say_failed_twice() -> None:
    assert (
        read_end(End(exit_code=1, finish_reason="failed"), None).cause
        == "The crawler failed, exit 1"
    )
    assert (
        read_end(End(exit_code=1, finish_reason="late"), None).cause
        == "The crawler failed with 'late', exit 1"
    )


@pytest.mark.parametrize("stop", [PERSON, FORCED, TIMED_OUT])
def test_a_stop_that_nobody_can_prove_says_so(stop: StopIntent) -> None:
    unseen = End(disruption="interrupted", reason="DeletionByPodGC", message="its node is gone")
    assert read_end(unseen, stop).cause.endswith(", exit code unknown: its node is gone")
    # An exit code is the proof; a message without a disruption explains something else.
    assert "gone" not in read_end(dataclasses.replace(unseen, exit_code=137), stop).cause
    assert "gone" not in read_end(dataclasses.replace(unseen, disruption=None), stop).cause
    assert read_end(dataclasses.replace(unseen, message=None), stop).cause.endswith(
        ", exit code unknown"
    )


def test_a_stop_has_no_part_in_an_end_before_it() -> None:
    end = End(exit_code=1, finished_at=T0 - timedelta(seconds=1))
    assert read_end(end, PERSON).outcome == "failed"
    assert (
        read_end(dataclasses.replace(end, finished_at=T0 + timedelta(seconds=1)), PERSON).outcome
        == "cancelled"
    )


def test_a_deletion_before_our_own_stop_was_somebody_elses() -> None:
    """It is read only after the stop, perhaps much later: the stop did not cause it, and nobody
    failed.
    """
    words = "its Job is being deleted by somebody else"
    end = End(reason="Deleted", if_not_stopped=words, finished_at=T0 - timedelta(seconds=40))
    ending = read_end(end, PERSON)
    assert (ending.status, ending.outcome) == ("FAILED", "interrupted")
    assert words in ending.cause
    silent = End(
        exit_code=1,
        finish_reason="finished",
        if_not_stopped=words,
        finished_at=T0 - timedelta(seconds=40),
    )
    assert read_end(silent, PERSON).outcome == "interrupted"
    change = reconcile(believed(TaskStatus.STOPPING), _ended(end, T0), PERSON, due_at=T0)
    assert change is not None
    assert (change.outcome, change.correction) == ("interrupted", "killed")
    ours = dataclasses.replace(end, finished_at=T0 + timedelta(seconds=1))
    change = reconcile(believed(TaskStatus.STOPPING), _ended(ours, T0), PERSON, due_at=T0)
    assert change is not None
    assert (change.outcome, change.correction) == ("cancelled", None)
    finished = dataclasses.replace(ours, exit_code=0, finish_reason="finished", reason="Completed")
    assert read_end(finished, PERSON).outcome == "finished", "our own deletion disrupts nothing"
    by_another_clock = dataclasses.replace(finished, finished_at=T0 - timedelta(seconds=2))
    assert read_end(by_another_clock, PERSON).outcome == "finished", (
        "nor by a node whose clock is behind ours"
    )


@pytest.mark.parametrize(("current", "allowed"), [
    ("QUEUED", {"PENDING", "RUNNING", "STOPPING", "SUCCEEDED", "FAILED", "CANCELLED", "LOST"}),
    ("PENDING", {"RUNNING", "STOPPING", "SUCCEEDED", "FAILED", "CANCELLED", "LOST"}),
    ("RUNNING", {"STOPPING", "SUCCEEDED", "FAILED", "CANCELLED", "LOST"}),
    ("STOPPING", {"SUCCEEDED", "FAILED", "CANCELLED", "LOST"}),
    ("SUCCEEDED", set()), ("FAILED", set()), ("CANCELLED", set()), ("LOST", set()),
])  # fmt: skip
def test_allowed_transitions(current: str, allowed: set[str]) -> None:
    assert {s for s in TaskStatus if task_may_become(TaskStatus(current), s)} == allowed


# --- properties -----------------------------------------------------------------------------------

times = st.integers(-3600, 3600).map(lambda s: T0 + timedelta(seconds=s))
ends = st.builds(
    End,
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 70),
    reason=st.none() | st.sampled_from(["Completed", "Error", "OOMKilled", "Evicted"]),
    finished_at=st.none() | times,
    finish_reason=st.none()
    | st.sampled_from(["finished", "shutdown", "memusage_exceeded", "closespider_x", "odd"]),
    runner=st.booleans(),
    disruption=st.none() | st.sampled_from(["evicted", "interrupted"]),
)
stops = st.none() | st.builds(
    StopIntent,
    requested_at=times,
    force=st.booleans(),
    limit=st.none() | st.sampled_from(["timed_out", "start_timeout", "cancelled (stalled)"]),
    escalated=st.booleans(),
)


@st.composite
def observations(draw: st.DrawFn, uid: str | None = "u") -> Observation:
    phase = draw(st.sampled_from([Phase.ABSENT, Phase.WAITING, Phase.EXECUTING]))
    return Observation(
        index=0, attempt=1, phase=phase, observed_at=draw(times), uid=uid, changed_at=draw(times)
    )


def believed(status: TaskStatus = TaskStatus.QUEUED) -> TaskState:
    return TaskState(
        task_id=1, index=0, attempt=1, status=status, since=T0, uid="u", ever_seen=True
    )


@given(ends, stops)
def test_every_evidence_has_a_terminal_answer(end: End, stop: StopIntent | None) -> None:
    ending = read_end(end, stop)
    assert ending.status.terminal
    assert ending.outcome
    assert ending.cause


@given(st.sampled_from(list(TaskStatus)), observations(), ends, stops, times, st.booleans())
def test_reconciling_is_monotone_and_idempotent(
    status: TaskStatus,
    seen: Observation,
    end: End,
    stop: StopIntent | None,
    due: datetime,
    ended: bool,
) -> None:
    if ended:
        seen = dataclasses.replace(seen, phase=Phase.ENDED, end=end)
    task = believed(status)
    change = reconcile(task, seen, stop, due_at=due)
    if change is None:
        return
    assert task_may_become(change.before, change.after)
    after = dataclasses.replace(task, status=change.after)
    assert reconcile(after, seen, stop, due_at=due) is None


@given(st.lists(observations(), max_size=6), ends, stops, times)
def test_any_order_of_observations_ends_alike(
    seen: list[Observation], end: End, stop: StopIntent | None, due: datetime
) -> None:
    """Once the task has ended on the cluster, earlier observations and their order do not matter."""
    last = Observation(index=0, attempt=1, phase=Phase.ENDED, observed_at=T0, uid="u", end=end)
    endings = set()
    for order in (seen, list(reversed(seen)), sorted(seen, key=lambda o: o.phase), []):
        task = believed()
        for observation in [*order, last, *order, last]:
            change = reconcile(task, observation, stop, due_at=due)
            if change is not None:
                task = dataclasses.replace(task, status=change.after)
                if change.after.terminal:
                    endings.add((change.after, change.outcome, change.cause))
        assert task.status.terminal
    assert len(endings) == 1


@given(observations(uid="another"), ends, times)
def test_a_foreign_object_is_never_taken_for_ours(
    seen: Observation, end: End, due: datetime
) -> None:
    for phase in Phase:
        foreign = dataclasses.replace(seen, phase=phase, end=end)
        change = reconcile(believed(TaskStatus.RUNNING), foreign, None, due_at=due)
        if phase is Phase.ABSENT:
            assert change is None
        else:
            assert change is not None
            assert (change.after, change.correction) == (TaskStatus.LOST, "not_ours")


def _ended(end: End, at: datetime) -> Observation:
    return Observation(index=0, attempt=1, phase=Phase.ENDED, observed_at=at, uid="u", end=end)


def test_corrections_name_what_was_untrue() -> None:
    running, quiet = (
        believed(TaskStatus.RUNNING),
        End(exit_code=0, finish_reason="finished", finished_at=T0),
    )
    in_time, late = T0 + timedelta(seconds=60), T0 + timedelta(seconds=66)
    due = T0 + timedelta(seconds=60)

    def kind(
        seen: Observation, stop: StopIntent | None = None, *, resumed: bool = False
    ) -> str | None:
        change = reconcile(running, seen, stop, due_at=due, resumed=resumed)
        assert change is not None
        return change.correction

    assert kind(_ended(quiet, in_time)) is None
    assert kind(_ended(quiet, late)) == "late"
    assert kind(_ended(quiet, late), resumed=True) == "repair"
    assert kind(_ended(End(exit_code=137, signal=9, finished_at=T0), in_time)) == "killed"
    assert (
        kind(
            _ended(End(exit_code=137, signal=9, finished_at=T0 + timedelta(seconds=1)), in_time),
            PERSON,
        )
        is None
    )
    assert (
        kind(_ended(End(exit_code=137, signal=9, reason="OOMKilled", finished_at=T0), in_time))
        is None
    )
    told = End(exit_code=11, finish_reason="shutdown", finished_at=T0)
    assert kind(_ended(told, in_time)) is None
    deleted = dataclasses.replace(told, disruption="interrupted")
    assert kind(_ended(deleted, in_time)) == "killed", (
        "taken away by the cluster, although it left in order"
    )
    assert kind(_ended(dataclasses.replace(deleted, finish_reason="finished"), in_time)) is None
    assert (
        kind(
            _ended(dataclasses.replace(deleted, finished_at=T0 + timedelta(seconds=1)), in_time),
            PERSON,
        )
        is None
    )
    gone = Observation(index=0, attempt=1, phase=Phase.GONE, observed_at=in_time, uid="u")
    assert kind(gone) == "vanished"
    never = dataclasses.replace(running, ever_seen=False)
    change = reconcile(never, gone, None, due_at=due)
    assert change is not None
    assert (change.after, change.outcome, change.correction) == (
        TaskStatus.LOST,
        "lost",
        "never_existed",
    )
    # No poll saw it, but its cluster shows when it was there.
    for trace in ("started_at", "changed_at"):
        change = reconcile(never, dataclasses.replace(gone, **{trace: T0}), None, due_at=due)
        assert change is not None
        assert (change.after, change.correction) == (TaskStatus.LOST, "vanished")


@pytest.mark.parametrize(("stop", "status", "outcome"), [
    (PERSON, "CANCELLED", "cancelled"), (FORCED, "CANCELLED", "cancel_timeout"), (TIMED_OUT, "FAILED", "timed_out"),
])  # fmt: skip
def test_gone_after_our_own_stop_is_no_loss(stop: StopIntent, status: str, outcome: str) -> None:
    gone = Observation(index=0, attempt=1, phase=Phase.GONE, observed_at=T0, uid="u")
    change = reconcile(believed(TaskStatus.STOPPING), gone, stop, due_at=T0)
    assert change is not None
    assert (change.after, change.outcome, change.correction) == (status, outcome, None)


def test_an_end_dated_to_the_second_belongs_to_a_stop_within_that_second() -> None:
    """A kubelet's times are whole seconds: an end half a second after the stop is dated before it."""
    asked = datetime(2026, 1, 5, 12, 0, 5, 700_000, tzinfo=UTC)
    stop = StopIntent(asked)
    cut = End(
        exit_code=11,
        verdict=11,
        told=True,
        finished_at=asked.replace(microsecond=0),
        finish_reason="shutdown",
    )
    assert read_end(cut, stop).outcome == "cancelled"
    earlier = dataclasses.replace(
        cut, finished_at=asked.replace(microsecond=0) - timedelta(seconds=1)
    )
    assert read_end(earlier, stop).outcome == "interrupted"
    exact = dataclasses.replace(cut, finished_at=asked - timedelta(milliseconds=400))
    assert read_end(exact, stop).outcome == "interrupted"


def test_the_crawlers_own_exit_code_beside_the_runners_verdict() -> None:
    """In this order: exit code of the process, then ``exit``, ``own_exit`` and ``told_to_stop`` of
    the summary.
    """
    assert told_exit(11, 11, 0, True) == (0, 11)
    assert told_exit(11, 11, 11, True) == (11, 11)
    assert told_exit(11, 11, 11, False) == (11, None), "a code of its own: nobody told it to stop"
    assert told_exit(13, 13, 5, True) == (5, 13)
    assert told_exit(3, 3, 1, False) == (1, 3), "the runner saw a full disk"
    assert told_exit(3, 3, 3, False) == (3, None)
    assert told_exit(4, 4, 127, False) == (127, 4), "it cannot be executed"
    assert told_exit(1, 1, None, False) == (1, 1), "Scrapy's own code is never told"
    assert told_exit(3, None, None, False) == (3, 3), "on a full disk there is no summary"
    assert told_exit(137, 1, 1, False) == (137, None), "the runner was killed after its summary"
    assert read_end(
        End(exit_code=0, verdict=11, told=True, finish_reason="shutdown"), PERSON
    ).cause.endswith("exit 0")
