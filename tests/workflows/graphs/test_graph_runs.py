"""Crawls and managers as steps of a graph: started once, resumed by a retry, stopped with their
step.
"""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.task import End
from crawler_lifecycle.domain.values import decode, unpacked
from crawler_lifecycle.features.graphs.activities import graphs
from crawler_lifecycle.features.graphs.domain.commands import RetrySteps
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.workflows import lifecycle
from tests.contracts.store.graphing import step
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.graphing import GraphTestbed, graph_testbed
from tests.support.managing import manager_testbed, quick
from tests.support.testbed import WorkflowHarness
from tests.workflows.test_floods import held

pytestmark = pytest.mark.asyncio(loop_scope="session")

INSTANT = Behaviour(executes=0)
FAILS = Behaviour(executes=0, end=End(exit_code=1, reason="Error"))
UNTIL_STOPPED = Behaviour(executes=None)


def crawl(path: str, *deps: str, crawler: str = "quick", **fields: Any) -> StepSpec:
    job = {"crawler": crawler, "args": fields.pop("args", {}), "limits": {"start_check_s": 0.0}}
    return StepSpec(path, StepKind.CRAWL, job, deps, **fields)


def manager(path: str, *deps: str, **fields: Any) -> StepSpec:
    return StepSpec(path, StepKind.MANAGER, {"plan": "tests:Stream", **fields}, deps)


def runs(g: GraphTestbed) -> list[Any]:
    """Return all runs, oldest first."""
    return list(reversed(g.testbed.store.runs.list_runs(limit=500)))


