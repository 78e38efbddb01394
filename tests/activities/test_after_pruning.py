"""After ``crawlctl db prune``, every activity that may still be called on a run works as before."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from crawler_lifecycle.activities.deployment import Deploy, MainJob, Requeue, StartReport
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.names import EVENT_RUN_CHANGED
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.ports.polls import Correction
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.retention.pruning import open_pruner
from tests.activities.harness import Harness

DAY = 86_400.0


def prune(harness: Harness) -> int:
    """Remove everything that may be removed after 90 days. Return the number of rows."""
    before, gone = harness.clock() - timedelta(days=90), 0
    with closing(open_pruner(harness.url, clock=harness.clock)) as pruner:
        for table in pruner.tables:
            gone += sum(pruner.remove(table, pruner.poll(table, before).goes, before).values())
    return gone


@pytest.fixture
def fence(harness: Harness) -> Fence:
    """A run with two tasks that ended, and was delivered and exported, a hundred days ago."""
    fence = harness.judged(2)
    harness.files(0, 1)
    harness.call("signal_pusher_changed", fence)
    harness.call("initiate_export_signal", fence)
    harness.call("export_supporting_files", fence)
    harness.forward(100 * DAY)
    assert prune(harness) > 3
    assert EVENT_RUN_CHANGED not in {event.type for event in harness.store.events.events_after(0)}
    return fence


def test_its_verdict_is_the_one_that_it_had(harness: Harness, fence: Fence) -> None:
    told = len(harness.store.runs.transitions(1))
    again = harness.call("update_run_status", fence)
    assert (again.status, again.tasks) == (RunStatus.COMPLETED, {"SUCCEEDED": 2})
    assert len(harness.store.runs.transitions(1)) == told
    harness.call("signal_pusher_changed", fence)


def test_it_is_delivered_and_exported_again_under_the_same_names(
    harness: Harness, fence: Fence
) -> None:
    sent, stored = harness.sink.sent[-1], dict(harness.archive.stored)
    assert harness.call("initiate_export_signal", fence) == sent.seq
    assert harness.sink.sent[-2:] == [sent, sent]
    assert harness.call("resend_pushes", fence) == 0
    assert harness.call("export_supporting_files", fence) is not None
    assert harness.archive.stored.keys() == stored.keys()


@pytest.mark.parametrize("what", ["audit_cluster", "audit_runs", "audit_workflows", "audit_ended"])
def test_an_audit_finds_nothing_wrong_with_it(harness: Harness, fence: Fence, what: str) -> None:
    assert harness.audited(what).findings == []
    assert harness.row().status is RunStatus.COMPLETED


def test_a_correction_is_still_written(harness: Harness, fence: Fence) -> None:
    found = Correction(
        CorrectionKind.LATE_EVIDENCE, "SUCCEEDED", "FAILED", harness.tasks()[0].task_id
    )
    assert len(harness.store.corrections.record_corrections(1, [found])) == 1
    assert [row.kind for row in harness.store.corrections.list_corrections(1)] == ["late_evidence"]


def test_it_is_resumed_to_its_end_and_pruned_again(harness: Harness, fence: Fence) -> None:
    second = harness.resumed(rerun=True)
    harness.call("requeue_ended_tasks", Requeue(second, True))
    harness.call("run_onetime_crawler", Deploy(second, None))
    harness.forward(0.5)
    harness.call("get_main_job_status", MainJob(second, 6))
    harness.call(
        "update_run_started", StartReport(second, harness.now, harness.now + timedelta(minutes=1))
    )
    assert prune(harness) == 0, "it is live"
    harness.forward(30)
    harness.round(second)
    assert harness.call("update_run_status", second).status is RunStatus.COMPLETED
    assert (harness.row().attempt, harness.statuses()) == (2, ["SUCCEEDED", "SUCCEEDED"])
    harness.call("initiate_export_signal", second)
    harness.call("initiate_export_signal", fence)
    assert [event.type for event in harness.sink.sent] == ["run.ended"] * 3
    assert prune(harness) == 0, "it ended just now"
    harness.forward(100 * DAY)
    assert prune(harness) > 3
    marks = [row["attempt"] for row in harness.store.runs.properties(1) if row["name"] == "pruned"]
    assert marks == [1, 2]
