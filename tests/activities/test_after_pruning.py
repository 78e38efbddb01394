"""A run that ``crawlctl db prune`` was at: every activity that may still come does what it always
did.
"""

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
from tests.activities.world import World

DAY = 86_400.0


def prune(world: World) -> int:
    """Everything that may go after 90 days; how many rows went."""
    before, gone = world.clock() - timedelta(days=90), 0
    with closing(open_pruner(world.url, clock=world.clock)) as pruner:
        for table in pruner.tables:
            gone += sum(pruner.remove(table, pruner.poll(table, before).goes, before).values())
    return gone


@pytest.fixture
def fence(world: World) -> Fence:
    """A run with two tasks that ended and was delivered and exported, a hundred days ago."""
    fence = world.judged(2)
    world.files(0, 1)
    world.call("signal_pusher_changed", fence)
    world.call("initiate_export_signal", fence)
    world.call("export_supporting_files", fence)
    world.forward(100 * DAY)
    assert prune(world) > 3
    assert EVENT_RUN_CHANGED not in {event.type for event in world.store.events.events_after(0)}
    return fence


def test_its_verdict_is_the_one_that_it_had(world: World, fence: Fence) -> None:
    told = len(world.store.runs.transitions(1))
    again = world.call("update_run_status", fence)
    assert (again.status, again.tasks) == (RunStatus.COMPLETED, {"SUCCEEDED": 2})
    assert len(world.store.runs.transitions(1)) == told
    world.call("signal_pusher_changed", fence)


def test_it_is_delivered_and_exported_again_under_the_same_names(
    world: World, fence: Fence
) -> None:
    sent, stored = world.sink.sent[-1], dict(world.archive.stored)
    assert world.call("initiate_export_signal", fence) == sent.seq
    assert world.sink.sent[-2:] == [sent, sent]
    assert world.call("resend_pushes", fence) == 0
    assert world.call("export_supporting_files", fence) is not None
    assert world.archive.stored.keys() == stored.keys()


@pytest.mark.parametrize("what", ["audit_cluster", "audit_runs", "audit_workflows", "audit_ended"])
def test_an_audit_finds_nothing_wrong_with_it(world: World, fence: Fence, what: str) -> None:
    assert world.audited(what).findings == []
    assert world.row().status is RunStatus.COMPLETED


def test_a_correction_is_still_written(world: World, fence: Fence) -> None:
    found = Correction(
        CorrectionKind.LATE_EVIDENCE, "SUCCEEDED", "FAILED", world.tasks()[0].task_id
    )
    assert len(world.store.corrections.record_corrections(1, [found])) == 1
    assert [row.kind for row in world.store.corrections.list_corrections(1)] == ["late_evidence"]


def test_it_is_resumed_to_its_end_and_pruned_again(world: World, fence: Fence) -> None:
    second = world.resumed(rerun=True)
    world.call("requeue_ended_tasks", Requeue(second, True))
    world.call("run_onetime_crawler", Deploy(second, None))
    world.forward(0.5)
    world.call("get_main_job_status", MainJob(second, 6))
    world.call(
        "update_run_started", StartReport(second, world.now, world.now + timedelta(minutes=1))
    )
    assert prune(world) == 0, "it is live"
    world.forward(30)
    world.round(second)
    assert world.call("update_run_status", second).status is RunStatus.COMPLETED
    assert (world.row().attempt, world.statuses()) == (2, ["SUCCEEDED", "SUCCEEDED"])
    world.call("initiate_export_signal", second)
    world.call("initiate_export_signal", fence)
    assert [event.type for event in world.sink.sent] == ["run.ended"] * 3
    assert prune(world) == 0, "it ended just now"
    world.forward(100 * DAY)
    assert prune(world) > 3
    marks = [row["attempt"] for row in world.store.runs.properties(1) if row["name"] == "pruned"]
    assert marks == [1, 2]
