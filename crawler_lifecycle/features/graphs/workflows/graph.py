"""``GraphWorkflow``: executes a graph.

1. Claim the graph's row.
2. Repeatedly advance the graph in the database (``advance_graph``), and start the picked steps.
   Functions are called in workers of the role ``user-code``. Crawls and managers are begun in
   parallel.
3. Wait for a call to return, for the end of a run, for a command, or for the time that a step waits
   for. A signal only wakes the workflow, which then reads the rows, so a lost, repeated or foreign
   signal does no harm.
4. End when every step has ended. A recorded stop cancels every step, so it leads to the end.

A call that is an activity ends with the execution that started it. Therefore a call that may take
long, and every call that starts while the history is full, has its own workflow. The execution
continues as new after the short calls have returned. Temporal does not notify it when a workflow
closes that an earlier execution started, so the execution asks Temporal from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import TypeAdapter
from temporalio import workflow
from temporalio.common import Priority, RawValue
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ActivityCancellationType, ActivityHandle, ParentClosePolicy

from crawler_lifecycle.activities.child_runs import RecordParentStop, StopRuns
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import Fenced
from crawler_lifecycle.domain.summaries import summary_of
from crawler_lifecycle.features.managers.workflows.manager_state import PASS_LEAST_S, PASS_S
from crawler_lifecycle.features.managers.workflows.owned import OwnedWorkflow
from crawler_lifecycle.workflows.calls import (
    Beside,
    Condition,
    StepInterrupted,
    WithoutSignals,
    call,
    history_full,
    may_leave,
    never,
    pause,
    reason,
)
from crawler_lifecycle.workflows.policies import config
from crawler_lifecycle.workflows.requests import invalid, read_update, refused, workflow_input
from crawler_lifecycle.workflows.state import REASON_MAX
from crawler_lifecycle.workflows.steps import publish, tell

from ..activities.batches import BatchOrder, GraphBatchActivities
from ..activities.graphs import (
    AdvanceGraph,
    BatchCall,
    ClosedBatches,
    CommandGraph,
    EndGraph,
    GraphActivities,
)
from ..domain.commands import (
    AppendSteps,
    CancelSteps,
    GraphOrder,
    GraphResult,
    GraphSnapshot,
    RetrySteps,
    StepCommand,
)
from ..domain.spec import GraphState
from .graph_state import GAP_S, LEVEL_S, GraphWork

#: The number of events after which the workflow continues as new. First the short calls must
#: return, which takes at most a minute and a half. New calls get their own workflows in the
#: meantime. A worker without the workflow in its cache replays all events, at 0.1 to 0.2 ms each.
HISTORY_MAX = 1_000

#: The maximum number of calls that have not returned, and the maximum while the history is full.
CALLS_MAX = 500
CALLS_WHEN_FULL = 50
#: Seconds until steps are picked again after their call failed.
FAILED_S = 5.0
#: The patch of November 2026: a worker of the previous build may have ignored a command that
#: arrived as a signal.
BY_SIGNAL = "commands-by-signal"
#: The maximum duration in seconds of a call in its own workflow. Each function has a shorter limit.
LONG_S = 8 * 86_400.0

C = TypeVar("C", bound=StepCommand)
_STATE = TypeAdapter(GraphWork)


class FunctionCalls:
    """The calls of functions of one graph. The numbers of calls that have returned go to the inbox
    of ``GraphWork``.
    """

    def __init__(self, work: GraphWork, beside: Beside) -> None:
        self._s = work
        self._beside = beside
        self._short: dict[int, workflow.ActivityHandle[Any]] = {}
        self._starting: set[int] = set()
        """The numbers of calls whose own workflow is about to start."""

    @property
    def count(self) -> int:
        """The number of calls that have not returned."""
        return len(self._short) + len(self._s.apart)

    def over(self) -> bool:
        """Return whether calls have returned and no further functions are expected to end soon. A
        call with its own workflow may take hours, so an advance, which is cheap, does not wait for
        it.
        """
        s = self._s
        ends = set(self._s.inbox.answered)
        return bool(ends) and not self._short and (s.took_s < GAP_S or not ends < set(s.apart))

    def ends_with_us(self) -> list[int]:
        """Return the numbers of calls that would end with this execution."""
        return [*self._short, *self._starting]

    def capacity(self, full: bool) -> int:
        """Return the number of calls that may still be started. ``full`` means that the history is
        full.
        """
        return max((CALLS_WHEN_FULL if full else CALLS_MAX) - self.count, 0)

    def begin(self, batch: BatchCall, apart: bool) -> None:
        """Start a call. The call gets its own workflow if ``apart`` is true or the call may take
        long.
        """
        s = self._s
        order = BatchOrder(self._s.fence, batch.number, batch.turn)
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
        """Start the workflow of a call and wait until it closes.

        The call's workflow also signals its end, because a later execution of the graph cannot wait
        for that workflow.
        """
        number = order.batch
        call_id = names.graph_batch_workflow_id(self._s.key, number)
        try:
            handle = await workflow.start_child_workflow(
                GraphBatchWorkflow.run,
                args=[order, workflow.info().workflow_id, pool],
                id=call_id,
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=summary_of(call_id),
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
        inbox.answered = [
            *inbox.answered,
            *(number for number in numbers if number not in inbox.answered),
        ]

    async def check_apart(self, wake: Condition) -> None:
        """Find calls whose workflow was closed without a signal, for example because a person
        terminated it.

        Temporal is asked in the first turn of a continued workflow and then every ``LEVEL_S``
        seconds. Raises ``StepInterrupted``.
        """
        s = self._s
        now = workflow.now()
        if not s.apart or (
            s.checked_at is not None and now - s.checked_at < timedelta(seconds=LEVEL_S)
        ):
            s.checked_at = s.checked_at or now
            return
        closed = await call(
            GraphActivities.closed_graph_batches, ClosedBatches(s.key, s.apart), wake=wake
        )
        s.checked_at = now
        self._answered([number for number in closed if number not in self._starting])

    def kill(self) -> None:
        """Cancel every call.

        Running functions are killed. Calls that no worker has taken end at once.
        """
        self._s.killed = True
        for handle in self._short.values():
            handle.cancel()
        for number in self._s.apart:
            workflow_id = names.graph_batch_workflow_id(self._s.key, number)
            self._beside.start(workflow.get_external_workflow_handle(workflow_id).cancel())


def _priority(order: BatchOrder) -> Priority:
    """Return the priority of a call among the calls of all graphs. Where the server supports
    fairness, the graph with the fewest calls of equal priority is next: docs/deployment.md.
    """
    return Priority(
        priority_key=order.turn, fairness_key=names.fairness_key(f"graph-{order.fence.graph_id}")
    )


def call_batch(
    order: BatchOrder, pool: str | None, seconds: float | None = None
) -> ActivityHandle[Any]:
    """Start the activity that calls functions in a pool of workers.

    A cancellation waits until the worker confirms it.
    """
    options = config(GraphBatchActivities.run_graph_batch.__name__)
    options["task_queue"] = names.functions_queue(pool)
    options["priority"] = _priority(order)
    options["cancellation_type"] = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    if seconds is not None:
        options["start_to_close_timeout"] = timedelta(seconds=seconds)
    return workflow.start_activity("run_graph_batch", order, result_type=RawValue, **options)


@workflow.defn(name=names.GRAPH_BATCH_WORKFLOW)
class GraphBatchWorkflow(WithoutSignals):
    """The workflow of one call.

    This workflow signals its end to the graph's workflow. A cancellation of this workflow kills the
    functions.
    """

    @workflow.run
    async def run(
        self, order: Any = None, graph: Any = None, pool: Any = None, *surplus: Any
    ) -> None:
        """Make the call.

        ``graph`` is the id of the graph's workflow, and ``pool`` the pool of workers, if any. The
        workflow fails only if its input is invalid.
        """
        order = workflow_input(BatchOrder, order)
        if surplus or not isinstance(graph, str) or not isinstance(pool, str | None):
            raise invalid(
                "input: give an order, the id of the graph's workflow, and a pool of workers or "
                "nothing"
            )
        workflow.set_current_details(f"call {order.batch} of {graph}, pool {pool or 'default'}")
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
            await workflow.get_external_workflow_handle(graph).signal(
                names.SIGNAL_BATCH_ENDED, order.batch
            )
        except ApplicationError as error:
            workflow.logger.warning("%s could not be notified: %s", graph, error.message)


@workflow.defn(name=names.GRAPH_WORKFLOW)
class GraphWorkflow(OwnedWorkflow[GraphWork]):
    """The workflow of one graph. It returns a ``GraphResult``, even if the graph failed."""

    @workflow.init
    def __init__(self, order: Any = None, carried: Any = None, *surplus: Any) -> None:
        self._begin(_STATE, GraphWork(), carried, surplus, "next step")
        self._calls = FunctionCalls(self._s, self._beside)

    @workflow.run
    async def run(self, order: Any = None, carried: Any = None, *surplus: Any) -> GraphResult:
        """Execute the graph to its end.

        The workflow fails only if its order is invalid or if it may not own the graph. Starters
        send only ``order``, a ``GraphOrder``.
        """
        order = workflow_input(GraphOrder, order)
        beside = (
            self._alarm.keep(never),
            self._keep_beginning(),
            self._keep_stopping(),
            self._keep_commanding(),
        )
        result = await self._keep(self._live(self._steps(order)), *beside)
        if result is None:
            self._s.checked_at = None
            workflow.continue_as_new(args=[order, self._s])
        return result

    # --- queries, updates and signals -------------------------------------------------------------

    @workflow.update(
        name=names.UPDATE_CANCEL_STEPS, description="Cancel steps (CancelSteps; all steps if empty)"
    )
    async def cancel_steps(self, order: Any = None) -> int:
        """Cancel steps and their dependents. Return how many of the steps had not ended."""
        return await self._change(self._read(CancelSteps, order))

    @workflow.update(
        name=names.UPDATE_RETRY_STEPS,
        description="Retry steps (RetrySteps; all failed steps if empty)",
    )
    async def retry_steps(self, order: Any = None) -> int:
        """Restart steps. Return their number."""
        return await self._change(self._read(RetrySteps, order))

    @workflow.update(name=names.UPDATE_APPEND_STEPS, description="Append steps (AppendSteps)")
    async def append_steps(self, order: Any = None) -> int:
        """Append steps. Return their number."""
        return await self._change(self._read(AppendSteps, order))

    @cancel_steps.validator
    def _check_cancel(self, order: Any = None) -> None:
        self._check(CancelSteps, order)

    @retry_steps.validator
    def _check_retry(self, order: Any = None) -> None:
        self._check(RetrySteps, order)

    @append_steps.validator
    def _check_append(self, order: Any = None) -> None:
        self._check(AppendSteps, order)

    @staticmethod
    def _read(kind: type[C], order: Any) -> C:
        return read_update(kind, {} if order is None else order)

    def _check(self, kind: type[StepCommand], order: Any) -> None:
        self._read(kind, order)
        if self._s.ended or self._stop_wanted():
            raise refused(
                f"graph {self._s.graph_id} is ending; wait for its end, then send the command to "
                "the gateway"
            )

    async def _change(self, order: StepCommand) -> int:
        def carry_out(request_id: str) -> Awaitable[int]:
            return call(
                GraphActivities.command_graph, CommandGraph(self._s.graph_id, request_id, order)
            )

        return await self._command(order.request_id, carry_out)

    async def _keep_commanding(self) -> None:
        """Carry out the commands that arrived as signals, one after the other."""
        s = self._s
        inbox = self._s.inbox
        while True:
            await pause(None, lambda: bool(inbox.commands) and s.attempt != 0)
            if not workflow.patched(BY_SIGNAL):
                self.note("commands that came as signals had no effect; send them to the gateway")
                inbox.commands = []
                continue
            order = CommandGraph(s.graph_id, str(workflow.uuid4()), inbox.commands[0])
            try:
                await call(GraphActivities.command_graph, order)
            except (ActivityError, ApplicationError) as error:
                self.note(f"a command had no effect: {reason(error)}")
            inbox.commands = inbox.commands[1:]
            inbox.woken = True

    @workflow.query(name=names.QUERY_STATUS, description="The graph as its workflow sees it now")
    def status(self) -> GraphSnapshot:
        """Return the state of the graph that its workflow knows."""
        return self._s.snapshot(self._calls.count)

    # --- the loop ---------------------------------------------------------------------------------

    def _left(self) -> None:
        # These calls end with this execution, and the steps that they had begun are started again.
        self._s.inbox.answered = [*self._s.inbox.answered, *self._calls.ends_with_us()]
        self._s.next_at = None

    async def _steps(self, order: GraphOrder) -> GraphResult | None:
        s = self._s
        while True:
            try:
                if await self._step(order):
                    return s.result() if s.ended else None
            except StepInterrupted:
                s.next_at = None
                continue
            except ApplicationError as error:
                if error.type != Fenced.code or not s.attempt:
                    raise
                attempt = s.attempt
                await self._open(order)
                if s.attempt == attempt:
                    raise
            publish(s)

    async def _step(self, order: GraphOrder) -> bool:
        """Carry out the next step.

        Return whether this execution is finished, because the graph has ended or continues as new.
        """
        s = self._s
        # A command may have arrived together with the end.
        if not s.attempt or (s.ended and s.inbox.woken):
            await self._open(order)
        elif s.ended and not s.parent_told:
            await tell(s.parent, names.SIGNAL_GRAPH_ENDED, s.result(), s.inbox)
            s.parent_told = True
        elif s.ended:
            await workflow.wait_condition(workflow.all_handlers_finished)
            return not s.inbox.woken
        elif self._may_leave():
            return True
        elif s.inbox.changed:
            await self._record_stop()
        elif s.state is not GraphState.EXECUTING:
            await self._end()
        else:
            await self._turn()
        return False

    def _full(self) -> bool:
        return history_full(HISTORY_MAX)

    def _may_leave(self) -> bool:
        """Return whether to continue as new now, which requires that no call would end with this
        execution.
        """
        return may_leave(HISTORY_MAX) and not self._calls.ends_with_us()

    async def _open(self, order: GraphOrder) -> None:
        s = self._s
        s.graph_id = order.graph_id
        s.owner_run_id = workflow.info().first_execution_run_id
        s.inbox.woken = False
        s.adopt(await call(GraphActivities.open_graph, self._claim(s.graph_id)))

    async def _turn(self) -> None:
        """Wait for work, advance the graph, and start the picked steps."""
        s = self._s
        woken, calls = (lambda: s.inbox.woken or bool(s.inbox.answered)), self._calls
        await self._wait(woken, lambda: s.inbox.changed or self._may_leave(), calls.over)
        s.inbox.woken = False
        s.advanced_at = workflow.now()
        if s.is_late(workflow.now()):
            self._calls.kill()
        await self._calls.check_apart(self._stop_changed)
        room = self._calls.capacity(self._full())
        order = AdvanceGraph(s.fence, list(s.inbox.answered), s.seen, room, s.ended_steps)
        control = self._stop_wanted()
        advanced = await call(
            GraphActivities.advance_graph, order, control=control, wake=self._stop_changed
        )
        s.took(advanced, order.answered, workflow.now())
        for batch in advanced.batches:
            self._calls.begin(batch, apart=self._full())

    # --- crawls and managers ----------------------------------------------------------------------

    async def _keep_beginning(self) -> None:
        """Begin crawls and managers, in parallel with everything else."""
        s = self._s
        while True:
            await pause(None, lambda: s.wanted > s.begun and not s.ended)
            wanted = s.wanted
            try:
                begun = await call(
                    GraphActivities.begin_graph_runs, s.fence, wake=self._stop_wanted
                )
            except StepInterrupted:
                s.begun = wanted
            except (ActivityError, ApplicationError) as error:
                self.note(f"runs could not be begun: {reason(error)}")
                await pause(PASS_S, lambda: s.ended)
            else:
                s.begun = s.begun if begun.more else wanted
                s.inbox.woken = s.inbox.woken or begun.refused > 0

    async def _keep_stopping(self) -> None:
        """Stop the crawls and managers of cancelled steps until they have ended."""
        s = self._s
        passes = 0
        while True:
            await pause(None, lambda: (s.ending > 0 or s.unrecorded) and not s.ended)
            passes = await self._stop_pass(passes)

    async def _stop_pass(self, passes: int) -> int:
        """Stop the runs once, and wait until runs end.

        Return the number of successive passes without a change.
        """
        s = self._s
        known = self._s.ending
        intent = self._s.inbox.stop
        try:
            left = await call(GraphActivities.stop_graph_runs, StopRuns(s.graph_id, intent))
        except (ActivityError, ApplicationError) as error:
            s.stopping = f"runs could not be stopped: {reason(error)}"[:REASON_MAX]
        else:
            s.stopping = f"{left.live} runs that are asked to end" + (
                f"; {left.trouble}" if left.trouble else ""
            )
            if left.more:
                return passes

        def changed() -> bool:
            return not (0 < s.ending <= known or s.unrecorded) or s.inbox.stop != intent

        s.waiting = s.stopping
        await self._await_proof(passes, changed)
        s.inbox.woken = True
        return 0 if changed() else passes + 1

    # --- stop and end -----------------------------------------------------------------------------

    async def _record_stop(self) -> None:
        """Record the stop, which cancels every step. A forced stop also kills functions."""
        s = self._s
        intent = s.inbox.stop
        assert intent is not None
        recorded = await self._recorded(
            GraphActivities.record_graph_stop, RecordParentStop(s.graph_id, intent)
        )
        # The row cannot be written yet, but executing steps must end.
        if recorded.unreadable is not None:
            s.unrecorded = True
            self._calls.kill()
            await pause(PASS_S, never, "a row that can be written")
            s.inbox.changed = True
            return
        s.unrecorded = False
        if recorded.stop is None:
            self._too_late()
        s.inbox.recorded(recorded.stop, False)
        s.stop_at, s.next_at = s.stop_at or workflow.now(), None
        if intent.force:
            self._calls.kill()

    async def _end(self) -> None:
        """Record the end, unless a step was retried or a run became live in the meantime."""
        s = self._s
        order = EndGraph(s.fence, s.why())
        ended = await self._ended(GraphActivities.end_graph, order, self._stop_changed)
        if ended is None:
            s.state = GraphState.EXECUTING
            s.next_at = None
            await pause(PASS_LEAST_S, self._stop_changed, "runs that became live")
            return
        s.state = ended.state
        s.cause = ended.cause
        s.waiting = None
        s.ended = s.inbox.closed = True
