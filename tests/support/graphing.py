"""A testbed for graphs: the real workflow, activities and store, with functions that a test writes.

``Scripted`` replaces ``run_graph_batch``: it begins and records steps through the same port.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowHandle
from temporalio.worker import Worker

from crawler_lifecycle.activities.shared import alive
from crawler_lifecycle.domain import names
from crawler_lifecycle.features.graphs.activities.batches import BatchOrder
from crawler_lifecycle.features.graphs.domain.commands import GraphResult, GraphSnapshot
from crawler_lifecycle.features.graphs.domain.engine import StepEnd
from crawler_lifecycle.features.graphs.domain.pages import encode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import (
    GraphOptions,
    GraphSpec,
    StepSpec,
    StepState,
)
from crawler_lifecycle.features.graphs.ports import (
    ExecutionEnd,
    GraphRow,
    NewGraph,
    StepRow,
    StepWork,
)
from crawler_lifecycle.temporal.interceptors import HeartbeatInterceptor
from tests.support.managing import QUICK
from tests.support.testbed import CRAWLERS, WorkflowHarness, longer_and_longer


@dataclass
class Scripted:
    """A user's functions: each takes a moment, and does what ``acts`` says."""

    testbed: WorkflowHarness
    acts: Callable[[StepWork], StepState | None] = lambda work: None
    """Runs in the activity, and says how the function ends; ``None``: it completes."""
    held: dict[str, threading.Event] = field(default_factory=dict)
    """Steps that do not end before their event is set, or they are cancelled."""
    calls: Counter[str] = field(default_factory=Counter)
    """Executions by path."""
    batches: list[list[str]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    left: int = 0
    """Executions that ended because they were told to."""

    @activity.defn(name="run_graph_batch", no_thread_cancel_exception=True)
    def run_graph_batch(self, order: BatchOrder) -> None:
        graphs, done = self.testbed.store.graphs, list[ExecutionEnd]()
        work = graphs.batch(order.fence, order.batch)
        self.batches.append([one.path for one in work])
        for one in work:
            began = graphs.record(order.fence, done, [one])
            done = []
            if began:
                self.calls[one.path] += 1
                done = [self._execute(order, one)]
        graphs.record(order.fence, done)

    def _execute(self, order: BatchOrder, work: StepWork) -> ExecutionEnd:
        held = self.held.get(work.path)
        while held is not None and not held.wait(0.05):
            if self.testbed.store.graphs.cancelled(order.fence, [work.number]):
                self.left += 1
                break
            try:
                alive()
            except BaseException:
                self.killed.append(work.path)
                raise
        state = self.acts(work) or StepState.COMPLETED
        soon = self.testbed.cluster.clock() + timedelta(seconds=0.5)
        later = soon if state in (StepState.RETRYABLE, StepState.SCHEDULED) else None
        why = None if state is StepState.COMPLETED else "it said so"
        end = StepEnd(work.number, work.attempt, state, reason=why, not_before=later)
        return ExecutionEnd(end, [b"{}"] if state is StepState.COMPLETED else None, 2, error=why)


@dataclass
class GraphTestbed:
    """A testbed with graphs."""

    testbed: WorkflowHarness
    functions: Scripted

    def made(self, steps: Sequence[StepSpec], key: str = "nightly", **fields: Any) -> GraphRow:
        """Create the row of an executing graph, as the gateway does."""
        parent, context = fields.pop("parent", None), fields.pop("context", {})
        spec = GraphSpec(steps, GraphOptions(**fields), context)
        graphs, pages = self.testbed.store.graphs, encode_pages(spec)
        new = NewGraph(
            key,
            fingerprint(spec),
            len(pages),
            options=spec.options,
            parent=parent,
            requested_by="ada",
        )
        row, _ = graphs.reserve_graph(new)
        for page, data in enumerate(pages):
            graphs.add_graph_page(row.graph_id, page, data)
        made: GraphRow = graphs.make_graph(row.graph_id)
        return made

    async def start(
        self, steps: Sequence[StepSpec], key: str = "nightly", **fields: Any
    ) -> WorkflowHandle[Any, Any]:
        """Create a graph and start its workflow."""
        return await self.begin(self.made(steps, key, **fields))

    async def begin(self, row: GraphRow) -> WorkflowHandle[Any, Any]:
        handle: WorkflowHandle[Any, Any] = await self.testbed.client.start_workflow(
            names.GRAPH_WORKFLOW,
            {"graph_id": row.graph_id},
            id=names.graph_workflow_id(row.key),
            task_queue=names.QUEUE_MAIN,
            result_type=GraphResult,
        )
        self.testbed.handles.append(handle)
        return handle

    async def ended(self, handle: WorkflowHandle[Any, Any]) -> GraphResult:
        """Return the result of the whole chain of executions."""
        latest: WorkflowHandle[Any, Any] = self.testbed.client.get_workflow_handle(
            handle.id, result_type=GraphResult
        )
        result: GraphResult = await self.testbed.ended(latest)
        return result

    async def snapshot_where(
        self, handle: WorkflowHandle[Any, Any], condition: Callable[[GraphSnapshot], Any]
    ) -> GraphSnapshot:
        end, latest, pauses = (
            time.monotonic() + 60,
            self.testbed.client.get_workflow_handle(handle.id),
            longer_and_longer(),
        )
        while True:
            snapshot: GraphSnapshot = await latest.query(
                names.QUERY_STATUS, result_type=GraphSnapshot
            )
            if condition(snapshot):
                return snapshot
            assert time.monotonic() < end, snapshot
            await asyncio.sleep(next(pauses))

    def row(self, graph_id: int = 1) -> GraphRow:
        row: GraphRow = self.testbed.store.graphs.get_graph(graph_id)
        return row

    def steps(self, graph_id: int = 1) -> dict[str, StepRow]:
        return {step.path: step for step in self.testbed.store.graphs.list_steps(graph_id)}

    def states(self, graph_id: int = 1) -> dict[str, str]:
        return {path: str(step.state) for path, step in self.steps(graph_id).items()}

    @asynccontextmanager
    async def working(self, *pools: str | None, threads: int = 4) -> AsyncIterator[None]:
        """Workers that call functions of these pools, by default of the common one."""
        async with AsyncExitStack() as stack:
            for pool in pools or (None,):
                worker = Worker(
                    self.testbed.client,
                    task_queue=names.functions_queue(pool),
                    activities=[self.functions.run_graph_batch],
                    activity_executor=stack.enter_context(ThreadPoolExecutor(threads)),
                    max_concurrent_activities=threads,
                    max_concurrent_activity_task_polls=2,
                    interceptors=[HeartbeatInterceptor(["run_graph_batch"], lambda _: None)],
                    max_heartbeat_throttle_interval=timedelta(seconds=0.3),
                )
                await stack.enter_async_context(worker)
            yield


def graph_testbed(
    testbed: WorkflowHarness, acts: Callable[[StepWork], StepState | None] = lambda work: None
) -> GraphTestbed:
    """The testbed, with the crawler ``quick``."""
    testbed.scheduler.catalogue.crawlers = {**CRAWLERS, "quick": QUICK}
    return GraphTestbed(testbed, Scripted(testbed, acts))
