"""Lost workflows of each kind: reported, taken over, and abandoned if no workflow can continue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from crawler_lifecycle.activities.audits import settling
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.compose import build_audit, build_parent_audit
from crawler_lifecycle.domain.audits.audit import TRIES_MAX, AuditRules
from crawler_lifecycle.domain.audits.overdue import OVERDUE_S
from crawler_lifecycle.domain.due_ids import due_workflow_id
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.names import graph_workflow_id, manager_workflow_id
from crawler_lifecycle.domain.run import RunRequest, StopIntent
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec
from crawler_lifecycle.features.managers.ports import NewManager
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec, webhook_workflow_id
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.worker.overdue_polls import Overdue
from tests.support.fakes.cluster import Behaviour
from tests.support.graphing import graph_testbed
from tests.support.testbed import WorkflowHarness

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

OWNED = ("manager", "graph", "due time", "webhook")
DUE = datetime(2026, 1, 1, tzinfo=UTC)
WHY = "BadSearchAttributes: 2,724 bytes are above 2,048"
#: Further than any grace period and back-off.
AHEAD_S = 3600.0
CRAWL = StepSpec("one", StepKind.CRAWL, {"crawler": "books"})


@dataclass
class Owned:
    """One of each kind, and the search for lost ones, by a clock that may be ahead."""

    testbed: WorkflowHarness
    ahead_s: float = 0.0

    def __post_init__(self) -> None:
        s = self.testbed.store
        s.managers.reserve_manager(NewManager("stream", "f1", plan="tests:Stream"))
        graph_testbed(self.testbed).made([CRAWL])
        s.schedules.put("s", ScheduleSpec(every_s=3600, run={"crawler": "books"}).document(), "ann")
        s.schedules.ask_due("s", [DUE], "ann", "backfilled by ann")
        s.webhooks.put(
            "w", WebhookSpec("https://hooks.example.com/in", ["env:HOOK"]).document(), "ann"
        )
        self.testbed.parts.audit = AuditRules()
        self.ids = {
            "manager": manager_workflow_id("stream", "f1"),
            "graph": graph_workflow_id("nightly"),
            "due time": due_workflow_id("s", DUE),
            "webhook": webhook_workflow_id("w"),
        }

    def clock(self) -> datetime:
        return utc_now() + timedelta(seconds=self.ahead_s)

    async def search(self, what: str) -> int:
        audit = build_parent_audit(self.testbed.parts)
        audit.clock = self.clock
        return await asyncio.to_thread(audit.search, what, repair=True)

    async def begin(self, what: str) -> None:
        await asyncio.to_thread(self.begin_now, what)

    def begin_now(self, what: str) -> None:
        order = build_parent_audit(self.testbed.parts).kinds[what].order(1, self.ids[what])
        self.testbed.parts.directory.begin_for(order, self.ids[what])

    async def terminate(self, what: str, reason: str = WHY) -> None:
        await self.testbed.client.get_workflow_handle(self.ids[what]).terminate(reason=reason)

    async def is_open(self, what: str) -> bool:
        found = await self.testbed.client.get_workflow_handle(self.ids[what]).describe()
        return found.status is WorkflowExecutionStatus.RUNNING

    def lost(self) -> list[str]:
        """Return what is reported as lost."""
        return [
            one.detail for one in self.testbed.store.findings.audit_findings() if one.run_id is None
        ]

    def ended(self, what: str) -> str | None:
        """Return why it has ended, or is paused."""
        s = self.testbed.store
        if what == "manager":
            row = s.managers.get_manager(1)
            return f"{row.status} {row.outcome} {row.cause}" if row.status.terminal else None
        if what == "graph":
            graph = s.graphs.get_graph(1)
            return f"{graph.state} {graph.cause}" if graph.state.final else None
        if what == "webhook":
            hook = s.webhooks.get("w")
            return None if hook.paused_at is None else f"paused {hook.pause_reason}"
        line = s.schedules.get_due(1)
        return None if line.decision.begins else f"{line.decision} {line.reason}"


async def test_a_terminated_workflow_of_each_kind_is_told_at_once_and_taken_up_after_its_grace(
    idle_testbed: WorkflowHarness,
) -> None:
    o = Owned(idle_testbed)
    for what in OWNED:
        await o.begin(what)
        assert await o.search(what) == 0
        await o.terminate(what, "by an operator")
        assert await o.search(what) == 1
        assert "was terminated: by an operator" in o.lost()[0], "told by the first search"
        assert not await o.is_open(what), "whoever ended it may be about to begin it again"
        o.ahead_s = OVERDUE_S + 1
        assert max(await asyncio.gather(o.search(what), o.search(what))) == 1, "two workers at once"
        assert await o.is_open(what)
        assert (await o.search(what), o.lost()) == (0, [])
        await o.terminate(what)
        o.ahead_s = 0.0


@pytest.mark.parametrize("what", OWNED)
async def test_what_no_workflow_can_carry_is_given_up_with_the_reason_on_record(
    idle_testbed: WorkflowHarness, what: str
) -> None:
    o = Owned(idle_testbed, AHEAD_S)
    await o.begin(what)
    for _ in range(TRIES_MAX):
        await o.terminate(what)
        assert await o.search(what) == 1
        assert await o.is_open(what)
        assert o.ended(what) is None
    await o.terminate(what)
    assert await o.search(what) == 1
    assert not await o.is_open(what)
    why = o.ended(what)
    states = {
        "manager": "FAILED failed",
        "graph": "discarded",
        "due time": "failed",
        "webhook": "paused",
    }
    assert why is not None
    assert why.startswith(
        f"{states[what]} Given up after {TRIES_MAX} takeovers in a row without progress: "
    )
    assert WHY in why
    assert (await o.search(what), o.lost()) == (0, [])


@dataclass
class Meanwhile:
    """The findings, with something that happens between the judgement and the repair."""

    findings: Any
    happens: Callable[[], object]

    def note_findings(self, worth: Any) -> Any:
        noted = self.findings.note_findings(worth)
        self.happens()
        return noted

    def __getattr__(self, name: str) -> Any:
        return getattr(self.findings, name)


@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "ended"])
@pytest.mark.parametrize("what", ["manager", "graph"])
async def test_what_went_on_since_it_was_judged_is_not_given_up(
    idle_testbed: WorkflowHarness, what: str, resumed: bool
) -> None:
    o, s = Owned(idle_testbed, AHEAD_S), idle_testbed.store
    await o.begin(what)
    for _ in range(TRIES_MAX):
        await o.terminate(what)
        await o.search(what)
    await o.terminate(what)
    audit, other = build_parent_audit(idle_testbed.parts), build_parent_audit(idle_testbed.parts)
    audit.clock = other.clock = o.clock

    def row() -> Any:
        return s.managers.get_manager(1) if what == "manager" else s.graphs.get_graph(1)

    seen = list[Any]()

    def happens() -> None:
        o.begin_now(what) if resumed else other.search(what, repair=True)
        seen.append(row())

    audit.store = replace(audit.store, findings=Meanwhile(audit.store.findings, happens))
    await asyncio.to_thread(audit.search, what, repair=True)
    assert (await o.is_open(what), o.ended(what) is None) == (resumed, resumed)
    assert row() == seen[0]


@pytest.mark.parametrize("what", ["manager", "graph"])
async def test_a_forced_stop_ends_what_no_workflow_can_carry(
    idle_testbed: WorkflowHarness, what: str
) -> None:
    o = Owned(idle_testbed, AHEAD_S)
    intent = StopIntent(utc_now(), force=True, requested_by="ann")
    if what == "manager":
        idle_testbed.store.managers.record_manager_stop(1, intent)
    else:
        idle_testbed.store.graphs.record_graph_stop(1, intent)
    await o.begin(what)
    await o.terminate(what)
    await o.search(what)
    assert (await o.is_open(what), o.ended(what)) == (True, None), (
        "one workflow may carry the stop out"
    )
    await o.terminate(what)
    await o.search(what)
    states = {"manager": "FAILED cancelled", "graph": "cancelled"}
    assert str(o.ended(what)).startswith(states[what])


# --- runs -----------------------------------------------------------------------------------------


def runs_search(testbed: WorkflowHarness) -> Overdue:
    def clock() -> datetime:
        return utc_now() + timedelta(seconds=AHEAD_S)

    testbed.parts.audit = AuditRules()
    audit = build_audit(testbed.parts)
    audit.clock = clock
    return Overdue(
        testbed.store.overdue, audit.take_over, Workflows(testbed.client).poll_now, clock=clock
    )


async def terminate_newest(testbed: WorkflowHarness, row: Any) -> None:
    """Terminate each open workflow of this run, as the server does, with its reason."""
    for attempt in ("", f"/{row.attempt + 1}"):
        handle = testbed.client.get_workflow_handle(f"crawl/books/{row.request_id}{attempt}")
        if await Workflows(testbed.client).is_open(handle.id):
            await handle.terminate(reason=WHY)


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_run_that_no_workflow_can_carry_is_ended_with_its_crawler(
    idle_testbed: WorkflowHarness, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "STOP_S", 0.2)
    testbed = idle_testbed
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    row, _ = testbed.store.initiation.reserve_run(
        RunRequest(crawler="books", parent=graph_workflow_id("whose"), poll_minutes=[10]), "r1"
    )
    testbed.parts.directory.loop = asyncio.get_running_loop()
    async with testbed.working():
        await asyncio.to_thread(
            testbed.parts.directory.begin, RunRequest(run_id=1), "crawl/books/r1", row.run_uid
        )
        await testbed.until(lambda: testbed.store.runs.get_run(1).status == "PROCESSING")
    search = runs_search(testbed)
    if stopped:
        testbed.store.stops.record_stop(
            1, StopIntent(utc_now(), force=True, requested_by="ann"), "s1"
        )
    for tries in range(1 if stopped else TRIES_MAX):
        await terminate_newest(testbed, row)
        await search.turn()
        assert search.counts == {"taken_over": tries + 1}
        assert (
            testbed.store.runs.get_run(1).ended_at,
            len(testbed.cluster.inventory(run_id=1)),
        ) == (
            None,
            1,
        )
    await terminate_newest(testbed, row)
    testbed.cluster.fail_with(ClusterUnavailable("503"), "inventory")
    await search.turn()
    assert testbed.store.runs.get_run(1).ended_at is None, "without a proof it is no end"
    testbed.cluster.fail_with(None, "inventory")
    await search.turn()
    assert testbed.cluster.inventory(run_id=1) == [], "an ended run leaves no crawler"
    run = testbed.store.runs.get_run(1)
    assert (run.status, run.outcome) == ("FAILED", "cancelled" if stopped else "failed")
    assert str(run.cause).startswith("Given up after ")
    assert WHY in run.cause
    assert set(testbed.tasks(1).values()) == {"CANCELLED" if stopped else "FAILED"}
    corrected = {str(one.kind) for one in testbed.store.corrections.list_corrections(1)}
    assert corrected == {"repair"}, "it was not killed from outside"
    assert await search.turn() == 0
    async with testbed.working():  # reports of an end are delivered
        await testbed.until(lambda: testbed.store.exports.list_exports(1))


async def test_progress_counts_the_take_overs_anew(idle_testbed: WorkflowHarness) -> None:
    o = Owned(idle_testbed, AHEAD_S)
    await o.begin("webhook")
    for through in (1, 2):
        for _ in range(TRIES_MAX):
            await o.terminate("webhook")
            await o.search("webhook")
        assert o.ended("webhook") is None
        with idle_testbed.store.database.engine.begin() as conn:
            conn.exec_driver_sql(f"UPDATE webhook SET through_seq = {through}")
