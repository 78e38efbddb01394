"""What is shown is what a complete poll proved, whatever fails; what is counted is what was
committed, once.
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
from tests.activities.world import Breaker, Crash, World
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.store_ports import port_of

SHOWN = ("status", "verified_at", "next_look_at", "pages", "items", "last_progress_at")


def shown(world: World) -> dict[str, object]:
    row = world.row()
    return {name: getattr(row, name) for name in SHOWN} | {"tasks": world.statuses()}


def sentence(world: World) -> str | None:
    return waiting(standing_of(world.row(), world.clock()))


def executing(world: World) -> Any:
    world.cluster.behaviour = Behaviour(executes=None)
    return world.started(2)


def test_a_cluster_that_does_not_answer_moves_nothing(world: World) -> None:
    fence = executing(world)
    before = shown(world)
    world.cluster.fail_with(ClusterUnavailable("503"), "poll")
    for seconds in (60, 200):
        world.forward(seconds)
        with pytest.raises(ClusterUnavailable):
            world.call("get_history_statuses_to_sync", world.poll(fence))
        assert shown(world) == before
    assert sentence(world) == "the cluster has not answered for 3 min: 503"
    world.cluster.fail_with(None)
    world.round(fence)
    assert sentence(world) is None
    assert world.row().verified_at == world.clock()


@pytest.mark.parametrize("method", ["found_state", "record_poll"])
def test_a_database_that_takes_no_writes_shows_nothing_false(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    fence = executing(world)
    before = shown(world)
    world.cluster.end_now(1)
    world.forward(260)

    def down(*_: object, **__: object) -> None:
        raise StoreUnavailable("read-only")

    with monkeypatch.context() as outage:
        outage.setattr(port_of(world.store, method), method, down)
        with pytest.raises(StoreUnavailable):
            world.call("get_history_statuses_to_sync", world.poll(fence))
    assert shown(world) == before
    assert sentence(world) == (
        "the poll that was due 3 min ago is missing: no worker takes it, or it hangs"
    )  # fmt: skip
    world.round(fence)
    [wrong] = world.store.corrections.list_corrections()
    assert (wrong.kind, wrong.lag_ms) == ("killed", 260_000)


def test_a_poll_that_fails_after_one_whose_answer_was_lost_takes_nothing_back(world: World) -> None:
    fence = executing(world)
    world.cluster.end_now(1)
    world.forward(70)
    with pytest.raises(Crash):
        world.call("get_history_statuses_to_sync", world.poll(fence), Breaker(at=3, after=True))
    polled = shown(world)
    assert polled["verified_at"] == world.clock(), "that poll was complete"
    assert polled["tasks"] == ["RUNNING", "RUNNING"], (
        "its findings are not committed as statuses yet"
    )
    world.forward(30)
    world.cluster.fail_with(ClusterUnavailable("503"), "poll")
    with pytest.raises(ClusterUnavailable):
        world.call("get_history_statuses_to_sync", world.poll(fence))
    assert shown(world) == polled
    world.cluster.fail_with(None)
    world.forward(30)
    world.round(fence)
    [wrong] = world.store.corrections.list_corrections()
    assert wrong.lag_ms == 130_000


class Recorder:
    """A meter that remembers what was added and recorded."""

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
    new_world: Callable[[], World], monkeypatch: pytest.MonkeyPatch
) -> tuple[World, Recorder]:
    """A world whose store tells what it has committed, as a worker's does, and whose activities are
    metered.
    """
    world, recorder = new_world(), Recorder()
    world.store.close()
    world.store = open_store(world.url, clock=world.clock, told=meters.committed)

    def call(name: str, argument: Any, breaker: Breaker | None = None) -> Any:
        environment = ActivityEnvironment()
        environment.metric_meter = recorder  # type: ignore[assignment]
        return environment.run(world.activities(breaker)[name], argument)

    monkeypatch.setattr(world, "call", call)
    return world, recorder


def lags(recorder: Recorder) -> list[tuple[str, float]]:
    return [
        (labels, seconds)
        for name, labels, seconds in recorder.measured
        if name == "lifecycle_truth_lag"
    ]


def test_lag_is_measured_to_the_commit_and_once(counted: tuple[World, Recorder]) -> None:
    world, recorder = counted
    fence = executing(world)
    assert lags(recorder) == [("look", 0.5), ("look", 0.5)], "the start of both tasks"
    world.cluster.end_now(1)
    world.cluster.end_now(1, 1, end=FINISHED)
    world.forward(40)
    order = replace(world.poll(fence), source="wake")
    world.call("get_history_statuses_to_sync", order)
    world.forward(2)
    world.call("get_history_statuses_to_sync", order)
    assert len(lags(recorder)) == 2, "found is not committed"
    assert recorder.counted["lifecycle_corrections", "killed"] == 0
    world.call("get_bulk_task_history_data", fence)
    world.call("reconcile_tasks", fence)
    world.forward(3)
    with pytest.raises(Crash):
        world.call("sync_statuses", Sync(fence, "wake"), Breaker(at=0))
    assert len(lags(recorder)) == 2
    for _ in range(3):
        world.call("sync_statuses", Sync(fence, "wake"))
    assert lags(recorder)[2:] == [("wake", 45.0), ("wake", 45.0)]
    assert recorder.counted["lifecycle_corrections", "killed"] == 1
    assert recorder.counted["lifecycle_tasks_changed", "SUCCEEDED"] == 1
    assert recorder.counted["lifecycle_tasks_changed", "FAILED"] == 1
    assert recorder.counted["lifecycle_tasks_changed", "PENDING"] == 2


def test_every_source_is_measured_under_its_name(counted: tuple[World, Recorder]) -> None:
    world, recorder = counted
    world.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=None, heeds_stop_after=0.0 if index == 0 else None
    )
    fence = world.started(2)
    world.call("record_stop", world.stop(fence))
    world.call("k8_stop_task", fence)
    world.forward(4)
    world.call("get_history_statuses_to_sync", replace(world.poll(fence), source="stop"))
    world.call("sync_statuses", Sync(fence, "stop"))
    world.cluster.end_now(1, 1)
    world.forward(30)
    resumed = world.resumed()
    order = replace(world.poll(resumed), source="resume", resumed=True)
    world.call("get_history_statuses_to_sync", order)
    world.call("sync_statuses", Sync(resumed, "resume"))
    assert lags(recorder)[2:] == [("stop", 4.0), ("resume", 30.0)]
    assert world.row().next_look_at == world.clock() + timedelta(seconds=120)


@pytest.mark.parametrize(("back_after", "kinds"), [(32, {}), (70, {"late": 1})])
def test_an_outage_is_lag_or_a_correction_and_the_sentence_says_which(
    world: World, back_after: float, kinds: dict[str, int]
) -> None:
    """A task ends in an outage.

    Back before the next poll is due: lag. Later than that: ``late``, with all of it.
    """
    world.cluster.behaviour = Behaviour(executes=None)
    fence = world.started()
    world.round(fence)
    row = world.row()
    assert row.next_look_at is not None
    world.forward((row.next_look_at - world.clock()).total_seconds() - 60)
    ended = world.clock()
    world.cluster.end_now(1, end=FINISHED)
    world.forward(back_after)
    world.round(fence)
    untrue_ms = round((world.clock() - ended).total_seconds() * 1000)
    told = world.store.runs.transitions(1)[-1]
    assert (told.to_status, told.lag_ms) == ("SUCCEEDED", untrue_ms)
    summary = world.store.corrections.correction_summary(ended)
    assert {total.kind: total.count for total in summary.kinds} == kinds
    assert summary.worst_ms == (untrue_ms if kinds else None), (
        "it counts from the end, not from the poll that was due"
    )
    words = wrong_words(summary.worst_ms, kinds, "this week")
    assert ("70 s" in words) is bool(kinds)
    assert "a change that the next planned poll finds is no correction" in words
    assert "untrue" not in words, "without a correction nobody may say that all was true"
