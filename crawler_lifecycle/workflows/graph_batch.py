"""``GraphBatchWorkflow``: one call of functions that is not to end with an execution of its graph's workflow."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.workflow import ActivityCancellationType, ActivityHandle

from crawler_lifecycle.activities.graph_batches import BatchOrder, GraphBatchActivities
from crawler_lifecycle.domain import names

from .calls import WithoutSignals, reason
from .policies import config
from .requests import invalid, read_input

#: Longest time of one call that may take long, in seconds: each function has a limit of its own below that.
LONG_S = 8 * 86_400.0

_ORDER = TypeAdapter(BatchOrder)


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
