"""Due times over a real Temporal server, with the real activities and store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import ListScheduleMatchingTimesRequest
from temporalio.client import Schedule, ScheduleActionStartWorkflow, ScheduleHandle, ScheduleUpdate
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.compose import build_parent_audit
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.due_ids import due_request_id, due_workflow_id, temporal_schedule_id
from crawler_lifecycle.features.schedules.domain.decision import Decision
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec, TargetKind
from crawler_lifecycle.features.schedules.ports import DueOrder, DueRow, ScheduleRow, TargetRef
from crawler_lifecycle.features.schedules.temporal import ScheduleKeeper, temporal_schedule
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.errors import allowing
from tests.contracts.store.graphing import chain
from tests.support.fakes.cluster import Behaviour
from tests.support.testbed import WorkflowHarness

pytestmark = pytest.mark.asyncio(loop_scope="session")

RUN: dict[str, Any] = {
    "crawler": "books",
    "poll_minutes": [0.002],
    "limits": {"start_check_s": 0.1},
}
UNTIL_STOPPED = Behaviour(executes=None)
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


class Scheduled:
    """One schedule of a test, deleted in Temporal at its end."""

    def __init__(self, testbed: WorkflowHarness, name: str, **fields: Any) -> None:
        self.testbed, self.name = testbed, name
        self.workflows = Workflows(testbed.client)
        self.keeper = ScheduleKeeper(testbed.store.schedules, self.workflows)
        self.put(**fields)

    def put(self, **fields: Any) -> None:
        target = {} if {"graph", "manager"} & set(fields) else {"run": RUN}
        times = {} if "cron" in fields else {"every_s": 3600}
        spec = ScheduleSpec(**{**target, **times, **fields})
        self.testbed.store.schedules.put(self.name, spec.document(), "ann")

    @property
    def row(self) -> ScheduleRow:
        found: ScheduleRow | None = self.testbed.store.schedules.get(self.name)
        assert found is not None
        return found

    @property
    def handle(self) -> ScheduleHandle:
        return self.testbed.client.get_schedule_handle(temporal_schedule_id(self.name))

    def lines(self) -> list[DueRow]:
        """Return its due times, the earliest first."""
        found: list[DueRow] = self.testbed.store.schedules.list_firings(
            self.row.schedule_id, limit=1000
        )
        return found[::-1]

    def line(self, at: datetime) -> DueRow | None:
        return next((one for one in self.lines() if one.due_at == at), None)

    async def due(self, at: datetime) -> None:
        """Start the workflow of a due time."""
        order = DueOrder(self.name, at, self.row.revision)
        await self.workflows.start_for(order, due_workflow_id(self.name, at))
        await self.remember(due_workflow_id(self.name, at))

    async def remember(self, *ids: str) -> None:
        """Let these workflows be replayed at the end of the test."""
        for one in ids:
            found = await self.testbed.client.get_workflow_handle(one).describe()
            first = found.raw_description.workflow_execution_info.first_run_id
            if first not in {handle.first_execution_run_id for handle in self.testbed.handles}:
                self.testbed.handles.append(
                    self.testbed.client.get_workflow_handle(one, first_execution_run_id=first)
                )

    async def begun(self, at: datetime) -> TargetRef:
        """Return what a due time started."""

        def target() -> TargetRef | None:
            line = self.line(at)
            return None if line is None else line.target

        found: TargetRef = await self.testbed.until(target)
        return found

    async def run_of(self, at: datetime) -> int:
        """Return the run that a due time started."""
        target = await self.begun(at)
        assert target.kind is TargetKind.RUN
        await self.remember(names.workflow_id("books", due_request_id(self.name, at)))
        return target.id

    async def gone(self) -> None:
        with allowing(RPCStatusCode.NOT_FOUND):
            await self.handle.delete()


def second() -> datetime:
    return utc_now().replace(microsecond=0)


async def test_temporal_fires_and_the_run_says_for_when(real_testbed: WorkflowHarness) -> None:
    s = Scheduled(real_testbed, "fires", every_s=10)
    await s.keeper.keep("fires")
    [line] = await real_testbed.until(
        lambda: [one for one in s.lines() if one.target is not None][:1]
    )
    await s.gone()
    assert (line.decision, line.due_at.timestamp() % 10, line.lateness_ms < 60_000) == (
        Decision.STARTED,
        0,
        True,
    )
    run_id = await s.run_of(line.due_at)
    row = real_testbed.store.runs.get_run(run_id)
    assert (row.request_id, row.trigger) == (due_request_id("fires", line.due_at), "scheduled")
    assert datetime.fromisoformat(row.request["due_at"]) == line.due_at
    assert row.request["requested_by"] == "schedule fires"
    await s.remember(*(due_workflow_id("fires", one.due_at) for one in s.lines()))
    await real_testbed.until(lambda: real_testbed.store.runs.get_run(run_id).status == "COMPLETED")
    assert real_testbed.scheduler.calls[0].due_at == line.due_at, (
        "it was deployed as a scheduled run"
    )


@pytest.mark.troubles
async def test_one_due_time_begins_one_run_whoever_asks(real_testbed: WorkflowHarness) -> None:
    s, at = Scheduled(real_testbed, "once"), second()
    await asyncio.gather(*(s.due(at) for _ in range(5)))
    run_id = await s.run_of(at)
    await real_testbed.ended(real_testbed.client.get_workflow_handle(due_workflow_id("once", at)))
    for _ in range(2):
        await s.due(at)
        assert (
            await real_testbed.ended(
                real_testbed.client.get_workflow_handle(due_workflow_id("once", at))
            )
            == "started"
        )
    assert [run.run_id for run in real_testbed.store.runs.list_runs()] == [run_id]
    assert len(s.lines()) == 1


@pytest.mark.troubles
@pytest.mark.parametrize("overlap", ["queue", "stop_previous"])
async def test_the_next_one_begins_after_the_verdict(
    real_testbed: WorkflowHarness, overlap: str
) -> None:
    real_testbed.cluster.behaviour = UNTIL_STOPPED
    s, first = Scheduled(real_testbed, f"o-{overlap}", overlap=overlap), second()
    await s.due(first)
    one = await s.run_of(first)
    await real_testbed.until(lambda: real_testbed.store.runs.get_run(one).status == "PROCESSING")
    later = first + timedelta(seconds=1)
    await s.due(later)
    line = await real_testbed.until(lambda: s.line(later))
    assert line.decision is Decision.QUEUED
    if overlap == "queue":
        await asyncio.sleep(1.5)
        assert (s.line(later) or line).target is None
        assert real_testbed.store.runs.get_run(one).status == "PROCESSING"
        await real_testbed.client.get_workflow_handle(
            names.workflow_id("books", due_request_id(s.name, first))
        ).signal("stop")
    two = await s.run_of(later)
    before, after = real_testbed.store.runs.get_run(one), real_testbed.store.runs.get_run(two)
    assert (before.status, before.outcome) == ("FAILED", "cancelled"), "its verdict came first"
    assert before.ended_at <= after.created_at
    if overlap == "stop_previous":
        assert before.stop.requested_by == f"schedule {s.name}"
        assert "is due again" in before.stop.reason
    await real_testbed.client.get_workflow_handle(
        names.workflow_id("books", due_request_id(s.name, later))
    ).signal("stop")
    await real_testbed.until(lambda: real_testbed.store.runs.get_run(two).status == "FAILED")


@pytest.mark.troubles
async def test_a_graph_begins_and_what_cannot_begin_says_why(real_testbed: WorkflowHarness) -> None:
    steps = [{"path": one.path, "kind": "crawl", "job": {"crawler": "books"}} for one in chain(1)]
    s, at = Scheduled(real_testbed, "graphs", graph={"steps": steps, "name": "nightly"}), second()
    await s.due(at)
    target = await s.begun(at)
    row = real_testbed.store.graphs.get_graph(target.id)
    assert (target.kind, row.name, row.requested_by) == ("graph", "nightly", "schedule graphs")
    await s.remember(names.graph_workflow_id(row.key))
    s.put(run={**RUN, "crawler": "left"}, overlap="allow")
    await s.due(at + timedelta(seconds=1))
    line = await real_testbed.until(
        lambda: next((one for one in s.lines() if one.decision == "failed"), None)
    )
    assert "'left' is unknown" in str(line.reason)


@pytest.mark.troubles
async def test_what_was_done_in_temporal_is_taken_over_or_set_back(
    real_testbed: WorkflowHarness,
) -> None:
    s = Scheduled(
        real_testbed,
        "kept",
        cron="30 2 * * *",
        time_zone="Europe/Berlin",
        jitter_s=90,
        excluded=["2026-12-24"],
    )
    keep = s.keeper.keep
    await keep("kept")
    first = await s.handle.describe()
    await keep("kept")
    assert (await s.handle.describe()).info.last_updated_at == first.info.last_updated_at, (
        "alike: nothing is written"
    )
    assert (s.row.told, s.row.trouble, s.row.ended_at) == (s.row.revision, None, None)
    await s.handle.pause(note="a migration")
    await keep("kept")
    assert s.row.pause_reason == "paused in Temporal: a migration"
    await keep("kept")
    await s.handle.unpause(note="over")
    await keep("kept")
    assert s.row.paused_at is None
    real_testbed.store.schedules.pause("kept", "ours")
    await keep("kept")
    found = (await s.handle.describe()).schedule
    assert (found.state.paused, str(found.state.note).endswith(" paused: ours")) == (True, True)
    real_testbed.store.schedules.pause("kept", None)
    await keep("kept")
    assert not (await s.handle.describe()).schedule.state.paused

    def faster(given: Any) -> ScheduleUpdate:
        given.description.schedule.spec.jitter = timedelta(seconds=1)
        return ScheduleUpdate(given.description.schedule)

    await s.handle.update(faster)
    await keep("kept")
    assert "was changed in Temporal" in str(s.row.trouble)
    assert (await s.handle.describe()).schedule.spec.jitter == timedelta(seconds=90)
    await s.handle.delete()
    await keep("kept")
    assert "was deleted in Temporal" in str(s.row.trouble)
    s.put(cron="30 3 * * *")
    await keep("kept")
    assert s.row.trouble is None
    assert (await s.handle.describe()).info.next_action_times[0].hour == 3
    assert real_testbed.store.schedules.delete("kept")
    await keep("kept")
    with pytest.raises(RPCError, match="not found"):
        await s.handle.describe()


@pytest.mark.troubles
async def test_what_a_person_may_do_to_a_temporal_schedule(real_testbed: WorkflowHarness) -> None:
    """Each of these is reverted, and reported; an older state of our own is corrected without a
    message.
    """
    s = Scheduled(real_testbed, "edited", cron="30 2 * * *", time_zone="Africa/Casablanca")
    await s.keeper.keep("edited")
    first = (await s.handle.describe()).schedule

    def limited(one: Schedule) -> None:
        one.state.limited_actions, one.state.remaining_actions = True, 1

    def other_workflow(one: Schedule) -> None:
        one.action = ScheduleActionStartWorkflow("Other", id="other", task_queue="elsewhere")

    def pausing(one: Schedule) -> None:
        one.policy.pause_on_failure = True

    def timed(one: Schedule) -> None:
        assert isinstance(one.action, ScheduleActionStartWorkflow)
        one.action.execution_timeout = timedelta(seconds=1)

    for edit in (limited, other_workflow, pausing, timed):

        def edited(given: Any, edit: Any = edit) -> ScheduleUpdate:
            edit(given.description.schedule)
            return ScheduleUpdate(given.description.schedule)

        await s.handle.update(edited)
        await s.keeper.keep("edited")
        assert "was changed in Temporal" in str(s.row.trouble), edit
        assert (await s.handle.describe()).schedule == first
        real_testbed.store.schedules.told_schedule(
            s.row.schedule_id, s.row.revision, trouble=None, ended_at=None
        )

    def paused(given: Any) -> ScheduleUpdate:
        given.description.schedule.state.paused = True
        return ScheduleUpdate(given.description.schedule)

    await s.handle.update(paused)
    await s.keeper.keep("edited")
    assert s.row.pause_reason == "paused in Temporal: without a reason", (
        "also where our note was left there"
    )
    real_testbed.store.schedules.pause("edited", None)
    await s.keeper.keep("edited")
    assert not (await s.handle.describe()).schedule.state.paused

    before = temporal_schedule(s.row, ScheduleSpec(run=RUN, cron="30 3 * * *"), utc_now())
    await s.handle.update(lambda _: ScheduleUpdate(before))
    await s.keeper.keep("edited")
    assert ((await s.handle.describe()).schedule, s.row.trouble) == (first, None)
    await s.gone()


@pytest.mark.troubles
async def test_what_was_lost_is_begun_by_the_search_for_it(real_testbed: WorkflowHarness) -> None:
    s, at = Scheduled(real_testbed, "lost"), second()
    assert (
        real_testbed.store.schedules.decide_due("lost", at, s.row.revision).decision
        is Decision.STARTED
    )
    asked = real_testbed.store.schedules.ask_due("lost", [LONG_AGO], "ann", "backfilled by ann")[0]
    assert asked.decision is Decision.QUEUED
    audit = build_parent_audit(real_testbed.parts)
    audit.clock = lambda: utc_now() + timedelta(seconds=70)
    assert await asyncio.to_thread(audit.search, "due time", repair=True) == 2
    await s.remember(due_workflow_id("lost", at), due_workflow_id("lost", LONG_AGO))
    first = await s.run_of(at)
    second_ = await s.run_of(LONG_AGO)
    await real_testbed.until(lambda: real_testbed.store.runs.get_run(second_).status == "COMPLETED")
    assert second_ > first
    await s.gone()


@pytest.mark.troubles
async def test_temporal_fires_at_every_due_time_of_a_year(real_testbed: WorkflowHarness) -> None:
    """By its own matching times, across both clock changes in three zones."""
    crons = {
        "Europe/Berlin": "30 2 * * *",
        "America/New_York": "15,45 1 * * SUN",
        "Australia/Lord_Howe": "45 1 1-8 * *",
    }
    for number, (zone, cron) in enumerate(crons.items()):
        s = Scheduled(real_testbed, f"year-{number}", cron=cron, time_zone=zone, start_at=LONG_AGO)
        await s.keeper.keep(s.name)
        start = datetime(2027, 1, 1, tzinfo=UTC)
        due = set(ScheduleSpec.read(s.row.definition).due_times(start, start + timedelta(days=365)))
        assert len(due) > 90
        fires, at = set[datetime](), start
        while at < start + timedelta(days=365):
            asked = ListScheduleMatchingTimesRequest(
                namespace=real_testbed.client.namespace, schedule_id=temporal_schedule_id(s.name)
            )
            asked.start_time.FromDatetime(at)
            asked.end_time.FromDatetime(at + timedelta(days=100))
            answer = await real_testbed.client.workflow_service.list_schedule_matching_times(
                asked, retry=True
            )
            fires |= {one.ToDatetime(tzinfo=UTC) for one in answer.start_time}
            at += timedelta(days=100)
        assert due <= fires
        other = next(at for at in sorted(fires) if at not in due)
        assert real_testbed.store.schedules.decide_due(s.name, other) is None, (
            "what is not due has no line"
        )
        await s.gone()
