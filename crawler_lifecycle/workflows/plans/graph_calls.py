"""Calls of functions that a graph has under way: short ones as activities, others in workflows of their own.

A call ends with the execution that started it, and whoever waits for it never knows how a workflow closed which a
former execution started: that is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ActivityCancellationType, ActivityHandle, ParentClosePolicy

from crawler_lifecycle.activities.graphs.batches import BatchOrder, GraphBatchActivities
from crawler_lifecycle.activities.graphs.graphs import BatchCall, ClosedBatches, GraphActivities
from crawler_lifecycle.domain import names
from crawler_lifecycle.workflows.calls import Beside, WithoutSignals, call, reason
from crawler_lifecycle.workflows.policies import config
from crawler_lifecycle.workflows.requests import invalid, read_input

from .graph_state import LEVEL_S, GraphWork

#: Calls that may be under way; and those that may begin while the history is full.
CALLS_MAX, CALLS_WHEN_FULL = 500, 50
#: Seconds until steps are picked again whose call failed on the way.
FAILED_S = 5.0
#: Longest time of one call that may take long, in seconds: each function has a limit of its own below that.
LONG_S = 8 * 86_400.0

_ORDER = TypeAdapter(BatchOrder)


class FunctionCalls:
    """Calls of one graph; their numbers are in ``GraphWork`` as soon as they have answered."""

    def __init__(self, work: GraphWork, beside: Beside) -> None:
        self._s, self._beside = work, beside
        self._short: dict[int, workflow.ActivityHandle[Any]] = {}
        self._starting: set[int] = set()
        """Calls whose own workflow is about to start."""
        self.over = False
        """Whether the last short call has answered since the last step forward: no more ends of functions come soon."""

    @property
    def count(self) -> int:
        """Calls that have not answered."""
        return len(self._short) + len(self._s.apart)

    def ends_with_us(self) -> list[int]:
        """Calls that would end with this execution."""
        return [*self._short, *self._starting]

    def room(self, full: bool) -> int:
        """How many more may begin."""
        return max((CALLS_WHEN_FULL if full else CALLS_MAX) - self.count, 0)

    def begin(self, batch: BatchCall, apart: bool) -> None:
        """Begin a call; ``apart``: in a workflow of its own, as everything that may take long."""
        s, order = self._s, BatchOrder(self._s.fence, batch.number)
        if apart or batch.long:
            s.apart = [*s.apart, batch.number]
            self._starting.add(batch.number)
            self._beside.start(self._wait_apart(order, batch.queue))
        else:
            self._short[batch.number] = call_batch(order, batch.queue)
            self._beside.start(self._wait(batch.number))

    async def _wait(self, number: int) -> None:
        try:
            await self._short[number]
        except ActivityError as error:
            if not is_cancelled_exception(error):
                self._s.inbox.note(f"call {number} of functions failed: {reason(error)}")
                await workflow.sleep(FAILED_S)
        del self._short[number]
        self.over = not self._short
        self._answered([number])

    async def _wait_apart(self, order: BatchOrder, pool: str | None) -> None:
        """The workflow tells its end by a signal, whichever execution goes on then; how it closed, this one alone
        knows."""
        number = order.batch
        try:
            handle = await workflow.start_child_workflow(
                GraphBatchWorkflow.run,
                args=[order, workflow.info().workflow_id, pool],
                id=names.graph_batch_workflow_id(self._s.key, number),
                parent_close_policy=ParentClosePolicy.ABANDON,
            )
        except WorkflowAlreadyStartedError:
            return
        finally:
            self._starting.discard(number)
        with contextlib.suppress(ChildWorkflowError):
            await handle
        self._answered([number] if number in self._s.apart else [])

    def _answered(self, numbers: list[int]) -> None:
        inbox = self._s.inbox
        inbox.answered = [*inbox.answered, *(number for number in numbers if number not in inbox.answered)]

    async def look_after(self, wake: Callable[[], bool]) -> None:
        """Now and then, and first of all in a new execution: find calls whose workflow was ended by another hand, so
        that no signal comes. Raises ``Interrupted``."""
        s, now = self._s, workflow.now()
        if not s.apart or (s.checked_at is not None and now - s.checked_at < timedelta(seconds=LEVEL_S)):
            s.checked_at = s.checked_at or now
            return
        closed = await call(GraphActivities.closed_graph_batches, ClosedBatches(s.key, s.apart), wake=wake)
        s.checked_at = now
        self._answered([number for number in closed if number not in self._starting])

    def kill(self) -> None:
        """Cancel every call: functions are killed, and calls that no worker has are over."""
        self._s.killed = True
        for handle in self._short.values():
            handle.cancel()
        for number in self._s.apart:
            workflow_id = names.graph_batch_workflow_id(self._s.key, number)
            self._beside.start(workflow.get_external_workflow_handle(workflow_id).cancel())


def call_batch(order: BatchOrder, pool: str | None, seconds: float | None = None) -> ActivityHandle[Any]:
    """Call functions in a pool of workers. Where that is cancelled, it has ended when the worker says so."""
    options = config(GraphBatchActivities.run_graph_batch.__name__)
    options["task_queue"] = names.functions_queue(pool)
    options["cancellation_type"] = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    if seconds is not None:
        options["start_to_close_timeout"] = timedelta(seconds=seconds)
    return workflow.start_activity("run_graph_batch", order, result_type=RawValue, **options)


@workflow.defn(name=names.GRAPH_BATCH_WORKFLOW)
class GraphBatchWorkflow(WithoutSignals):
    """Calls one batch, then tells the graph, whose workflow may be another execution by now. Cancelled, it kills."""

    @workflow.run
    async def run(self, order: Any = None, graph: Any = None, pool: Any = None, *surplus: Any) -> None:
        """``graph``: the id of the graph's workflow; ``pool``: of workers. Fails only for an order that is invalid."""
        order = read_input(_ORDER, "order", order)
        if surplus or not isinstance(graph, str) or not isinstance(pool, str | None):
            raise invalid("input: give an order, the id of the graph's workflow, and a pool of workers or nothing")
        handle = call_batch(order, pool, LONG_S)
        while not handle.done():
            try:
                await workflow.wait([handle])
            except asyncio.CancelledError:
                handle.cancel()
        try:
            await handle
        except ActivityError as error:
            workflow.logger.warning("batch %d: %s", order.batch, reason(error))
        try:
            await workflow.get_external_workflow_handle(graph).signal(names.SIGNAL_BATCH_ENDED, order.batch)
        except ApplicationError as error:
            workflow.logger.warning("%s could not be told: %s", graph, error.message)
