"""Removing the files of a run: who decides, and that exports and resumes come before or after it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from crawler_lifecycle.domain.errors import ClusterUnavailable, Fenced, RunNotFound
from crawler_lifecycle.domain.names import PROPERTY_FILES_REMOVED
from crawler_lifecycle.domain.retention import RetentionState
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import Clock, Harness

DAY = 86_400.0
RESULT = ExportResult("s3://archive/1/1/supporting-files.zip", 100, 2, "0" * 64, None)


def ended(
    harness: Harness,
    *,
    exported: str | None = "exported",
    days: float = 20,
    note: str | None = None,
) -> Fence:
    """A run that ended, and was exported, this number of days ago."""
    fence = harness.executing(f"r{harness.clock.now.timestamp()}")
    harness.finish(fence, failed=[0])
    if exported is not None:
        harness.store.exports.record_export(
            fence, exported, RESULT if exported == "exported" else None, note
        )
    harness.clock.forward(days * DAY)
    return fence


def give_up(
    harness: Harness, fence: Fence, calls: list[int] | None = None, **options: bool
) -> RetentionState:
    before = harness.clock.now - timedelta(days=14)
    stand, *_ = harness.store.file_retention.give_up_files(
        fence.run_id, before, lambda: (calls or []).append(1), **options
    )
    return stand


@pytest.fixture
def harness(store: Store, clock: Clock) -> Harness:
    return Harness(store, clock)


def marks(harness: Harness, fence: Fence) -> list[tuple[object, str]]:
    found = harness.store.runs.properties(fence.run_id)
    return [
        (one["attempt"], str(one["value"]).split()[0])
        for one in found
        if one["name"] == PROPERTY_FILES_REMOVED
    ]


@pytest.mark.parametrize("exported", ["exported", "empty"])
def test_an_old_run_is_given_up_once_and_then_gone(harness: Harness, exported: str) -> None:
    fence = ended(harness, exported=exported)
    (kept,) = harness.store.file_retention.kept_runs([fence.run_id, 10**9])
    assert (kept.crawler, kept.status, kept.export, kept.given_up) == (
        "services",
        "FAILED",
        exported,
        False,
    )
    assert [give_up(harness, fence) for _ in range(2)] == [
        RetentionState.OLD,
        RetentionState.OLD,
    ], "what was begun is ended by the next"
    assert marks(harness, fence) == [(1, "begun")]
    harness.store.file_retention.note_files_removed(fence.run_id, 1)
    assert marks(harness, fence) == [(1, "done")]
    assert give_up(harness, fence) is RetentionState.REMOVED
    assert harness.store.exports.begin_export(fence) == 1


@pytest.mark.parametrize(
    ("options", "stand"),
    [
        ({"days": 13}, RetentionState.RECENT),
        ({"exported": None}, RetentionState.NOT_EXPORTED),
        ({"exported": "failed", "note": "no bucket"}, RetentionState.NOT_EXPORTED),
        ({"note": "3 files were left out"}, RetentionState.INCOMPLETE),
    ],
)
def test_what_is_not_old_is_left_alone(
    harness: Harness, options: dict[str, object], stand: RetentionState
) -> None:
    fence = ended(harness, **options)  # type: ignore[arg-type]
    calls: list[int] = [0]
    assert give_up(harness, fence, calls) is stand
    assert calls == [0]
    assert marks(harness, fence) == []
    if stand is RetentionState.INCOMPLETE:
        assert give_up(harness, fence, calls, incomplete=True) is RetentionState.OLD
        assert calls == [0, 1]


def test_a_live_run_is_left_alone(harness: Harness) -> None:
    fence = harness.executing()
    harness.clock.forward(100 * DAY)
    assert give_up(harness, fence) is RetentionState.LIVE
    with pytest.raises(RunNotFound):
        give_up(harness, Fence(10**9, 1, "nobody", "-"))


def test_a_resumed_run_is_live_again_and_old_again_later(harness: Harness) -> None:
    first = ended(harness)
    assert give_up(harness, first) is RetentionState.OLD
    harness.store.file_retention.note_files_removed(first.run_id, 1)
    second = harness.resume(first)
    assert give_up(harness, second) is RetentionState.LIVE
    harness.begin(second)
    harness.finish(second)
    assert harness.store.exports.begin_export(second) == 1, "what the first attempt left is gone"
    harness.store.exports.record_export(second, "exported", RESULT, None)
    harness.clock.forward(20 * DAY)
    assert give_up(harness, second) is RetentionState.OLD
    assert marks(harness, second) == [(1, "done"), (2, "begun")]


def test_an_export_that_began_keeps_the_files(harness: Harness) -> None:
    fence = ended(harness)
    assert harness.store.exports.begin_export(fence) == 0
    assert give_up(harness, fence) is RetentionState.RECENT
    harness.clock.forward(20 * DAY)
    assert give_up(harness, fence) is RetentionState.OLD
    with pytest.raises(Fenced):
        harness.store.exports.begin_export(Fence(fence.run_id, 1, "somebody-else", fence.run_uid))


def test_what_cannot_be_put_aside_is_not_given_up(harness: Harness) -> None:
    fence = ended(harness)

    def refuse() -> None:
        raise ClusterUnavailable("read-only")

    with pytest.raises(ClusterUnavailable):
        harness.store.file_retention.give_up_files(
            fence.run_id, harness.clock.now - timedelta(days=14), refuse
        )
    assert marks(harness, fence) == []


def test_a_resume_waits_until_the_state_is_out_of_its_way(harness: Harness) -> None:
    """Otherwise its crawler would begin with a state that is being removed."""
    fence, order, inside = ended(harness), list[str](), threading.Event()

    def put_aside() -> None:
        inside.set()
        resuming.join(0.5)
        order.append("put aside")

    def resume() -> None:
        inside.wait(60)
        harness.resume(fence)
        order.append("resumed")

    resuming = threading.Thread(target=resume)
    resuming.start()
    harness.store.file_retention.give_up_files(
        fence.run_id, harness.clock.now - timedelta(days=14), put_aside
    )
    resuming.join(60)
    assert order == ["put aside", "resumed"]
