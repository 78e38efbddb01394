"""Repeating the deliveries of an ended run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.run import RunSnapshot
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.workflows import policies
from crawler_lifecycle.workflows.exports import ExportReport
from tests.support.managing import manager_testbed
from tests.support.testbed import WorkflowHarness

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def again(testbed: WorkflowHarness, fence: Fence, **what: bool) -> ExportReport:
    workflow_id = await Workflows(testbed.client).export_again(fence, **what)
    first = (await testbed.client.get_workflow_handle(workflow_id).describe()).run_id
    handle: Any = testbed.client.get_workflow_handle(
        workflow_id, run_id=first, first_execution_run_id=first, result_type=ExportReport
    )
    testbed.handles.append(handle)
    report: ExportReport = await handle.result()
    return report


def fence_of(testbed: WorkflowHarness, run_id: int, attempt: int) -> Fence:
    row = testbed.store.runs.get_run(run_id)
    return Fence(run_id, attempt, row.owner_run_id, row.run_uid)


@pytest.fixture
def hours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set how long it is tried: a day in production.

    An hour is enough here, unless a test needs all of it.
    """
    most: int = getattr(request, "param", 1)
    for name in ("initiate_export_signal", "export_supporting_files"):
        assert policies.POLICIES[name].total_s == 24 * 3600
        short = dataclasses.replace(policies.POLICIES[name], total_s=3600.0 * most)
        monkeypatch.setitem(policies.POLICIES, name, short)
    return most


@pytest.mark.parametrize("hours", [1, pytest.param(24, marks=pytest.mark.slow)], indirect=True)
async def test_an_event_that_was_given_up_is_sent_when_somebody_asks(
    testbed: WorkflowHarness, hours: int
) -> None:
    """The bus refuses everything; the verdict stands, and later the same event is delivered."""
    testbed.outside.fail["send"] = NotDelivered("bus closed")
    handle = await testbed.start({"crawler": "books"})
    result = await handle.result()
    assert (result.status, result.outcome) == ("COMPLETED", "finished")
    (failed,) = [d for d in testbed.store.events.deliveries(1) if d["type"] == "run.ended"]
    assert (failed["status"], failed["error"]) == ("failed", "bus closed")
    assert failed["tries"] > (50 if hours == 24 else 8)
    snapshot = await handle.query("status", result_type=RunSnapshot)
    assert "initiate_export_signal gave up: bus closed" in snapshot.notes

    testbed.outside.fail = {}
    report = await again(testbed, fence_of(testbed, 1, 1))
    assert (report.run_id, report.attempt, report.failed) == (1, 1, [])
    (sent,) = testbed.outside.sent
    assert (sent.type, sent.seq) == ("run.ended", failed["seq"]), "the same event"
    assert [
        d["status"] for d in testbed.store.events.deliveries(1) if d["type"] == "run.ended"
    ] == ["delivered"]


@pytest.mark.troubles
async def test_the_end_of_a_manager_waits_for_no_bus_and_reaches_it(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.outside.fail["send"] = NotDelivered("bus closed")
    m = manager_testbed(real_testbed, source=[])
    async with m.user_code():
        result = await real_testbed.ended(await m.start())
    assert (result.status, result.outcome) == ("COMPLETED", "finished")
    row = m.row()
    key = names.ended_key("manager", row.manager_id, row.manager_uid, row.attempt)
    real_testbed.outside.fail = {}
    handle: Any = real_testbed.client.get_workflow_handle(names.event_workflow_id(key))
    await handle.result()
    (event,) = real_testbed.outside.sent
    assert (event.type, event.key, event.body["outcome"]) == ("manager.ended", key, "finished")


@pytest.mark.troubles
async def test_the_end_of_nothing_is_delivered_to_nobody(real_testbed: WorkflowHarness) -> None:
    await Workflows(real_testbed.client).deliver_event("managers/7-uid/1/manager.ended")
    handle: Any = real_testbed.client.get_workflow_handle(
        names.event_workflow_id("managers/7-uid/1/manager.ended")
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert "no recorded event has the id" in str(failed.value.cause)
    assert real_testbed.outside.sent == []


@pytest.mark.troubles
@pytest.mark.usefixtures("hours")
async def test_files_that_could_not_be_stored_are_stored_when_somebody_asks(
    testbed: WorkflowHarness,
) -> None:
    testbed.outside.fail["store"] = NotDelivered("disk full")
    testbed.cluster.folders[1, 0] = testbed.folder
    handle = await testbed.start({"crawler": "books"})
    result = await handle.result()
    assert (result.status, result.export) == ("COMPLETED", None)
    assert any(
        "gave up" in note for note in (await handle.query("status", result_type=RunSnapshot)).notes
    )
    assert [(e["status"], e["error"]) for e in testbed.store.exports.list_exports(1)] == [
        ("failed", "disk full")
    ]

    testbed.outside.fail = {}
    report = await again(testbed, fence_of(testbed, 1, 1))
    assert report.export is not None
    assert [e["status"] for e in testbed.store.exports.list_exports(1)] == ["exported"]


@pytest.mark.troubles
async def test_only_what_was_asked_for_is_sent(testbed: WorkflowHarness) -> None:
    testbed.cluster.folders[1, 0] = testbed.folder
    await testbed.run({"crawler": "books"})
    assert (len(testbed.outside.sent), len(testbed.outside.stored)) == (1, 1)
    await again(testbed, fence_of(testbed, 1, 1), files=False)
    assert (len(testbed.outside.sent), len(testbed.outside.stored)) == (2, 1)
    await again(testbed, fence_of(testbed, 1, 1), event=False)
    assert (len(testbed.outside.sent), len(testbed.outside.stored)) == (2, 2)
    assert len(set(testbed.outside.stored)) == 1, "under the same key"


@pytest.mark.troubles
async def test_a_push_that_was_never_taken_is_pushed_again(testbed: WorkflowHarness) -> None:
    testbed.outside.fail["push"] = NotDelivered("refused")
    await testbed.run({"crawler": "books"})
    assert {
        d["status"] for d in testbed.store.events.deliveries(1) if d["type"] == "run.started"
    } == {"failed"}
    testbed.outside.fail = {}
    report = await again(testbed, fence_of(testbed, 1, 1), files=False)
    assert report.pushes == 1
    assert [e.type for e in testbed.outside.pushed] == ["run.started"]


@pytest.mark.troubles
@pytest.mark.usefixtures("hours")
async def test_giving_up_again_is_on_record_and_no_failure(testbed: WorkflowHarness) -> None:
    await testbed.run({"crawler": "books"})
    testbed.outside.fail["send"] = NotDelivered("still closed")
    report = await again(testbed, fence_of(testbed, 1, 1), files=False)
    assert len(report.failed) == 1
    assert "still closed" in report.failed[0]
    assert [
        d["status"] for d in testbed.store.events.deliveries(1) if d["type"] == "run.ended"
    ] == ["delivered"]
