"""Overdue polls are found by one query and handled, over real activities, store and Temporal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from crawler_lifecycle.background import Beside
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.compose import build_audit
from crawler_lifecycle.domain.audits.audit import AuditRules
from crawler_lifecycle.domain.audits.overdue import OVERDUE_S
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.names import EVENT_RUN_STALE
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.directory import TemporalDirectory
from crawler_lifecycle.worker.overdue_polls import Overdue
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.testbed import WorkflowHarness

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

#: The next poll is far in the future, so any earlier one was triggered.
SLOW: dict[str, Any] = {"crawler": "books", "poll_minutes": [10], "limits": {"start_check_s": 0.1}}
LATE_S = 600 + OVERDUE_S + 5


class Later:
    """A clock that is ahead of all others, so that polls are overdue by it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> datetime:
        return utc_now() + timedelta(seconds=self.seconds)


def searcher(testbed: WorkflowHarness, clock: Callable[[], datetime] | None = None) -> Overdue:
    testbed.parts.audit = AuditRules()
    clock = clock or Later(LATE_S)
    audit = build_audit(testbed.parts)
    audit.clock = clock
    note = testbed.store.run_reports.note_stale
    return Overdue(
        testbed.store.overdue,
        audit.take_over,
        Workflows(testbed.client).poll_now,
        note=note,
        clock=clock,
    )


async def executing(testbed: WorkflowHarness, **more: Any) -> WorkflowHandle[Any, Any]:
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start(SLOW | more)
    await testbed.until(
        lambda: (
            testbed.store.runs.get_run(1) is not None
            and testbed.store.runs.get_run(1).next_look_at is not None
        )
    )
    await testbed.until(lambda: testbed.store.runs.get_run(1).status == "PROCESSING")
    return handle


async def ended(testbed: WorkflowHarness) -> None:
    testbed.cluster.end_now(1, 0, end=FINISHED)
    await Workflows(testbed.client).poll_now(testbed.store.runs.get_run(1).owner_workflow_id)
    await testbed.until(lambda: testbed.store.runs.get_run(1).status == "COMPLETED")


async def test_nothing_is_done_before_its_time(testbed: WorkflowHarness) -> None:
    handle = await executing(testbed)
    early = searcher(testbed, Later(600 - 5))
    assert await early.turn() == 0
    assert early.state() == {"overdue": 0, "lost": 0, "problem": None}
    await ended(testbed)
    await handle.result()
    assert await searcher(testbed).turn() == 0, "a run that has ended has no poll to come"


@pytest.mark.parametrize("at_once", [1, 2])
async def test_a_run_whose_workflow_was_terminated_is_taken_over(
    testbed: WorkflowHarness, at_once: int
) -> None:
    handle = await executing(testbed)
    await handle.terminate("by an operator")
    polled_at = testbed.store.runs.get_run(1).verified_at
    searchers = [searcher(testbed) for _ in range(at_once)]
    await asyncio.gather(*(one.turn() for one in searchers))
    stale = [
        one for one in testbed.store.events.events_after(0, 1000) if one.type == EVENT_RUN_STALE
    ]
    assert [one.run_id for one in stale] == [1], "told once, by however many"
    await testbed.until(lambda: testbed.store.runs.get_run(1).verified_at > polled_at)
    row = testbed.store.runs.get_run(1)
    assert (row.attempt, row.owner_workflow_id) == (2, "crawl/books/" + row.request_id + "/2")
    repairs = [
        (str(c.kind), c.truth)
        for c in testbed.store.corrections.list_corrections(1)
        if c.found_by == "sweep"
    ]
    assert repairs == [("repair", "no workflow")]
    assert sum(one.counts["taken_over"] for one in searchers) >= 1
    await ended(testbed)


async def test_an_operator_who_terminated_it_a_moment_ago_is_not_overtaken(
    testbed: WorkflowHarness,
) -> None:
    """The poll was overdue before, and whoever terminates a workflow may be about to resume."""
    handle = await executing(testbed)
    clock = Later(LATE_S)
    one = searcher(testbed, clock)
    await handle.terminate("by an operator")
    one.clock = clock
    audit = build_audit(testbed.parts)
    audit.clock = utc_now  # by this clock, it was closed a moment ago
    one.take_over = audit.take_over
    await one.turn()
    assert one.counts == {"left": 1}
    assert testbed.store.runs.get_run(1).attempt == 1
    audit.clock = Later(OVERDUE_S + 1)
    await one.turn()
    assert one.counts == {"left": 1, "taken_over": 1}
    await testbed.until(lambda: testbed.store.runs.get_run(1).attempt == 2)
    await ended(testbed)


async def test_an_open_one_is_woken_once_for_each_poll(testbed: WorkflowHarness) -> None:
    """Its timer was lost, or belongs to a copy of Temporal's database with another time."""
    handle = await executing(testbed)
    one, polled_at = searcher(testbed), testbed.store.runs.get_run(1).verified_at
    await one.turn()
    await one.turn()
    assert one.counts == {"woken": 1}
    await testbed.until(lambda: testbed.store.runs.get_run(1).verified_at > polled_at)
    await ended(testbed)
    await handle.result()


async def test_a_run_that_temporal_has_forgotten_is_taken_over_at_once(
    idle_testbed: WorkflowHarness,
) -> None:
    """As after its database was replaced by an empty one: the workflow is not closed, it never
    existed.
    """
    testbed = idle_testbed
    row, _ = testbed.store.initiation.reserve_run(RunRequest(crawler="books"), "gone")
    testbed.store.initiation.claim_run(
        RunRequest(run_id=row.run_id), Owner("crawl/books/gone", "chain-1"), lambda _: False
    )
    one = searcher(testbed, Later(OVERDUE_S + 5))
    assert await one.turn() == 1
    assert one.counts == {"taken_over": 1}
    async with testbed.working():
        await testbed.until(lambda: testbed.store.runs.get_run(1).attempt == 2)
        await testbed.until(lambda: testbed.store.runs.get_run(1).status == "COMPLETED")


async def test_one_that_nobody_started_is_started(testbed: WorkflowHarness) -> None:
    """The gateway that accepted it is gone as well."""
    testbed.store.initiation.reserve_run(RunRequest(crawler="books"), "started")
    one = searcher(testbed, Later(OVERDUE_S + 5))
    await one.turn()
    assert one.counts == {"taken_over": 1}
    await testbed.until(lambda: testbed.store.runs.get_run(1).status == "COMPLETED")


async def test_an_outage_of_temporal_is_waited_out_and_told(idle_testbed: WorkflowHarness) -> None:
    testbed = idle_testbed
    testbed.store.initiation.reserve_run(RunRequest(crawler="books"), "outage")
    testbed.parts.directory = TemporalDirectory(asyncio.get_running_loop(), Workflows())
    one = searcher(testbed, Later(OVERDUE_S + 5))
    with pytest.raises(TemporalUnavailable):
        await one.turn()
    async with Beside() as beside:
        beside.start(one.run())
        await testbed.until(lambda: "not connected" in str(one.state()["problem"]))
        testbed.parts.directory.workflows.client = testbed.client
        await testbed.until(
            lambda: one.counts["taken_over"] == 1 and one.state()["problem"] is None
        )
