"""Commands and stops of a graph, in every way: the request is on record, and nothing executes at
the end.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.features.graphs.domain.commands import GraphOrder, RetrySteps
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec, StepState
from tests.contracts.store.graphing import approval, chain, group, step
from tests.support.fakes.cluster import Behaviour
from tests.support.graphing import GraphTestbed, graph_testbed
from tests.support.testbed import WorkflowHarness

pytestmark = pytest.mark.asyncio(loop_scope="session")


def holding(testbed: WorkflowHarness, *paths: str) -> GraphTestbed:
    g = graph_testbed(testbed)
    g.functions.held = {path: threading.Event() for path in paths}
    return g


async def stop_by(g: GraphTestbed, handle: WorkflowHandle[Any, Any], how: str) -> None:
    if how == "row":
        g.testbed.store.graphs.record_graph_stop(
            1, StopIntent(utc_now(), requested_by="ada", reason="enough")
        )
        await handle.signal("wake")
    elif how == "cancel":
        await handle.cancel()
    elif how == "unreadable":
        await handle.signal("stop", args=[b"\xff\x00", 5])
    else:
        await handle.signal(how, {"requested_by": "ada", "reason": "enough"})


@pytest.mark.troubles
@pytest.mark.parametrize("how", ["stop", "unreadable", "cancel", "row"])
async def test_a_stop_cancels_every_step_and_waits_for_what_executes(
    real_testbed: WorkflowHarness, how: str
) -> None:
    g = holding(real_testbed, "s1", "long")
    async with g.working():
        handle = await g.start([*chain(4), step("long", timeout_s=600)])
        await real_testbed.until(lambda: g.functions.calls["s1"] and g.functions.calls["long"])
        await stop_by(g, handle, how)
        result = await g.ended(handle)
    assert result.state == "cancelled"
    states = {
        "s0": "completed",
        "s1": "cancelled",
        "s2": "cancelled",
        "s3": "cancelled",
        "long": "cancelled",
    }
    assert g.states() == states
    assert not any(one.ending for one in g.steps().values())
    assert g.functions.calls == {"s0": 1, "s1": 1, "long": 1}
    if how in ("stop", "row"):
        assert (result.cause, g.row().cause) == ("Stopped by ada: enough",) * 2
    assert g.functions.killed == []


@pytest.mark.troubles
async def test_by_force_functions_are_killed(
    real_testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = holding(real_testbed, "s0", "long")
    monkeypatch.setattr(
        real_testbed.store.graphs, "cancelled", lambda *_: set()
    )  # they do not listen
    async with g.working():
        handle = await g.start([*chain(2), step("long", timeout_s=600)])
        await real_testbed.until(lambda: g.functions.calls["s0"] and g.functions.calls["long"])
        await handle.signal("stop")
        await g.snapshot_where(handle, lambda s: s.stop is not None and not s.stop.force)
        await real_testbed.until(lambda: g.row().stop is not None)
        assert g.steps()["s0"].ending
        await handle.signal("force_stop")
        assert (await g.ended(handle)).state == "cancelled"
    assert sorted(g.functions.killed) == ["long", "s0"]


@pytest.mark.troubles
async def test_a_stop_ends_what_executes_of_a_graph_whose_row_another_hand_spoilt(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = Behaviour(executes=None)
    g = holding(real_testbed, "s0")

    def write(options: str) -> None:
        with real_testbed.store.database.writing() as conn:
            conn.execute(text("UPDATE graph SET options = :options"), {"options": options})

    async with g.working():
        handle = await g.start([*chain(2), StepSpec("shops", StepKind.CRAWL, {"crawler": "quick"})])
        await real_testbed.until(lambda: g.functions.calls["s0"] and real_testbed.cluster.alive())
        write('{"odd": 1}')
        await handle.signal("stop", {"requested_by": "ada"})
        await real_testbed.until(
            lambda: real_testbed.cluster.alive() == [] and g.functions.killed == ["s0"]
        )
        seen = await g.snapshot_where(handle, lambda s: s.notes)
        assert "not on record yet" in seen.notes[0]
        write("{}")
        result = await g.ended(handle)
    assert (result.state, result.cause) == ("cancelled", "Stopped by ada")


async def test_a_stop_that_was_there_first_begins_nothing(real_testbed: WorkflowHarness) -> None:
    g = graph_testbed(real_testbed)
    row = g.made(chain(3))
    real_testbed.store.graphs.record_graph_stop(row.graph_id, StopIntent(utc_now()))
    result = await g.ended(await g.begin(row))
    assert (result.state, result.cause, g.functions.batches) == ("cancelled", "Stopped", [])


@pytest.mark.troubles
async def test_without_a_worker_a_graph_waits_in_sight_and_stops_all_the_same(
    real_testbed: WorkflowHarness,
) -> None:
    g = graph_testbed(real_testbed)
    handle = await g.start(chain(3))
    snapshot = await g.snapshot_where(handle, lambda s: s.calls == 1)
    assert "s0" in str(snapshot.waiting)
    await handle.signal("stop", {"requested_by": "ada"})
    assert (await g.ended(handle)).cause == "Stopped by ada"


@pytest.mark.troubles
async def test_cancel_takes_what_follows_along_and_leaves_the_rest(
    real_testbed: WorkflowHarness,
) -> None:
    g = holding(real_testbed, "a", "b")
    steps = [
        step("a"),
        step("after a", "a"),
        group("in"),
        step("in/x", "y"),
        step("in/y"),
        step("b"),
        step("c", "b"),
    ]
    async with g.working():
        handle = await g.start(steps)
        await real_testbed.until(lambda: g.functions.calls["a"] and g.functions.calls["b"])
        for _ in range(2):  # a repetition is harmless
            order = {
                "names": ["a"],
                "requested_by": "ada",
                "reason": "wrong shop",
                "request_id": "c1",
            }
            assert await handle.execute_update("cancel_steps", order) == 1
        await real_testbed.until(lambda: not g.steps()["a"].ending)
        assert g.steps()["a"].reason == "cancelled by ada: wrong shop"
        g.functions.held["b"].set()
        result = await g.ended(handle)
    assert result.state == "cancelled"
    assert (g.states()["after a"], g.states()["c"], g.states()["in"]) == (
        "cancelled",
        "completed",
        "completed",
    )


@pytest.mark.troubles
async def test_retry_and_append_while_it_is_alive(real_testbed: WorkflowHarness) -> None:
    g = holding(real_testbed, "slow")
    bad = iter([StepState.DISCARDED])
    g.functions.acts = lambda work: next(bad, None) if work.path == "bad" else None
    async with g.working():
        handle = await g.start([step("slow"), step("bad"), step("then", "bad")], check_deps=False)
        await real_testbed.until(lambda: g.states()["then"] == "cancelled")
        assert await handle.execute_update("retry_steps", {"names": ["bad"]}) == 2
        await real_testbed.until(lambda: g.states()["then"] == "completed")
        page = {
            "steps": [
                {"path": "more", "kind": "function", "job": {"call": "shop:work"}, "deps": ["then"]}
            ]
        }
        assert await handle.execute_update("append_steps", page) == 1
        await real_testbed.until(lambda: g.states()["more"] == "completed")
        for update, order in (
            ("retry_steps", {"names": ["nobody"]}),
            ("retry_steps", {"names": []}),
            ("cancel_steps", {"names": ["a"], "more": 1}),
            ("cancel_steps", b"\xff"),
            ("append_steps", None),
            (
                "append_steps",
                {"steps": [{"path": "more", "kind": "function", "job": {"call": "shop:work"}}]},
            ),
            ("append_steps", {"steps": [{"path": "x", "kind": "dance"}]}),
        ):
            with pytest.raises(WorkflowUpdateFailedError) as failed:
                await handle.execute_update(update, order)
            assert failed.value.cause.type == "InvalidRequest", (update, order)
        g.functions.held["slow"].set()
        assert (await g.ended(handle)).state == "completed"
    assert g.functions.calls == {"slow": 1, "bad": 2, "then": 1, "more": 1}


async def test_an_approval_is_decided_by_a_signal_or_ends_with_a_stop(
    real_testbed: WorkflowHarness,
) -> None:
    g = graph_testbed(real_testbed)
    async with g.working():
        handle = await g.start([approval("ask"), step("then", "ask"), approval("again", "then")])
        waiting = "it is waiting for an approval: crawlctl graph approve nightly"
        await g.snapshot_where(handle, lambda s: waiting in str(s.waiting))
        for payload in (
            None,
            b"\xff",
            [1],
            {"step": "nobody"},
            {"step": "then"},
            {"step": "ask", "more": 1},
        ):
            await handle.signal("approve_step", payload)
        await handle.signal("approve_step", {"step": "ask", "note": "go", "requested_by": "ada"})
        await real_testbed.until(
            lambda: g.states() == {"ask": "completed", "then": "completed", "again": "executing"}
        )
        notes = (await g.snapshot_where(handle, lambda s: s.notes)).notes
        assert sum("dropped" in note for note in notes) == 4, notes
        assert sum("a command had no effect" in note for note in notes) == 2, notes
        assert g.steps()["ask"].reason == "approved by ada: go"
        await handle.signal("stop")
        assert (await g.ended(handle)).state == "cancelled"
        command = RetrySteps().apply
        assert real_testbed.store.graphs.command(1, "again", command) == 1
        handle = await g.begin(g.row())
        await real_testbed.until(lambda: g.states()["again"] == "executing")
        await handle.signal("approve_step", {"step": "again", "approved": False})
        assert (await g.ended(handle)).cause == "Step 'again' was discarded: rejected by somebody"
    assert g.functions.calls == {"then": 1}


@pytest.mark.troubles
async def test_a_graph_that_has_ended_goes_on_under_the_same_id(
    real_testbed: WorkflowHarness,
) -> None:
    g = graph_testbed(
        real_testbed,
        lambda work: StepState.DISCARDED if work.attempt == 1 and work.path == "s1" else None,
    )
    async with g.working():
        handle = await g.start(chain(3))
        assert (await g.ended(handle)).state == "discarded"
        assert real_testbed.store.graphs.command(1, "again", RetrySteps().apply) == 2
        row = g.row()
        assert (row.state, row.owner_run_id) == ("executing", None)
        result = await g.ended(await g.begin(row))
    assert (result.state, result.attempt, g.row().attempt) == ("completed", 2, 2)
    assert g.functions.calls == {"s0": 1, "s1": 2, "s2": 1}


@pytest.mark.troubles
async def test_a_command_that_comes_with_the_end_is_carried_out(
    real_testbed: WorkflowHarness,
) -> None:
    g = graph_testbed(
        real_testbed,
        lambda work: StepState.DISCARDED if work.attempt == 1 and work.path == "s1" else None,
    )
    end, again = real_testbed.store.graphs.end_graph, iter([True])

    def end_then_retry(*args: Any) -> Any:
        row = end(*args)
        if next(again, False):
            assert real_testbed.store.graphs.command(1, "again", RetrySteps().apply) == 2
            real_testbed.parts.directory.begin_for(GraphOrder(1), names.graph_workflow_id(row.key))
        return row

    real_testbed.store.graphs.end_graph = end_then_retry
    async with g.working():
        handle = await g.start(chain(3))
        result = await g.ended(handle)
    assert (result.state, result.attempt) == ("completed", 2)
    assert len(await real_testbed.chain(handle)) == 1, "the same execution goes on"


@pytest.mark.troubles
async def test_what_a_lost_workflow_had_begun_ends_and_begins_again(
    real_testbed: WorkflowHarness,
) -> None:
    g = holding(real_testbed, "s1", "long")
    async with g.working():
        handle = await g.start([*chain(3), step("long", timeout_s=600)])
        await real_testbed.until(lambda: g.functions.calls["s1"] and g.functions.calls["long"])
        await handle.terminate("by hand")
        again = await g.begin(g.row())
        await real_testbed.until(
            lambda: (g.functions.calls["s1"], g.functions.calls["long"]) == (2, 2)
        )
        assert len(g.functions.killed) + g.functions.left == 2, "the former calls are over"
        for event in g.functions.held.values():
            event.set()
        result = await g.ended(again)
    assert (result.state, result.attempt) == ("completed", 2)
    assert g.functions.calls == {"s0": 1, "s1": 2, "s2": 1, "long": 2}
    assert set(g.states().values()) == {"completed"}
