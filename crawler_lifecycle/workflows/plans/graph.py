"""``GraphWorkflow``: keeps a graph going.

1. Claim the graph's row.
2. In turns: one step forward in the database (``advance_graph``), then what it says is started: calls of functions in
   workers of the role ``plans``; crawls and managers, which are begun beside, as a manager begins its runs.
3. Wait until something wakes it: a call that answered, a run that ended, a command, or the time that a step waits for.
   Signals only wake: what happened is read from the rows, so a signal that is lost, doubled or foreign changes nothing.
4. The end, when every step has ended. A stop is put on record, which cancels every step, and leads to it.

A call ends with the execution that started it. So what may take long, and everything that starts while the history is
full, has a workflow of its own, and the execution continues as new when the short calls have answered.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from pydantic import TypeAdapter
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from crawler_lifecycle.activities.graphs.graphs import (
    AdvanceGraph,
    CommandGraph,
    EndGraph,
    GraphActivities,
    OpenGraph,
    StopGraph,
)
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import Fenced
from crawler_lifecycle.domain.graph.commands import (
    AppendSteps,
    CancelSteps,
    GraphOrder,
    GraphResult,
    GraphSnapshot,
    RetrySteps,
)
from crawler_lifecycle.domain.graph.spec import GraphState
from crawler_lifecycle.workflows.calls import call, pause, reason
from crawler_lifecycle.workflows.leaving import Interrupted, MustLeave, history_full, may_leave
from crawler_lifecycle.workflows.requests import read_command, read_order
from crawler_lifecycle.workflows.state import REASON_MAX
from crawler_lifecycle.workflows.steps import publish, tell

from .graph_calls import FunctionCalls
from .graph_state import GraphWork
from .manager_state import PASS_LEAST_S, PASS_S
from .owned import OwnedWorkflow, refused

#: Events after which an execution goes on as another one as soon as its short calls have answered, which takes them
#: a minute and a half at most: what is begun meanwhile has workflows of its own. A worker that does not remember it
#: replays them all, some 0.1 to 0.2 ms each.
HISTORY_MAX = 1_000

_STATE = TypeAdapter(GraphWork)


@workflow.defn(name=names.GRAPH_WORKFLOW)
class GraphWorkflow(OwnedWorkflow[GraphWork]):
    """One graph. Returns a ``GraphResult`` however the graph ended."""

    @workflow.init
    def __init__(self, order: Any = None, carried: Any = None, *surplus: Any) -> None:
        self._begin(_STATE, GraphWork(), carried, surplus, "next step")
        self._calls = FunctionCalls(self._s, self._beside)

    @workflow.run
    async def run(self, order: Any = None, carried: Any = None, *surplus: Any) -> GraphResult:
        """Keep the graph going to its end. Fails only for an order that is invalid or a graph it may not own.

        ``order`` is a ``GraphOrder`` and all that is sent.
        """
        order = read_order(GraphOrder, order)
        beside = (self._alarm.keep(lambda: False), self._keep_beginning(), self._keep_stopping())
        result = await self._keep(self._live(order), *beside)
        if result is None:
            self._s.checked_at = None
            workflow.continue_as_new(args=[order, self._s])
        return result

    # --- from outside ----------------------------------------------------------------------------------------------

    @workflow.update(name=names.UPDATE_CANCEL_STEPS, description="Cancel steps (CancelSteps; nothing: all)")
    async def cancel_steps(self, order: Any = None) -> int:
        """Cancel steps and what depends on them; how many had not ended."""
        return await self._change(read_command(CancelSteps, order))

    @workflow.update(
        name=names.UPDATE_RETRY_STEPS, description="Let steps begin anew (RetrySteps; nothing: all failed)"
    )
    async def retry_steps(self, order: Any = None) -> int:
        """Let steps begin anew; how many."""
        return await self._change(read_command(RetrySteps, order))

    @workflow.update(name=names.UPDATE_APPEND_STEPS, description="Append steps (AppendSteps)")
    async def append_steps(self, order: Any = None) -> int:
        """Append steps; how many."""
        return await self._change(read_command(AppendSteps, order))

    @cancel_steps.validator
    def _check_cancel(self, order: Any = None) -> None:
        self._check(CancelSteps, order)

    @retry_steps.validator
    def _check_retry(self, order: Any = None) -> None:
        self._check(RetrySteps, order)

    @append_steps.validator
    def _check_append(self, order: Any = None) -> None:
        self._check(AppendSteps, order)

    def _check(self, kind: type[CancelSteps | RetrySteps | AppendSteps], order: Any) -> None:
        read_command(kind, order)
        if self._s.ended or self._stop_wanted():
            raise refused(f"graph {self._s.graph_id} ends; wait for its end, and send the command to the gateway")

    async def _change(self, order: CancelSteps | RetrySteps | AppendSteps) -> int:
        def carry_out(request_id: str) -> Awaitable[int]:
            return call(GraphActivities.command_graph, CommandGraph(self._s.graph_id, request_id, order))

        return await self._command(order.request_id, carry_out)

    @workflow.query(name=names.QUERY_STATUS, description="The graph as its workflow sees it now")
    def status(self) -> GraphSnapshot:
        """The graph as its workflow sees it now."""
        return self._s.snapshot(self._calls.count)

    # --- the loop --------------------------------------------------------------------------------------------------

    async def _live(self, order: GraphOrder) -> GraphResult | None:
        """Step by step to the result; ``None`` asks for continue-as-new."""
        s = self._s
        try:
            return await self._steps(order)
        except MustLeave:
            # Calls end with this execution: what they had begun begins again.
            s.inbox.answered = [*s.inbox.answered, *self._calls.ends_with_us()]
            s.next_at = None
            await workflow.wait_condition(workflow.all_handlers_finished)
            return None

    async def _steps(self, order: GraphOrder) -> GraphResult | None:
        s = self._s
        while True:
            try:
                if not s.attempt or (s.ended and s.inbox.woken):  # a command may have come with the end
                    await self._open(order)
                elif s.ended and not s.parent_told:
                    await tell(s.parent, names.SIGNAL_GRAPH_ENDED, s.result(), s.inbox)
                    s.parent_told = True
                elif s.ended:
                    await workflow.wait_condition(workflow.all_handlers_finished)
                    if not s.inbox.woken:
                        return s.result()
                elif self._may_leave():
                    return None
                elif s.inbox.changed:
                    await self._record_stop()
                elif s.state is not GraphState.EXECUTING:
                    await self._end()
                else:
                    await self._turn()
            except Interrupted:
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

    def _full(self) -> bool:
        return history_full(HISTORY_MAX)

    def _may_leave(self) -> bool:
        """Whether to continue as new now: no call ends by that."""
        return may_leave(HISTORY_MAX) and not self._calls.ends_with_us()

    async def _open(self, order: GraphOrder) -> None:
        s = self._s
        s.graph_id, s.owner_run_id = order.graph_id, workflow.info().first_execution_run_id
        s.inbox.woken = False
        s.adopt(await call(GraphActivities.open_graph, OpenGraph(s.graph_id, self._owner())))

    async def _turn(self) -> None:
        """Rest until something is to be done; then one step forward, and what it says is started."""
        s = self._s
        woken, calls = (lambda: s.inbox.woken or bool(s.inbox.answered)), self._calls
        await self._wait(woken, lambda: s.inbox.changed or self._may_leave(), lambda: calls.over)
        await pause(s.least_left(workflow.now()), lambda: s.inbox.changed, "more ends")
        calls.over = False
        s.inbox.woken, s.advanced_at = False, workflow.now()
        if s.is_late(workflow.now()):
            self._calls.kill()
        await self._calls.look_after(self._stop_changed)
        order = AdvanceGraph(s.fence, list(s.inbox.answered), s.seen, self._calls.room(self._full()))
        control = self._stop_wanted()
        advanced = await call(GraphActivities.advance_graph, order, control=control, wake=self._stop_changed)
        s.took(advanced, order.answered, workflow.now())
        for batch in advanced.batches:
            self._calls.begin(batch, apart=self._full())

    # --- crawls and managers ---------------------------------------------------------------------------------------

    async def _keep_beginning(self) -> None:
        """Begin crawls and managers, beside everything else."""
        s = self._s
        while True:
            await pause(None, lambda: s.wanted > s.begun and not s.ended)
            wanted = s.wanted
            try:
                begun = await call(GraphActivities.begin_graph_runs, s.fence, wake=self._stop_wanted)
            except Interrupted:
                s.begun = wanted
            except (ActivityError, ApplicationError) as error:
                self.note(f"runs could not be begun: {reason(error)}")
                await pause(PASS_S, lambda: s.ended)
            else:
                s.begun = s.begun if begun.more else wanted
                s.inbox.woken = s.inbox.woken or begun.refused > 0

    async def _keep_stopping(self) -> None:
        """Stop the crawls and managers of cancelled steps until they have ended."""
        s, passes = self._s, 0
        while True:
            await pause(None, lambda: (s.ending > 0 or s.unrecorded) and not s.ended)
            passes = await self._stop_pass(passes)

    async def _stop_pass(self, passes: int) -> int:
        """One pass, and the wait for what comes of it; how many were in vain."""
        s, known, intent = self._s, self._s.ending, self._s.inbox.stop
        try:
            left = await call(GraphActivities.stop_graph_runs, StopGraph(s.graph_id, intent))
        except (ActivityError, ApplicationError) as error:
            s.stopping = f"runs could not be stopped: {reason(error)}"[:REASON_MAX]
        else:
            s.stopping = f"{left.live} runs that are asked to end" + (f"; {left.trouble}" if left.trouble else "")
            if left.more:
                return passes

        def changed() -> bool:
            return not (0 < s.ending <= known or s.unrecorded) or s.inbox.stop != intent

        s.waiting = s.stopping
        await self._await_proof(passes, changed)
        s.inbox.woken = True
        return 0 if changed() else passes + 1

    # --- stop and end ----------------------------------------------------------------------------------------------

    async def _record_stop(self) -> None:
        """Put the stop on record, which cancels every step; by force, functions are killed as well."""
        s = self._s
        intent = s.inbox.stop
        assert intent is not None
        told = await self._recorded(GraphActivities.record_graph_stop, StopGraph(s.graph_id, intent))
        if told.unreadable is not None:  # what executes ends all the same
            s.unrecorded = True
            self._calls.kill()
            await pause(PASS_S, lambda: False, "a row that can be written")
            s.inbox.changed = True
            return
        s.unrecorded = False
        if told.stop is None:
            self._too_late()
        s.inbox.recorded(told.stop, False)
        s.stop_at, s.next_at = s.stop_at or workflow.now(), None
        if intent.force:
            self._calls.kill()

    async def _end(self) -> None:
        """Put the end on record, unless a step was opened again, or a run came to life, meanwhile."""
        s = self._s
        order = EndGraph(s.fence, s.why())
        ended = await self._ended(GraphActivities.end_graph, order, self._stop_changed)
        if ended is None:
            s.state, s.next_at = GraphState.EXECUTING, None
            await pause(PASS_LEAST_S, self._stop_changed, "runs that came to life")
            return
        s.state, s.cause, s.waiting = ended.state, ended.cause, None
        s.ended = s.inbox.closed = True
