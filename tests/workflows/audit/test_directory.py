"""The workflow directory over a real server, and the schedule that workers maintain."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.client import Client, ScheduleOverlapPolicy
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.audit import WorkflowState
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.run import RunRequest, StopRequest
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.temporal.audit_schedule import keep_audit_schedule
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.directory import TemporalDirectory
from tests.support.testbed import WorkflowHarness

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def described(client: Client) -> Any:
    return await client.get_schedule_handle(names.AUDIT_SCHEDULE).describe()


@pytest.mark.troubles
async def test_the_schedule_is_what_the_settings_say(unhurried: WorkflowEnvironment) -> None:
    client = unhurried.client
    await asyncio.gather(*(keep_audit_schedule(client, 900, repair=True) for _ in range(4)))
    found = (await described(client)).schedule
    assert [interval.every.total_seconds() for interval in found.spec.intervals] == [900]
    assert found.policy.overlap is ScheduleOverlapPolicy.SKIP
    assert found.policy.catchup_window.total_seconds() == 60
    assert (found.action.workflow, found.action.task_queue) == (
        "CrawlAuditWorkflow",
        "crawler-lifecycle-audit",
    )
    await client.get_schedule_handle(names.AUDIT_SCHEDULE).pause(note="a migration")
    await keep_audit_schedule(client, 60, repair=False)
    found = (await described(client)).schedule
    assert [interval.every.total_seconds() for interval in found.spec.intervals] == [60]
    assert (found.state.paused, found.state.note) == (True, "a migration"), (
        "whoever paused it finds it paused"
    )
    await keep_audit_schedule(client, 900, repair=True, only_missing=True)
    await keep_audit_schedule(client, 0, repair=True, only_missing=True)
    found = (await described(client)).schedule
    assert [interval.every.total_seconds() for interval in found.spec.intervals] == [60], (
        "what is there stays"
    )
    for _ in range(2):
        await keep_audit_schedule(client, 0, repair=False)
    await keep_audit_schedule(client, 900, repair=True, only_missing=True)
    assert (await described(client)).schedule.spec.intervals, (
        "a server whose database was replaced has none"
    )
    await keep_audit_schedule(client, 0, repair=False)
    with pytest.raises(RPCError) as caught:
        await described(client)
    assert caught.value.status is RPCStatusCode.NOT_FOUND


@pytest.mark.troubles
async def test_open_workflows_come_in_pages_and_are_confirmed_one_by_one(
    idle_testbed: WorkflowHarness,
) -> None:
    testbed, directory = idle_testbed, idle_testbed.parts.directory
    handles = {
        handle.id: handle
        for handle in [await testbed.start({"crawler": "books"}) for _ in range(5)]
    }
    found: list[str] = []
    for _ in range(1200):
        found, after = [], None
        while True:
            page, after = await asyncio.to_thread(directory.open_runs, after, 2)
            found += [workflow.workflow_id for workflow in page if workflow.workflow_id in handles]
            assert len(page) <= 2
            if after is None:
                break
        if len(found) == 5:
            break
        await asyncio.sleep(0.05)
    assert sorted(found) == sorted(handles)
    page, _ = await asyncio.to_thread(directory.open_runs, None, 100)
    one = next(workflow for workflow in page if workflow.workflow_id in handles)
    confirmed = await asyncio.to_thread(directory.confirm, one)
    assert confirmed is not None
    assert (confirmed.first_run_id, confirmed.run_id) == (
        handles[one.workflow_id].first_execution_run_id,
        None,
    )
    await asyncio.to_thread(directory.end, confirmed, "audit: enough")
    await asyncio.to_thread(directory.end, confirmed, "audit: enough")
    assert await asyncio.to_thread(directory.confirm, one) is None
    state = await asyncio.to_thread(directory.state, confirmed.workflow_id, confirmed.first_run_id)
    assert (state.open, state.how) == (False, "terminated")
    assert state.closed_at is not None


@pytest.mark.troubles
async def test_a_chain_that_was_followed_by_another_one_is_closed(
    idle_testbed: WorkflowHarness,
) -> None:
    testbed, directory = idle_testbed, idle_testbed.parts.directory
    name = f"crawl/books/{uuid.uuid4()}"
    first = await testbed.start({"crawler": "books"}, id=name)
    await first.terminate("by an operator")
    second = await testbed.start({"crawler": "books"}, id=name)
    old, new = (Owner(name, str(handle.first_execution_run_id)) for handle in (first, second))
    for owner, opened in ((old, False), (new, True)):
        assert await asyncio.to_thread(directory.is_open, owner) is opened
        assert (await asyncio.to_thread(directory.state, name, owner.first_run_id)).open is opened
    assert (await asyncio.to_thread(directory.state, name)).open
    assert await asyncio.to_thread(directory.state, "nowhere") == WorkflowState(open=False)


@pytest.mark.troubles
async def test_what_is_begun_twice_is_one_workflow(idle_testbed: WorkflowHarness) -> None:
    testbed, directory = idle_testbed, idle_testbed.parts.directory
    name = f"crawl/books/{uuid.uuid4()}"
    for _ in range(2):
        await asyncio.to_thread(
            directory.begin, RunRequest(crawler="books", run_id=7), name, "u", repair=True
        )
        await asyncio.to_thread(
            directory.deliver_again, Fence(987654, 1, "c", "u"), event=True, files=False
        )
    for workflow_id in (name, names.export_workflow_id(RunRef(987654, "u"), 1)):
        handle = testbed.client.get_workflow_handle(workflow_id)
        listed = [
            row async for row in testbed.client.list_workflows(f"WorkflowId = '{workflow_id}'")
        ]
        assert len(listed) <= 1
        await handle.terminate("end of test")


@pytest.mark.troubles
async def test_a_stop_is_signalled_to_what_is_open(idle_testbed: WorkflowHarness) -> None:
    testbed, directory = idle_testbed, idle_testbed.parts.directory
    handle = await testbed.start({"crawler": "books"}, id=f"crawl/books/{uuid.uuid4()}")
    assert await asyncio.to_thread(directory.stop, handle.id, StopRequest("s1", "ada", "enough"))
    signals = [
        e
        async for e in handle.fetch_history_events()
        if e.HasField("workflow_execution_signaled_event_attributes")
    ]
    assert [e.workflow_execution_signaled_event_attributes.signal_name for e in signals] == ["stop"]
    await handle.terminate("end of test")
    assert not await asyncio.to_thread(directory.stop, handle.id, StopRequest("s1"))


async def test_an_unreachable_server_is_no_answer() -> None:
    directory = TemporalDirectory(asyncio.get_running_loop(), Workflows())
    with pytest.raises(TemporalUnavailable, match="not connected"):
        await asyncio.to_thread(directory.state, "any")


@pytest.mark.troubles
async def test_the_highest_number_is_found_by_counting(idle_testbed: WorkflowHarness) -> None:
    """Closed workflows count, impossible numbers of runs do not."""
    testbed, directory = idle_testbed, idle_testbed.parts.directory
    asked, count = 0, directory.workflows._any_run_above

    async def counted(number: int) -> bool:
        nonlocal asked
        asked += 1
        return await count(number)

    directory.workflows._any_run_above = counted
    for highest in (1, 2, 3, 7, 8, 1000, 65_537):
        base, handles = 10**9 + 10**6 * highest, []
        for number in (base + 1, base + highest, 10**12 + 1, 2**62):
            attributes = TypedSearchAttributes(
                [SearchAttributePair(SearchAttributeKey.for_int("CrawlRunId"), number)]
            )
            handles.append(await testbed.start({"crawler": "books"}, search_attributes=attributes))
        await handles[1].terminate("it is over")
        await testbed.until(
            lambda above=base, number=base + highest: directory.highest_run(above) == number
        )
        asked = 0
        assert await asyncio.to_thread(directory.highest_run, base + highest) == base + highest
        assert asked == 1, "where nothing is newer, one question tells"
        assert await asyncio.to_thread(directory.highest_run) == base + highest
        assert asked < 100
        for handle in handles:
            if handle is not handles[1]:
                await handle.terminate("end of test")
