"""Calls of functions that a graph has under way: short ones as activities, others in workflows of their own.

A call ends with the execution that started it, and whoever waits for it never knows how a workflow closed which a
former execution started: that is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ParentClosePolicy

from crawler_lifecycle.activities.graph_batches import BatchOrder
from crawler_lifecycle.activities.graphs import BatchCall, ClosedBatches, GraphActivities
from crawler_lifecycle.domain import names

from .calls import call, look_away, reason
from .graph_batch import GraphBatchWorkflow, call_batch
from .graph_state import LEVEL_S, GraphWork

#: Calls that may be under way; and those that may begin while the history is full.
CALLS_MAX, CALLS_WHEN_FULL = 500, 50
#: Seconds until steps are picked again whose call failed on the way.
FAILED_S = 5.0


class Beside:
    """Coroutines that run beside the loop of a workflow. What comes of them is not told."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself would forget them

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it until it ends, or the execution does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(look_away)
        task.add_done_callback(self._tasks.discard)


class FunctionCalls:
    """Calls of one graph; their numbers are in ``GraphWork`` as soon as they have answered."""

    def __init__(self, work: GraphWork, beside: Beside) -> None:
        self._s, self._beside = work, beside
        self._short: dict[int, workflow.ActivityHandle[Any]] = {}
        self._starting: set[int] = set()
        """Calls whose own workflow is about to start."""

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
