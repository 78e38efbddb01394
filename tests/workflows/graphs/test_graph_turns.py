"""Graphs in their workflow: every step follows its dependencies, once, whatever happens to calls
and signals.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain import names
from crawler_lifecycle.features.graphs.domain.commands import GraphResult
from crawler_lifecycle.features.graphs.domain.spec import StepState
from crawler_lifecycle.features.graphs.ports import StepWork
from crawler_lifecycle.features.graphs.workflows import graph
from crawler_lifecycle.workflows import calls
from tests.contracts.store.graphing import chain, group, step
from tests.support.graphing import GraphTestbed, graph_testbed
from tests.support.testbed import WorkflowHarness, open_testbed
from tests.workflows.impossible_starts import fail_at_once

pytestmark = pytest.mark.asyncio(loop_scope="session")


def once_each(g: GraphTestbed) -> bool:
    """Return whether every function ran exactly once."""
    return set(g.functions.calls.values()) == {1} and set(g.states().values()) == {"completed"}


async def test_a_chain_takes_one_call(real_testbed: WorkflowHarness) -> None:
    g = graph_testbed(real_testbed)
    parent = await real_testbed.start({"crawler": "books"}, id="parent of a graph")
    async with g.working():
        handle = await g.start(chain(30), parent=parent.id)
        result = await g.ended(handle)
    assert (result.state, result.cause, g.row().state) == ("completed", None, "completed")
    assert g.functions.batches == [[f"s{n}" for n in range(30)]]
    assert once_each(g)
    found = (await handle.describe()).typed_search_attributes
    assert {pair.key.name: pair.value for pair in found if pair.key.name.startswith("Crawl")} == {
        "CrawlName": "nightly",
        "CrawlFlow": "nightly",
        "CrawlStatus": "completed",
        "CrawlParent": parent.id,
    }
    told = await real_testbed.snapshot_where(parent, lambda s: s.notes)
    assert "graph_ended" in told.notes[0]
    await parent.signal("force_stop")
    await real_testbed.ended(parent)


@pytest.mark.troubles
async def test_many_at_once_then_one(real_testbed: WorkflowHarness) -> None:
    g = graph_testbed(real_testbed)
    many = [step(f"many/{n}") for n in range(150)]
    async with g.working():
        result = await g.ended(
            await g.start([group("many"), *many, step("last", "many"), group("none", "last")])
        )
    assert result.state == "completed"
    assert g.functions.batches[-1] == ["last"]
    assert set(g.functions.calls.values()) == {1}


@pytest.mark.troubles
async def test_a_failure_is_tried_again_after_its_time_and_a_last_one_cancels_what_follows(
    real_testbed: WorkflowHarness,
) -> None:
    def acts(work: StepWork) -> StepState | None:
        if work.path == "shaky" and work.attempt == 1:
            return StepState.RETRYABLE
        return StepState.DISCARDED if work.path == "bad" else None

    g = graph_testbed(real_testbed, acts)
    steps = [
        step("shaky", max_attempts=3),
        step("fine", "shaky"),
        step("bad", "shaky"),
        step("never", "bad"),
    ]
    async with g.working():
        result = await g.ended(
            await g.start([*steps, step("anyway", "bad", ignore_discarded=True)])
        )
    assert (result.state, result.cause) == ("discarded", "Step 'bad' was discarded: it said so")
    assert g.states() == {
        "shaky": "completed",
        "fine": "completed",
        "bad": "discarded",
        "never": "cancelled",
        "anyway": "completed",
    }
    assert g.functions.calls == {"shaky": 2, "fine": 1, "bad": 1, "anyway": 1}


@pytest.mark.troubles
async def test_long_steps_have_workflows_of_their_own_and_pools_their_workers(
    real_testbed: WorkflowHarness,
) -> None:
    g = graph_testbed(real_testbed)
    g.functions.held["long"] = threading.Event()
    steps = [
        step("long", timeout_s=3600, priority=9),
        step("short", priority=2),
        step("gpu", "short", queue="gpu"),
        step("end", "long", "gpu"),
    ]
    async with g.working(None, "gpu"):
        handle = await g.start(steps)
        await real_testbed.until(lambda: g.states()["gpu"] == "completed")
        call = real_testbed.client.get_workflow_handle(names.graph_batch_workflow_id("nightly", 2))
        found = await call.describe()
        call._first_execution_run_id = found.run_id  # for the replay
        real_testbed.handles.append(call)
        assert g.states()["long"] == "executing"
        g.functions.held["long"].set()
        assert (await g.ended(handle)).state == "completed"
    assert once_each(g)
    assert await turns(handle) == [(2, "graph-1"), (1, "graph-1"), (1, "graph-1")]
    assert await turns(call) == [(5, "graph-1")]


async def turns(handle: WorkflowHandle[Any, Any]) -> list[tuple[int, str]]:
    """Return the priorities of its function calls, and the turn that each uses."""
    events = (await handle.fetch_history()).events
    scheduled = [one.activity_task_scheduled_event_attributes for one in events]
    calls = [one.priority for one in scheduled if one.activity_type.name == "run_graph_batch"]
    return [(one.priority_key, one.fairness_key) for one in calls]


@pytest.mark.troubles
async def test_a_call_that_died_begins_again_what_it_had_begun(
    real_testbed: WorkflowHarness,
) -> None:
    g, deaths = graph_testbed(real_testbed), iter([True])

    def acts(work: StepWork) -> StepState | None:
        if work.path == "s1" and next(deaths, False):
            raise RuntimeError("the worker died")
        return None

    g.functions.acts = acts
    async with g.working():
        result = await g.ended(await g.start(chain(3)))
    assert result.state == "completed"
    assert g.functions.calls == {"s0": 1, "s1": 2, "s2": 1}
    assert {path: one.attempt for path, one in g.steps().items()} == {"s0": 1, "s1": 2, "s2": 1}


@pytest.mark.troubles
async def test_an_answer_that_was_lost_after_its_commit_starts_nothing_twice(
    real_testbed: WorkflowHarness,
) -> None:
    g, losses = graph_testbed(real_testbed), iter([True, True])
    change = real_testbed.store.graphs.change

    def lose(*args: Any) -> Any:
        answer = change(*args)
        if next(losses, False):
            raise ConnectionError("the answer was lost")
        return answer

    real_testbed.store.graphs.change = lose
    async with g.working():
        assert (
            await g.ended(await g.start([*chain(2), step("far", timeout_s=600)]))
        ).state == "completed"
    assert once_each(g)


@pytest.mark.troubles
async def test_lost_doubled_foreign_and_unreadable_signals_change_nothing(
    real_testbed: WorkflowHarness,
) -> None:
    g = graph_testbed(real_testbed)
    g.functions.held["s1"] = threading.Event()
    async with g.working():
        handle = await g.start(chain(3))
        await real_testbed.until(lambda: g.functions.calls["s1"])
        for payload in ({"run_id": 4711}, b"\xff\x00", [1, 2], None, 77):
            for name in ("batch_ended", "run_ended", "wake", "dance"):
                await handle.signal(name, payload)
        await g.snapshot_where(handle, lambda s: s.notes)
        g.functions.held["s1"].set()
        assert (await g.ended(handle)).state == "completed"
    assert once_each(g)


async def _is_open(handle: WorkflowHandle[Any, Any]) -> bool:
    try:
        return (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False


@pytest.mark.troubles
async def test_a_call_whose_workflow_somebody_ended_is_made_again(
    real_testbed: WorkflowHarness,
) -> None:
    g = graph_testbed(real_testbed)
    handle = await g.start([step("long", timeout_s=3600)])
    await g.snapshot_where(handle, lambda s: s.calls == 1)
    call = real_testbed.client.get_workflow_handle(names.graph_batch_workflow_id("nightly", 1))
    # It is counted before it exists, and other tests had calls of this name.
    for _ in range(1200):
        if await _is_open(call):
            break
        await asyncio.sleep(0.05)
    await call.terminate("by hand")
    async with g.working():
        assert (await g.ended(handle)).state == "completed"
    assert once_each(g)


async def test_a_start_that_cannot_be_fails_at_once(real_testbed: WorkflowHarness) -> None:
    g = graph_testbed(real_testbed)
    g.made(chain(1))
    await fail_at_once(real_testbed, names.GRAPH_WORKFLOW, GraphResult, "graph_id", "graph/nightly")
    assert g.row().owner_run_id is None


@pytest.fixture
def forgetful(
    unhurried: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> WorkflowEnvironment:
    """Let executions of graphs continue as new after a few steps."""
    monkeypatch.setattr(graph, "HISTORY_MAX", 40)
    return unhurried


@pytest.mark.troubles
async def test_continuing_as_new_loses_nothing_and_interrupts_nothing(
    forgetful: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with open_testbed(forgetful.client, tmp_path, clock=utc_now) as testbed:
        g = graph_testbed(testbed)
        g.functions.held["slow"] = threading.Event()
        wide = [step(f"w{n}") for n in range(8)]
        far = [
            step(f"x{n}", f"x{n - 1}" if n else "w0", queue="other" if n % 2 else None)
            for n in range(12)
        ]
        long = [step(f"l{n}", f"x{4 * n}", timeout_s=600) for n in range(3)]
        async with g.working(None, "other"):
            handle = await g.start([step("slow", timeout_s=900), *wide, *far, *long])
            await testbed.until(
                lambda: all(
                    state == "completed" for path, state in g.states().items() if path != "slow"
                )
            )
            g.functions.held["slow"].set()
            assert (await g.ended(handle)).state == "completed"
        assert once_each(g)
        assert len(await testbed.chain(handle)) > 2


@pytest.mark.troubles
async def test_while_the_history_is_full_nothing_waits(
    forgetful: WorkflowEnvironment, tmp_path: Path
) -> None:
    """A short function that hangs keeps this execution from ending; whatever becomes ready
    meanwhile begins.
    """
    async with open_testbed(forgetful.client, tmp_path, clock=utc_now) as testbed:
        g = graph_testbed(testbed)
        g.functions.held["hangs"] = threading.Event()
        far = [
            step(f"x{n}", f"x{n - 1}" if n else "first", queue="other" if n % 2 else None)
            for n in range(10)
        ]
        async with g.working(None, "other"):
            handle = await g.start([step("hangs"), step("first"), *far])
            await testbed.until(lambda: g.states()["x9"] == "completed")
            assert g.states()["hangs"] == "executing"
            assert len(await testbed.chain(handle)) == 1
            g.functions.held["hangs"].set()
            assert (await g.ended(handle)).state == "completed"
        assert once_each(g)


@pytest.mark.troubles
async def test_a_flooded_graph_leaves_at_once_and_makes_its_calls_again(
    unhurried: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "HISTORY_MOST", 100)
    async with open_testbed(unhurried.client, tmp_path, clock=utc_now) as testbed:
        g = graph_testbed(testbed)
        g.functions.held = {path: threading.Event() for path in ("short", "long")}
        async with g.working():
            handle = await g.start(
                [step("short"), step("long", timeout_s=600), step("end", "short", "long")]
            )
            latest = testbed.client.get_workflow_handle(handle.id)
            while g.functions.calls["short"] < 2:
                await latest.signal("wake")
                await g.snapshot_where(handle, lambda s: True)
            for event in g.functions.held.values():
                event.set()
            assert (await g.ended(handle)).state == "completed"
        assert g.functions.calls["long"] == g.functions.calls["end"] == 1, (
            "what has a workflow of its own goes on"
        )
        assert len(await testbed.chain(handle)) > 1