async def test_crawls_are_begun_when_their_turn_comes_and_their_ends_go_on(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = lambda run, index, attempt: FAILS if run == 2 else INSTANT
    g = graph_testbed(real_testbed)
    steps = [
        crawl("shops", args={"n": "1"}),
        step("parse", "shops"),
        crawl("bad", "parse"),
        step("never", "bad"),
    ]
    async with g.working():
        steps += [crawl("nobody", crawler="nobody"), crawl("red", args={"x": "1"})]
        result = await g.ended(await g.start(steps))
    assert result.state == "discarded"
    expected = {
        "shops": "completed",
        "parse": "completed",
        "bad": "discarded",
        "never": "cancelled",
    }
    assert g.states() == expected | {"nobody": "discarded", "red": "discarded"}
    assert [run.request_id for run in runs(g)] == ["graph/nightly/shops/1", "graph/nightly/bad/1"]
    by = {(run.parent, run.flow_id, run.request["requested_by"]) for run in runs(g)}
    assert by == {("graph/nightly", "nightly", "ada")}
    found = g.steps()
    assert (found["shops"].run_id, found["bad"].outcome) == (1, "failed")
    assert "'nobody' is unknown" in str(found["nobody"].reason)
    assert "x" in str(found["red"].reason)


@pytest.mark.troubles
async def test_a_crawl_whose_row_another_hand_has_spoilt_ends_alone(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = INSTANT
    g = graph_testbed(real_testbed)
    row = g.made([crawl("shops"), crawl("bad"), manager("worse")])
    with real_testbed.store.database.engine.begin() as conn:
        conn.execute(sa.text("UPDATE graph_step SET job = '{}' WHERE path <> 'shops'"))
    async with g.working():
        assert (await g.ended(await g.begin(row))).state == "discarded"
    assert g.states() == {"shops": "completed", "bad": "discarded", "worse": "discarded"}
    assert "crawler: None is not allowed" in str(g.steps()["bad"].reason)
    assert "then retry it" in str(g.steps()["worse"].reason)


@pytest.mark.troubles
async def test_a_retried_crawl_is_resumed_and_its_former_end_counts_no_more(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = lambda run, index, attempt: FAILS if attempt == 1 else INSTANT
    g = graph_testbed(real_testbed)
    async with g.working():
        assert (
            await g.ended(await g.start([crawl("shops"), step("parse", "shops")]))
        ).state == "discarded"
        assert real_testbed.store.graphs.command(1, "again", RetrySteps().apply) == 2
        assert (await g.ended(await g.begin(g.row()))).state == "completed"
        assert [(run.run_id, run.attempt, str(run.status)) for run in runs(g)] == [
            (1, 2, "COMPLETED")
        ]
        named = RetrySteps(names=["shops"]).apply
        assert real_testbed.store.graphs.command(1, "completed, by its name", named) == 1
        assert (await g.ended(await g.begin(g.row()))).state == "completed"
        assert [(run.run_id, run.attempt) for run in runs(g)] == [(1, 3)]
        assert (
            real_testbed.store.graphs.command(
                1, "fresh", RetrySteps(names=["shops"], fresh=True).apply
            )
            == 1
        )
        real_testbed.cluster.behaviour = INSTANT
        assert (await g.ended(await g.begin(g.row()))).state == "completed"
    assert [(run.run_id, run.attempt) for run in runs(g)] == [(1, 3), (2, 1)]
    assert g.functions.calls == {"parse": 1}


@pytest.mark.troubles
async def test_a_stop_ends_crawls_and_managers_before_the_graph(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = UNTIL_STOPPED
    g, m = (
        graph_testbed(real_testbed),
        manager_testbed(real_testbed, source=[quick(n) for n in range(5)], window=2),
    )
    async with g.working(), m.user_code():
        handle = await g.start([crawl("shops"), manager("stream"), step("then", "shops", "stream")])
        await real_testbed.until(lambda: len(real_testbed.cluster.alive()) == 3)
        await handle.signal("stop", {"requested_by": "ada", "reason": "enough"})
        result = await g.ended(handle)
    assert (result.state, result.cause) == ("cancelled", "Stopped by ada: enough")
    assert real_testbed.cluster.alive() == []
    assert {(str(run.status), run.outcome) for run in runs(g)} == {("FAILED", "cancelled")}
    assert m.row().outcome == "cancelled"
    assert {run.stop.requested_by for run in runs(g)} == {"ada"}


@pytest.mark.troubles
async def test_a_cancelled_crawl_is_ending_until_nothing_runs(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    g = graph_testbed(real_testbed)
    async with g.working():
        handle = await g.start([crawl("a"), crawl("b")])
        await real_testbed.until(lambda: len(real_testbed.cluster.alive()) == 2)
        by_name = {one.request_id.split("/")[2]: one.run_id for one in runs(g)}
        assert (
            await handle.execute_update("cancel_steps", {"names": ["a"], "requested_by": "ada"})
            == 1
        )
        await real_testbed.until(lambda: real_testbed.cluster.signals(by_name["a"]))
        assert (g.steps()["a"].state, g.steps()["a"].ending) == ("cancelled", True)
        assert not real_testbed.cluster.signals(by_name["b"])
        real_testbed.cluster.end_now(by_name["b"], 0, end=FINISHED)
        for run in runs(g):
            await Workflows(real_testbed.client).poll_now(run.owner_workflow_id)
        await real_testbed.until(lambda: g.states()["b"] == "completed")
        assert g.row().state == "executing"
        await handle.signal("force_stop")
        assert (await g.ended(handle)).state == "cancelled"
    assert real_testbed.cluster.alive() == []


@pytest.mark.troubles
async def test_a_step_behind_a_crawl_waits_for_its_archive(
    real_testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "REPAIRED_S", 3600.0)  # the run reports that its archive exists
    real_testbed.cluster.behaviour = INSTANT
    real_testbed.cluster.folders[1, 0] = real_testbed.folder
    g = graph_testbed(real_testbed)
    async with g.working():
        with held(real_testbed.outside, "store"):
            handle = await g.start([crawl("shops"), step("parse", "shops")])
            waits = await g.snapshot_where(handle, lambda one: "archive" in (one.waiting or ""))
            said = 'step "shops": run 1 is COMPLETED, and its archive is not delivered yet'
            assert str(waits.waiting).startswith(said)
            assert (g.states(), g.functions.calls) == (
                {"shops": "executing", "parse": "suspended"},
                {},
            )
        assert (await g.ended(handle)).state == "completed"
    value = b"".join(unpacked(real_testbed.store.graphs.result(1, 0)))
    assert decode(value)["archive"] == f"memory:///{real_testbed.outside.stored[0]}"


@pytest.mark.troubles
async def test_managers_are_steps_and_a_retry_resumes_them(real_testbed: WorkflowHarness) -> None:
    real_testbed.cluster.behaviour = lambda run, index, attempt: FAILS if run == 1 else INSTANT
    g = graph_testbed(real_testbed)
    m = manager_testbed(real_testbed, source=[quick(1)], failed=True, close_reason="failed")
    async with g.working(), m.user_code():
        assert (
            await g.ended(await g.start([manager("stream"), step("then", "stream")]))
        ).state == "discarded"
        assert (m.row().parent, g.steps()["stream"].outcome) == ("graph/nightly", "failed")
        m.plan.failed, m.plan.close_reason = False, None
        m.plan.source.append(quick(2))
        assert real_testbed.store.graphs.command(1, "again", RetrySteps().apply) == 2
        assert (await g.ended(await g.begin(g.row()))).state == "completed"
    assert (m.row().attempt, len(runs(g))) == (2, 2)


@pytest.mark.troubles
async def test_ends_that_nobody_told_are_found(
    real_testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_testbed.cluster.behaviour = INSTANT

    async def lose(*told: Any) -> None:
        """Lose the signal."""

    for name in ("tell_parent", "tell"):
        monkeypatch.setattr(lifecycle, name, lose)
    g = graph_testbed(real_testbed)
    handle = await g.start([crawl("shops")])
    await real_testbed.until(lambda: real_testbed.store.exports.list_exports(1))
    assert g.states() == {"shops": "executing"}
    await handle.signal("wake")  # as the clock does after a while
    assert (await g.ended(handle)).state == "completed"
