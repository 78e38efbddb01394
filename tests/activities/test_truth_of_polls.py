"""Only what a complete poll proved is shown, whatever fails; only what was committed is counted,
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.reconciliation import Sync
from crawler_lifecycle.domain.audits.corrections import wrong_words
from crawler_lifecycle.domain.errors import ClusterUnavailable, StoreUnavailable
from crawler_lifecycle.domain.waiting import waiting
from crawler_lifecycle.gateway.runs.answers import standing_of
from crawler_lifecycle.store.store import open_store
from tests.activities.harness import Breaker, Crash, Harness
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.store_ports import port_of

SHOWN = ("status", "verified_at", "next_look_at", "pages", "items", "last_progress_at")


def shown(harness: Harness) -> dict[str, object]:
    row = harness.row()
    return {name: getattr(row, name) for name in SHOWN} | {"tasks": harness.statuses()}


def sentence(harness: Harness) -> str | None:
    return waiting(standing_of(harness.row(), harness.clock()))


def executing(harness: Harness) -> Any:
    harness.cluster.behaviour = Behaviour(executes=None)
    return harness.started(2)


def test_a_cluster_that_does_not_answer_moves_nothing(harness: Harness) -> None:
    fence = executing(harness)
    before = shown(harness)
    harness.cluster.fail_with(ClusterUnavailable("503"), "poll")
    for seconds in (60, 200):
        harness.forward(seconds)
        with pytest.raises(ClusterUnavailable):
            harness.call("get_history_statuses_to_sync", harness.poll(fence))
        assert shown(harness) == before
    assert sentence(harness) == "the cluster has not answered for 3 min: 503"
    harness.cluster.fail_with(None)
    harness.round(fence)
    assert sentence(harness) is None
    assert harness.row().verified_at == harness.clock()


@pytest.mark.parametrize("method", ["found_state", "record_poll"])
def test_a_database_that_takes_no_writes_shows_nothing_false(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    fence = executing(harness)
    before = shown(harness)
    harness.cluster.end_now(1)
    harness.forward(260)

    def down(*_: object, **__: object) -> None:
        raise StoreUnavailable("read-only")

    with monkeypatch.context() as outage:
        outage.setattr(port_of(harness.store, method), method, down)
        with pytest.raises(StoreUnavailable):
            harness.call("get_history_statuses_to_sync", harness.poll(fence))
    assert shown(harness) == before
    assert sentence(harness) == (
        "the poll that was due 3 min ago is missing: no worker takes it, or it hangs"
    )  # fmt: skip
    harness.round(fence)
    [wrong] = harness.store.corrections.list_corrections()
    assert (wrong.kind, wrong.lag_ms) == ("killed", 260_000)


def test_a_poll_that_fails_after_one_whose_answer_was_lost_takes_nothing_back(
    harness: Harness,
) -> None:
    fence = executing(harness)
    harness.cluster.end_now(1)
    harness.forward(70)
    with pytest.raises(Crash):
        harness.call("get_history_statuses_to_sync", harness.poll(fence), Breaker(at=3, after=True))
    polled = shown(harness)
    assert polled["verified_at"] == harness.clock(), "that poll was complete"
    assert polled["tasks"] == ["RUNNING", "RUNNING"], (
        "its findings are not committed as statuses yet"
    )
    harness.forward(30)
    harness.cluster.fail_with(ClusterUnavailable("503"), "poll")
    with pytest.raises(ClusterUnavailable):
        harness.call("get_history_statuses_to_sync", harness.poll(fence))
    assert shown(harness) == polled
    harness.cluster.fail_with(None)
    harness.forward(30)
    harness.round(fence)
    [wrong] = harness.store.corrections.list_corrections()
    assert wrong.lag_ms == 130_000


class Recorder:
    """A meter that records what was added."""

    def __init__(self) -> None:
        self.counted: Counter[tuple[str, str]] = Counter()
        self.measured: list[tuple[str, str, float]] = []

    def with_additional_attributes(self, _: object) -> Recorder:
        return self

    def create_counter(self, name: str, *_: object, **__: object) -> Any:
        return _Instrument(lambda value, labels: self.counted.update({(name, labels): int(value)}))

    def create_histogram_timedelta(self, name: str, *_: object, **__: object) -> Any:
        return _Instrument(
            lambda value, labels: self.measured.append((name, labels, value.total_seconds()))
        )


class _Instrument:
    def __init__(self, take: Callable[[Any, str], None]) -> None:
        self._take = take

    def add(self, value: int, labels: Mapping[str, str] | None = None) -> None:
        self._take(value, ",".join((labels or {}).values()))

    record = add


@pytest.fixture
def counted(
    new_harness: Callable[[], Harness], monkeypatch: pytest.MonkeyPatch
) -> tuple[Harness, Recorder]:
    """A harness whose store reports what it has committed, as a worker's does, and whose activities
    have meters.
    """
    harness, recorder = new_harness(), Recorder()
    harness.store.close()
    harness.store = open_store(harness.url, clock=harness.clock, told=meters.committed)

    def call(name: str, argument: Any, breaker: Breaker | None = None) -> Any:
        environment = ActivityEnvironment()
        environment.metric_meter = recorder  # type: ignore[assignment]
        return environment.run(harness.activities(breaker)[name], argument)

    monkeypatch.setattr(harness, "call", call)
    return harness, recorder


def lags(recorder: Recorder) -> list[tuple[str, float]]:
    return [
        (labels, seconds)
        for name, labels, seconds in recorder.measured
        if name == "lifecycle_truth_lag"
    ]


def test_lag_is_measured_to_the_commit_and_once(counted: tuple[Harness, Recorder]) -> None:
    harness, recorder = counted
    fence = executing(harness)
    assert lags(recorder) == [("look", 0.5), ("look", 0.5)], "the start of both tasks"
    harness.cluster.end_now(1)
    harness.cluster.end_now(1, 1, end=FINISHED)
    harness.forward(40)
    order = replace(harness.poll(fence), source="wake")
    harness.call("get_history_statuses_to_sync", order)
    harness.forward(2)
    harness.call("get_history_statuses_to_sync", order)
    assert len(lags(recorder)) == 2, "found is not committed"
    assert recorder.counted["lifecycle_corrections", "killed"] == 0
    harness.call("get_bulk_task_history_data", fence)
    harness.call("reconcile_tasks", fence)
    harness.forward(3)
    with pytest.raises(Crash):
        harness.call("sync_statuses", Sync(fence, "wake"), Breaker(at=0))
    assert len(lags(recorder)) == 2
    for _ in range(3):
        harness.call("sync_statuses", Sync(fence, "wake"))
    assert lags(recorder)[2:] == [("wake", 45.0), ("wake", 45.0)]
    assert recorder.counted["lifecycle_corrections", "killed"] == 1
    assert recorder.counted["lifecycle_tasks_changed", "SUCCEEDED"] == 1
    assert recorder.counted["lifecycle_tasks_changed", "FAILED"] == 1
    assert recorder.counted["lifecycle_tasks_changed", "PENDING"] == 2


def test_every_source_is_measured_under_its_name(counted: tuple[Harness, Recorder]) -> None:
    harness, recorder = counted
    harness.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=None, heeds_stop_after=0.0 if index == 0 else None
    )
    fence = harness.started(2)
    harness.call("record_stop", harness.stop(fence))
    harness.call("k8_stop_task", fence)
    harness.forward(4)
    harness.call("get_history_statuses_to_sync", replace(harness.poll(fence), source="stop"))
    harness.call("sync_statuses", Sync(fence, "stop"))
    harness.cluster.end_now(1, 1)
    harness.forward(30)
    resumed = harness.resumed()
    order = replace(harness.poll(resumed), source="resume", resumed=True)
    harness.call("get_history_statuses_to_sync", order)
    harness.call("sync_statuses", Sync(resumed, "resume"))
    assert lags(recorder)[2:] == [("stop", 4.0), ("resume", 30.0)]
    assert harness.row().next_look_at == harness.clock() + timedelta(seconds=120)


@pytest.mark.parametrize(("back_after", "kinds"), [(32, {}), (70, {"late": 1})])
def test_an_outage_is_lag_or_a_correction_and_the_sentence_says_which(
    harness: Harness, back_after: float, kinds: dict[str, int]
) -> None:
    """A task ends during an outage.

    If the cluster is back before the next poll is due, this is lag; if later, it is a ``late``
    correction for the whole time.
    """
    harness.cluster.behaviour = Behaviour(executes=None)
    fence = harness.started()
    harness.round(fence)
    row = harness.row()
    assert row.next_look_at is not None
    harness.forward((row.next_look_at - harness.clock()).total_seconds() - 60)
    ended = harness.clock()
    harness.cluster.end_now(1, end=FINISHED)
    harness.forward(back_after)
    harness.round(fence)
    untrue_ms = round((harness.clock() - ended).total_seconds() * 1000)
    told = harness.store.runs.transitions(1)[-1]
    assert (told.to_status, told.lag_ms) == ("SUCCEEDED", untrue_ms)
    summary = harness.store.corrections.correction_summary(ended)
    assert {total.kind: total.count for total in summary.kinds} == kinds
    assert summary.worst_ms == (untrue_ms if kinds else None), (
        "it counts from the end, not from the poll that was due"
    )
    words = wrong_words(summary.worst_ms, kinds, "this week")
    assert ("70 s" in words) is bool(kinds)
    assert "a change that the next planned poll finds is not a correction" in words
    assert "untrue" not in words, "without a correction nobody may say that all was true"
