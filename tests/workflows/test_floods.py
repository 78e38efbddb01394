"""Thousands of unknown signals: stops are still accepted, and every workflow leaves long before a
limit of the server, whatever it waits for, and continues its work in its next execution.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.service import RPCError

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.audit import AuditReport
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.interceptors import LINES_MAX
from crawler_lifecycle.workflows import calls
from crawler_lifecycle.workflows.exports import ExportReport
from crawler_lifecycle.workflows.state import Inbox, ReceivedSignal
from tests.support.fakes.cluster import Behaviour
from tests.support.testbed import WorkflowHarness

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

#: Events after which a history is full in these tests, and more signals than two such histories can
#: contain.
MOST, SIGNALS = 90, 200
#: The number that the server accepts in one execution, and more.
REAL = 12_000

Handle = WorkflowHandle[Any, Any]
BOOKS = {"crawler": "books", "poll_minutes": [0.02]}


@pytest.fixture(autouse=True)
def short(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set how many signals are sent; histories are short except in the test with as many as a
    server accepts.
    """
    if request.node.get_closest_marker("slow") is not None:
        return REAL
    monkeypatch.setattr(calls, "HISTORY_MAX", MOST // 2)
    monkeypatch.setattr(calls, "HISTORY_MOST", MOST)
    return SIGNALS


async def flood(handle: Handle, count: int) -> None:
    """Send this number of signals, each with its own name, to the present execution."""
    numbers = iter(range(count))

    async def send() -> None:
        for number in numbers:
            while True:
                try:
                    await handle.signal(f"noise-{number}", {"n": number})
                    break
                except RPCError as error:
                    # Otherwise: as many as one execution may have, in a burst.
                    if "signal" not in str(error):
                        raise
                    await asyncio.sleep(0.2)

    await asyncio.gather(*(send() for _ in range(20)))


@contextmanager
def held(owner: Any, method: str) -> Iterator[threading.Event]:
    """While this is open, a method of the outside hangs; the event is set when a call is in it."""
    begun, over, really = threading.Event(), threading.Event(), getattr(owner, method)

    def hang(*args: Any, **more: Any) -> Any:
        begun.set()
        over.wait(300)
        return really(*args, **more)

    setattr(owner, method, hang)
    try:
        yield begun
    finally:
        over.set()
        delattr(owner, method)


async def left_in_time(testbed: WorkflowHarness, handle: Handle) -> None:
    """Check that it continued as new as soon as the flood permitted it: the server refuses that
    while signals arrive.
    """
    chain = await testbed.chain(handle)
    assert len(chain) > 1
    for history in chain[:-1]:
        assert history.events[-1].HasField("workflow_execution_continued_as_new_event_attributes")


@pytest.mark.parametrize(
    "where", ["running", pytest.param("as many as a server takes", marks=pytest.mark.slow)]
)
async def test_a_flooded_run_is_stopped_as_any_other(
    short: int, real_testbed: WorkflowHarness, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    testbed = real_testbed
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start(BOOKS)
    beside = await testbed.start(BOOKS)
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    with caplog.at_level(logging.INFO, "temporalio.workflow"):
        await flood(handle, short)
    lines = [r for r in caplog.records if r.getMessage().startswith("signal noise-")]
    last = [r for r in lines if "further lines of this step are not logged" in r.getMessage()]
    assert len(lines) <= (len(last) + short // LINES_MAX) * LINES_MAX
    await handle.signal("stop", {"requested_by": "ada"})
    result = await testbed.ended(handle)
    assert (result.status, result.outcome) == ("FAILED", "cancelled")
    assert [c["requested_by"] for c in testbed.store.runs.cancellations(result.run_id)] == ["ada"]
    notes = (await testbed.snapshot_where(handle, lambda s: True)).notes
    assert notes[0].startswith("unknown signal 'noise-")
    assert notes[1:] == [f"{short} unknown signals ignored in all"]
    await left_in_time(testbed, handle)
    other = await testbed.snapshot_where(beside, lambda s: s.polls >= 1)
    assert (testbed.store.runs.get_run(other.run_id).status, other.stop) == ("PROCESSING", None)
    await beside.signal("force_stop")
    assert (await testbed.ended(beside)).outcome == "cancelled"


async def test_one_that_records_itself_is_left_and_begins_again(
    short: int, real_testbed: WorkflowHarness
) -> None:
    """The database is down, so the run has no number yet.

    The stop that arrived is in its row once it has one.
    """
    testbed = real_testbed
    testbed.cluster.behaviour = Behaviour(executes=None)
    with held(testbed.store.initiation, "create_run") as begun:
        handle = await testbed.start(
            {"crawler": "books", "requested_by": "bob", "poll_minutes": [0.02]}
        )
        await testbed.until(begun.is_set)
        await handle.signal("stop", {"requested_by": "ada"})
        await flood(handle, short)
    result = await testbed.ended(handle)
    assert result.outcome == "cancelled"
    request = testbed.store.runs.request_of(result.run_id)
    assert (request.requested_by, len(testbed.store.runs.list_runs())) == ("bob", 1)
    assert [c["requested_by"] for c in testbed.store.runs.cancellations(result.run_id)] == ["ada"]
    await left_in_time(testbed, handle)


async def test_a_verdict_under_way_is_left_and_a_stop_is_on_record_before_it(
    short: int, real_testbed: WorkflowHarness
) -> None:
    testbed = real_testbed
    with held(testbed.store.completion, "end_run") as begun:
        handle = await testbed.start(BOOKS)
        await testbed.until(begun.is_set)
        await flood(handle, short)
        await handle.signal("stop", {"requested_by": "ada"})
        await testbed.until(lambda: testbed.store.runs.get_run(1).stop)
    result = await testbed.ended(handle)
    assert result.outcome == "finished", "there was nothing left to stop"
    assert [c["requested_by"] for c in testbed.store.runs.cancellations(1)] == ["ada"]
    assert [e.type for e in testbed.outside.pushed if e.type == "run.stopped"] == ["run.stopped"]
    await left_in_time(testbed, handle)


async def test_an_archive_under_way_is_left_and_made_by_the_next_execution(
    short: int, real_testbed: WorkflowHarness
) -> None:
    """What was reported before it is not repeated, and a stop after the verdict is reported as
    such.
    """
    testbed = real_testbed
    testbed.cluster.folders[1, 0] = testbed.folder
    with held(testbed.outside, "store") as begun:
        handle = await testbed.start(BOOKS)
        await testbed.until(begun.is_set)
        await flood(handle, short)
        await handle.signal("stop", {"requested_by": "ada"})
        snapshot = await testbed.snapshot_where(
            handle, lambda s: any("after the verdict" in note for note in s.notes)
        )
        assert (snapshot.outcome, snapshot.stop) == ("finished", None)
    result = await testbed.ended(handle)
    assert (result.outcome, result.export is not None) == ("finished", True)
    assert testbed.store.runs.cancellations(1) == []
    assert [e.type for e in testbed.outside.sent] == ["run.ended"]
    await left_in_time(testbed, handle)


AGAIN = "send the update again with request_id 'p1'"


async def sent_again(handle: Handle, page: dict[str, Any]) -> Any:
    """Send it again as a caller would: before the end of the flood, it is refused once more."""
    while True:
        try:
            return await handle.execute_update("add_tasks", page)
        except WorkflowUpdateFailedError as error:
            if AGAIN not in str(error.cause):
                raise
        await asyncio.sleep(0.2)


async def test_an_update_that_hangs_is_refused_with_its_fix(
    short: int, real_testbed: WorkflowHarness
) -> None:
    testbed = real_testbed
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start(BOOKS)
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    with held(testbed.store.additions, "add_tasks") as begun:
        page = {"tasks": [{}], "request_id": "p1"}
        update = asyncio.create_task(handle.execute_update("add_tasks", page))
        await testbed.until(begun.is_set)
        await flood(handle, short)
        error = (await asyncio.gather(update, return_exceptions=True))[0]
    assert AGAIN in str(getattr(error, "cause", error))
    added = await sent_again(handle, page)
    assert len(added["tasks"]) == 1
    await testbed.until(lambda: set(testbed.tasks(1)) == {0, 1})
    await left_in_time(testbed, handle)
    await handle.signal("stop")
    assert (await testbed.ended(handle)).tasks == {"CANCELLED": 2}


async def _audit(testbed: WorkflowHarness) -> Handle:
    handle: Handle = await testbed.client.start_workflow(
        names.AUDIT_WORKFLOW,
        id="testbed/flooded",
        task_queue=names.QUEUE_AUDIT,
        result_type=AuditReport,
    )
    return handle


async def _export(testbed: WorkflowHarness) -> Handle:
    row = testbed.store.runs.get_run(1)
    workflow_id = await Workflows(testbed.client).export_again(
        Fence(1, 1, row.owner_run_id, row.run_uid)
    )
    first = (await testbed.client.get_workflow_handle(workflow_id).describe()).run_id
    return testbed.client.get_workflow_handle(
        workflow_id, first_execution_run_id=first, result_type=ExportReport
    )


@pytest.mark.parametrize("kind", [_audit, _export])
async def test_workflows_without_signals_drop_them(
    short: int,
    real_testbed: WorkflowHarness,
    kind: Callable[[WorkflowHarness], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    testbed = real_testbed
    owner = {_audit: (testbed.cluster, "inventory"), _export: (testbed.outside, "store")}[kind]
    testbed.cluster.folders[1, 0] = testbed.folder
    await testbed.run(BOOKS)
    with held(*owner) as begun:
        handle = await kind(testbed)
        testbed.handles.append(handle)
        await testbed.until(begun.is_set)
        with caplog.at_level(logging.INFO, "temporalio.workflow"):
            await flood(handle, short)
    report = await handle.result()
    if isinstance(report, AuditReport):
        assert (report.troubles, sorted(report.looked)) == (
            [], sorted(["cluster_tasks", "ended_runs", "open_graphs", "open_managers", "open_runs", "open_workflows",
                        "schedules", "due_times", "webhooks"]),
        )  # fmt: skip
    else:
        assert (report.failed, report.export is not None) == ([], True)
    # The server refuses a continue-as-new if signals arrived meanwhile; that workflow task is
    # repeated, and logs this again.
    dropped = {r.getMessage() for r in caplog.records if "has no signals" in r.getMessage()}
    chain = await testbed.chain(handle)
    assert 1 <= len(dropped) <= len(chain), "once in each execution, with its first signal"
    await left_in_time(testbed, handle)


async def test_a_flood_that_one_step_takes_in_costs_it_little(
    real_testbed_without_workers: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All signals arrived while no worker was running.

    The stop among them is carried out, and their number is reported.
    """
    testbed, handled = real_testbed_without_workers, list[str]()
    take = Inbox.signal

    def note(inbox: Inbox, signal: ReceivedSignal) -> None:
        handled.append(signal.name)
        take(inbox, signal)

    monkeypatch.setattr(Inbox, "signal", note)
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start(BOOKS)
    await asyncio.gather(*(handle.signal(f"noise-{n}", {"n": n}) for n in range(SIGNALS)))
    await asyncio.gather(*(handle.signal("poll_now") for _ in range(SIGNALS)))
    await handle.signal("stop", 17)
    async with testbed.working():
        result = await testbed.ended(handle)
        assert result.outcome == "cancelled"
        notes = (await testbed.snapshot_where(handle, lambda s: True)).notes
    assert f"{SIGNALS} unknown signals ignored in all" in notes
    first = handled[: handled.index("stop") + 2]
    assert sorted(first) == sorted(
        ["poll_now", "stop", "", next(name for name in first if name.startswith("noise"))]
    )
