"""Whatever a Temporal client sends: any bytes as input, signals, updates and queries of our
workflows.

After each, the run can be read, stopped and ended, and the run next to it is not affected.
``test_poison`` covers what is known to be poison, and its effects.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import fields
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.client import (
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.adoption import WorkflowRecord
from crawler_lifecycle.domain.run import AddTasks, RunRequest, RunSnapshot, StopRequest
from crawler_lifecycle.features.managers.domain.manager import AddJobs
from crawler_lifecycle.workflows.audit import AuditOrder
from tests.contracts.store.graphing import chain, step
from tests.support.examples import examples
from tests.support.graphing import graph_testbed
from tests.support.managing import manager_testbed, quick
from tests.support.testbed import WorkflowHarness, each_at_once
from tests.workflows.test_poison import ENCRYPTED, POISON, UNTIL_STOPPED, raw

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

#: Fields that some code reads, with any type.
FIELDS = sorted(
    {
        f.name
        for kind in (RunRequest, StopRequest, AddTasks, AuditOrder, AddJobs)
        for f in fields(kind)
    }
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.just("books")
)
JSON = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=10,
)
ENCODINGS = st.none() | st.sampled_from(
    [b"json/plain", b"binary/plain", b"binary/null", b"json/protobuf"]
)
READABLE = JSON.map(lambda value: raw(json.dumps(value).encode()))
PAYLOADS = READABLE | st.builds(raw, st.binary(max_size=64), ENCODINGS | st.binary(max_size=16))
ANY = PAYLOADS | st.sampled_from(list(POISON.values()))
#: A start that a missing key would decode waits for that key (``test_poison``); every other one
#: gets a response.
INPUTS = PAYLOADS | st.sampled_from([value for value in POISON.values() if value is not ENCRYPTED])
KNOWN = [
    "stop",
    "force_stop",
    "poll_now",
    "add_tasks",
    "status",
    "record",
    "__stack_trace",
    "__temporal_x",
]
KNOWN += ["add_job", "wake", "run_ended", "batch_ended", "retry_steps", "append_steps"]
NAMES = st.sampled_from(KNOWN) | st.text(max_size=30)
CALLS = st.sampled_from(["signal", "update", "query"])
STEPS = st.lists(st.tuples(CALLS, NAMES, st.lists(ANY, max_size=3)), max_size=8)
QUEUES = {
    names.LIFECYCLE_WORKFLOW: names.QUEUE_MAIN,
    names.EXPORT_WORKFLOW: names.QUEUE_MAIN,
    names.EVENT_WORKFLOW: names.QUEUE_MAIN,
    names.AUDIT_WORKFLOW: names.QUEUE_AUDIT,
    names.MANAGER_WORKFLOW: names.QUEUE_MAIN,
    names.GRAPH_WORKFLOW: names.QUEUE_MAIN,
    names.GRAPH_BATCH_WORKFLOW: names.QUEUE_MAIN,
    names.DUE_WORKFLOW: names.QUEUE_MAIN,
}
STARTS = st.lists(
    st.tuples(st.sampled_from(list(QUEUES)), st.lists(INPUTS, max_size=3)), max_size=2
)


async def send(handle: WorkflowHandle[Any, Any], how: str, name: str, args: list[Any]) -> None:
    """Make one call as an outsider; a refusal is correct, also because the run has ended."""
    call = {"signal": handle.signal, "update": handle.execute_update, "query": handle.query}[how]
    try:
        await call(name, args=args)
    except (WorkflowQueryFailedError, WorkflowUpdateFailedError):
        return
    except RPCError as error:
        if error.status not in (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.NOT_FOUND):
            raise


async def stopped(testbed: WorkflowHarness, handle: WorkflowHandle[Any, Any]) -> Any:
    with suppress(RPCError):  # it has ended already
        await handle.signal(names.SIGNAL_STOP, {"requested_by": "ada"})
    return await testbed.ended(handle)


def read(testbed: WorkflowHarness, run_id: int) -> None:
    """Check that every row of it can be read."""
    assert testbed.store.runs.get_run(run_id).run_id == run_id
    assert testbed.store.runs.request_of(run_id).crawler == "books"
    assert {task.run_id for task in testbed.store.tasks.list_tasks(run_id)} == {run_id}


#: Wrong input for each kind of workflow.
WRONG: list[list[Any]] = [
    ["x", 5],
    [{}, {"stage": 7, "pages": "x"}],
    [None, None, None],
    [{"fence": {}}] * 4,
]


async def test_too_many_payloads_and_wrong_ones_fail_a_start_and_block_nothing(
    testbed: WorkflowHarness,
) -> None:
    async def play(case: tuple[str, list[Any]]) -> None:
        kind, payloads = case
        name = f"testbed/wrong/{kind}/{WRONG.index(payloads)}"
        handle = await testbed.client.start_workflow(
            kind, args=payloads, id=name, task_queue=QUEUES[kind]
        )
        testbed.handles.append(handle)
        with pytest.raises(WorkflowFailureError):
            await testbed.ended(handle)

    await each_at_once(play, product(QUEUES, WRONG))
    assert testbed.store.runs.list_runs() == []


@settings(max_examples=examples(2), suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
async def test_whatever_is_sent_a_manager_keeps_its_jobs_and_stops(
    real_testbed: WorkflowHarness, steps: list[tuple[str, str, list[Any]]]
) -> None:
    real_testbed.cluster.behaviour = UNTIL_STOPPED
    number = real_testbed.store.managers.newest(limit=1)
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(2)], window=1)
    row = m.reserve(f"flow {number[0].manager_id if number else 0}")
    async with m.user_code():
        handle = await m.start(row=row)
        await real_testbed.until(lambda: len(real_testbed.cluster.alive()) == 1)
        for step in steps:
            await send(handle, *step)
        if not any(how == "signal" and name in ("stop", "force_stop") for how, name, _ in steps):
            assert len(real_testbed.cluster.alive()) == 1
            seen = await m.snapshot_where(handle, lambda s: s.live == 1)
            assert (seen.status, seen.stop, seen.error) == (None, None, None)
        result = await stopped(real_testbed, handle)
    assert (result.manager_id, result.status, result.outcome) == (
        row.manager_id,
        "FAILED",
        "cancelled",
    )
    assert real_testbed.cluster.alive() == []
    assert max(m.plan.lives) == 1


@settings(max_examples=examples(3), suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
async def test_whatever_is_sent_a_graph_keeps_its_steps_and_stops(
    real_testbed: WorkflowHarness, steps: list[tuple[str, str, list[Any]]]
) -> None:
    g = graph_testbed(real_testbed)
    g.functions.held = {path: threading.Event() for path in ("s0", "long")}
    key = f"graph {len(real_testbed.store.graphs.newest())}"
    async with g.working():
        handle = await g.start([*chain(3), step("long", timeout_s=600)], key)
        await real_testbed.until(lambda: sum(g.functions.calls.values()) == 2)
        for one in steps:
            await send(handle, *one)
        if not any(how == "signal" and name in ("stop", "force_stop") for how, name, _ in steps):
            seen = await g.snapshot_where(handle, lambda s: s.calls == 2)
            assert (seen.state, seen.stop, seen.counts["suspended"]) == ("executing", None, 2)
        result = await stopped(real_testbed, handle)
    assert (result.key, result.state) == (key, "cancelled")
    assert g.functions.calls == {"s0": 1, "long": 1}


@settings(max_examples=examples(2), suppress_health_check=list(HealthCheck))
@given(starts=STARTS, steps=STEPS)
async def test_whatever_is_sent_a_run_is_read_stopped_and_ended_and_another_notices_nothing(
    testbed: WorkflowHarness,
    starts: list[tuple[str, list[Any]]],
    steps: list[tuple[str, str, list[Any]]],
) -> None:
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle, beside = (
        await testbed.start({"crawler": "books"}),
        await testbed.start({"crawler": "books"}),
    )
    other = (await testbed.snapshot_where(beside, lambda s: s.run_id)).run_id
    strangers = []
    for number, (kind, args) in enumerate(starts):
        name = f"testbed/stranger/{testbed.count}/{number}"
        strangers.append(
            await testbed.client.start_workflow(kind, args=args, id=name, task_queue=QUEUES[kind])
        )
    testbed.handles += strangers
    for one in steps:
        await send(handle, *one)
    run_id = (await testbed.snapshot_where(handle, lambda s: s.run_id)).run_id
    assert (await handle.query(names.QUERY_RECORD, result_type=WorkflowRecord)).run_id == run_id
    read(testbed, run_id)
    result = await stopped(testbed, handle)
    assert (result.run_id, result.status, result.outcome) == (run_id, "FAILED", "cancelled")
    read(testbed, run_id)
    for stranger in strangers:
        with suppress(WorkflowFailureError):  # it reports what is wrong with its input
            await stopped(testbed, stranger)
    seen: RunSnapshot = await testbed.snapshot_where(beside, lambda s: s.polls >= 1)
    assert (seen.attempt, seen.outcome, seen.stop, seen.notes) == (1, None, None, [])
    assert testbed.store.runs.get_run(other).status == "PROCESSING"
    assert (testbed.tasks(other), testbed.store.runs.cancellations(other)) == ({0: "RUNNING"}, [])
    assert testbed.cluster.alive() == [(other, 0, 1)], "nothing else is left"
    assert (await stopped(testbed, beside)).outcome == "cancelled"
    assert [logged["requested_by"] for logged in testbed.store.runs.cancellations(other)] == ["ada"]
