"""``CrawlManagerWorkflow``: runs the cycles of a manager and begins the runs that they pick.

1. Claim the manager's row.
2. Repeatedly run one cycle of the class in a worker of the role ``user-code``, and then begin the
  runs that it picked.
3. Wait for the end of a run, for a command, or for the time that the class requested. A signal only
  wakes the workflow, and the next cycle reads the rows, so a lost, repeated or foreign signal does
  no harm.
4. End because of the class or a stop. After a stop, first make sure that no run is live.

Each step does one thing and returns. The next step depends only on the state, so continue-as-new is
possible between any two steps.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from pydantic import TypeAdapter
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from crawler_lifecycle.activities.child_runs import RecordParentStop, StopRuns
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import Fenced, InvalidRequest, NotInThisState
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.workflows.calls import (
    NotTaken,
    StepInterrupted,
    call,
    may_leave,
    never,
    pause,
    reason,
)
from crawler_lifecycle.workflows.requests import read_update, refused, workflow_input
from crawler_lifecycle.workflows.state import REASON_MAX
from crawler_lifecycle.workflows.steps import publish, tell

from ..activities.cycles import CycleAnswer, CycleOrder, ManagerActivities
from ..activities.managing import (
    AddManagerJobs,
    EndManager,
    ManagerEnded,
    ManagingActivities,
    NoteManager,
)
from ..domain.manager import AddJobs, ManagerOrder, ManagerResult, ManagerSnapshot
from .manager_state import PASS_LEAST_S, ManagerState
from .owned import OwnedWorkflow

#: Seconds within which a worker must take a cycle. If the worker with the object does not take the
#: cycle, any worker may take it. If no worker takes it, the waiting reason shows this.
TAKEN_S = 10.0
#: The number of events after which the workflow continues as new. This number is low, because
#: managers live long, and a worker without the workflow in its cache replays all events.
HISTORY_MAX = 150
#: The maximum time for ``on_close`` after a stop, in seconds, including the time to rebuild the
#: object.
CLOSE_S = 180.0
NO_WORKER = (
    f"no worker of the role user-code took the next cycle within {TAKEN_S:g} s: there is none, "
    "or all are busy with other managers; start one more (LIFECYCLE_WORKER__ROLES), with "
    "the module of this class in LIFECYCLE_USER_CODE__MODULES"
)

_STATE = TypeAdapter(ManagerState)


@workflow.defn(name=names.MANAGER_WORKFLOW)
class CrawlManagerWorkflow(OwnedWorkflow[ManagerState]):
    """The workflow of one attempt of a manager.

    It returns a ``ManagerResult``, even if the manager failed.
    """

    @workflow.init
    def __init__(self, order: Any = None, carried: Any = None, *surplus: Any) -> None:
        self._begin(_STATE, ManagerState(), carried, surplus, "next cycle")

    @workflow.run
    async def run(self, order: Any = None, carried: Any = None, *surplus: Any) -> ManagerResult:
        """Run the manager to its end. The workflow fails only if its order is invalid or if it may
        not own the manager. Starters send only ``order``, a ``ManagerOrder``.
        """
        order = workflow_input(ManagerOrder, order)
        beside = (self._alarm.keep(lambda: self._s.outcome is not None), self._keep_reading())
        result = await self._keep(self._live(self._steps(order)), *beside)
        if result is None:
            workflow.continue_as_new(args=[order, self._s])
        return result

    @workflow.update(
        name=names.UPDATE_ADD_JOB, description="Jobs for this manager ({jobs, request_id, seal})"
    )
    async def add_job(self, page: Any = None) -> int:
        """Add jobs, with the manager's options as defaults. Return the number of new jobs."""
        s = self._s
        order = read_update(AddJobs, page)

        def add(key: str) -> Awaitable[int]:
            jobs = AddManagerJobs(s.manager_id, key, order.jobs, order.seal)
            return call(ManagingActivities.add_manager_jobs, jobs)

        return await self._command(order.request_id, add)

    @add_job.validator
    def _check_jobs(self, page: Any = None) -> None:
        read_update(AddJobs, page)
        if self._s.outcome is not None or self._s.over is not None or self._stop_wanted():
            raise refused(
                f"manager {self._s.manager_id} is ending and takes no more jobs; wait for its end, "
                "then start it again"
            )

    @workflow.query(name=names.QUERY_STATUS, description="The manager as its workflow sees it now")
    def status(self) -> ManagerSnapshot:
        """Return the state of the manager that its workflow knows."""
        return self._s.snapshot()

    def _left(self) -> None:
        self._s.inbox.woken = True  # the next cycle begins at once and handles the interrupted work

    async def _steps(self, order: ManagerOrder) -> ManagerResult | None:
        s = self._s
        while s.outcome is None:
            try:
                if not s.attempt:
                    await self._open(order)
                elif self._may_leave():
                    return None
                elif self._stop_wanted():
                    await self._stop()
                elif s.over is not None:
                    await self._end(s.over)
                else:
                    await self._turn()
            except StepInterrupted:
                continue
            publish(s)
        await workflow.wait_condition(workflow.all_handlers_finished)
        if not s.parent_told:
            await tell(s.parent, names.SIGNAL_MANAGER_ENDED, s.result(), s.inbox)
            s.parent_told = True
        return s.result()

    async def _open(self, order: ManagerOrder) -> None:
        s = self._s
        s.manager_id = order.manager_id
        s.owner_run_id = workflow.info().first_execution_run_id
        s.adopt(await call(ManagingActivities.open_manager, self._claim(s.manager_id)))
        if s.status.terminal:
            self._ended_before()

    # --- turns ------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Wait for work, run one cycle, and begin the runs that the cycle picked."""
        s = self._s
        await self._wait(lambda: s.inbox.woken, lambda: self._stop_wanted() or self._may_leave())
        s.inbox.woken = False
        s.cycle_at = workflow.now()
        try:
            answer = await self._cycle()
        except ApplicationError as error:
            if error.type in (Fenced.code, NotInThisState.code):
                await self._own_still()
                return
            if error.type != InvalidRequest.code:
                raise
            s.over = ManagerEnded(
                RunStatus.FAILED, "failed", f"The decision of its class is invalid: {error.message}"
            )
            return
        s.took(answer, workflow.now())
        publish(s)
        # If a cycle died after its commit, its retry reports no picks, although jobs may have been
        # picked.
        more = answer.picked > 0 or answer.over
        while more:
            begun = await call(
                ManagingActivities.begin_manager_runs, s.fence, wake=self._stop_wanted
            )
            more = begun.more
            s.inbox.woken = s.inbox.woken or begun.refused > 0
        if answer.over:
            s.ends_by(answer)

    async def _own_still(self) -> None:
        """Read the row after a refused cycle. If the manager is at another attempt, raise
        ``ApplicationError``. If it has ended, note that. Otherwise another process has the object,
        so the next cycle may use any worker.
        """
        s = self._s
        row = await call(
            ManagingActivities.open_manager, self._claim(s.manager_id), wake=self._stop_wanted
        )
        if row.attempt != s.attempt:
            text = (
                f"manager {s.manager_id} is at attempt {row.attempt}, and this is attempt "
                f"{s.attempt}"
            )
            raise ApplicationError(text, type=Fenced.code, non_retryable=True)
        if row.status.terminal:
            s.status = row.status
            self._ended_before()
        s.queue = None
        s.idle = True
        s.inbox.woken = True

    def _ended_before(self) -> None:
        """Adopt the recorded end. Before this execution has ended, a recorded end exists only if a
        person has reset the workflow.
        """
        s = self._s
        s.inbox.stop, s.inbox.closed, s.over = None, True, ManagerEnded(s.status, "", "")

    async def _keep_reading(self) -> None:
        """Read the row after every wake-up, in parallel with all other work, because the row may
        contain a stop.
        """
        s = self._s
        while s.outcome is None:
            await workflow.wait_condition(lambda: s.attempt != 0 and s.inbox.asked > 0)
            asked = s.inbox.asked
            try:
                row = await call(
                    ManagingActivities.open_manager,
                    self._claim(s.manager_id),
                    control=True,
                    summary="a command",
                )
            except (ActivityError, ApplicationError) as error:
                self.note(f"its row could not be read: {reason(error)}")
            else:
                s.inbox.recorded(row.stop, row.leave)
            s.inbox.asked -= asked
            s.inbox.woken = True

    def _may_leave(self) -> bool:
        return may_leave(HISTORY_MAX)

    async def _cycle(self, *, closing: bool = False) -> CycleAnswer:
        """Run one cycle in the worker with the class's object, or else in any worker, which
        rebuilds the object.

        If no worker takes the cycle, the waiting reason shows this, and the cycle waits. If
        ``closing`` is true, ``NotTaken`` is raised instead.
        """
        s = self._s
        order = CycleOrder(s.manager_id, s.attempt, s.owner_run_id, closing)
        wake, seconds = (lambda: s.inbox.changed, CLOSE_S) if closing else (self._stop_wanted, None)

        async def ask(queue: str | None, taken_s: float | None) -> CycleAnswer:
            method = ManagerActivities.run_manager_cycle
            return await call(
                method, order, wake=wake, seconds=seconds, queue=queue, taken_s=taken_s
            )

        if s.inbox.moved:
            s.queue = None
            s.inbox.moved = False
        if s.queue is not None:
            try:
                return await ask(s.queue, TAKEN_S)
            except NotTaken:
                s.queue = None
        try:
            return await ask(None, TAKEN_S)
        except NotTaken:
            if closing:
                raise
        s.waiting = NO_WORKER
        publish(s)
        await call(
            ManagingActivities.note_manager, NoteManager(s.fence, NO_WORKER, s.error), wake=wake
        )
        return await ask(None, None)

    # --- stop -------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Carry out the next step of a stop: record it, stop the runs, wait until none is live,
        call ``on_close``, or end.
        """
        s = self._s
        if s.inbox.changed:
            await self._record_stop(must=False)
        elif not s.inbox.leave and not s.gone:
            await self._stop_runs()
        elif s.unrecorded is not None:
            await self._record_stop(must=True)
        elif not s.closed:
            await self._close()
        else:
            await self._end(s.stopped_by())

    async def _record_stop(self, *, must: bool) -> None:
        """Record the stop. If ``must`` is true, all other steps are done, so this method waits for
        the repair of an unreadable row.
        """
        s = self._s
        intent = s.inbox.stop
        assert intent is not None
        order = RecordParentStop(s.manager_id, intent, s.inbox.leave, must)
        wake = self._stop_changed if must else never
        recorded = await self._recorded(ManagingActivities.record_manager_stop, order, wake)
        s.unrecorded = recorded.unreadable
        if recorded.status.terminal:
            self._too_late()
            s.over = s.over or ManagerEnded(recorded.status, "", "")
            return
        s.inbox.recorded(recorded.stop, recorded.leave)
        s.status = RunStatus.STOPPING
        s.waiting = None

    async def _stop_runs(self) -> None:
        """Stop the live runs, and then wait until a run ends, but only for a limited time."""
        s = self._s
        intent = self._s.inbox.stop
        assert intent is not None
        s.status = RunStatus.STOPPING
        s.inbox.woken = False
        order = StopRuns(s.manager_id, intent)
        left = await call(ManagingActivities.stop_manager_runs, order, wake=self._stop_changed)
        s.live = left.live
        s.gone = not left.live
        s.waiting = f"{left.live} runs that are asked to end" + (
            f"; {left.trouble}" if left.trouble else ""
        )
        if s.gone or left.more:
            return
        publish(s)
        s.passes += 1
        await self._await_proof(
            s.passes - 1, self._stop_changed, lambda: s.inbox.woken or self._may_leave()
        )

    async def _close(self) -> None:
        """Call ``on_close`` after a stop, if a cycle has run before and a worker of the role
        ``user-code`` is available.
        """
        s = self._s
        s.waiting = "on_close"
        try:
            if s.cycles:
                s.unclosed = (await self._cycle(closing=True)).unclosed
        except NotTaken:
            s.unclosed = "on_close was not called: there is no worker of the role user-code"
        except StepInterrupted:
            s.unclosed = "on_close was not called: it took too long, or another stop came"
        except (ActivityError, ApplicationError) as error:
            s.unclosed = f"on_close was not called: {reason(error)[:REASON_MAX]}"
        s.closed = True

    # --- end --------------------------------------------------------------------------------------

    async def _end(self, verdict: ManagerEnded) -> None:
        """Record the end. If a run has become live in the meantime, stop the runs again."""
        s = self._s
        stopped = self._stop_wanted()
        leave = s.inbox.leave if stopped else True
        order = EndManager(s.fence, verdict.status, verdict.outcome, verdict.cause[:1000], leave)
        wake = self._stop_changed if stopped else self._stop_wanted
        ended = await self._ended(ManagingActivities.end_manager, order, wake)
        if ended is None:
            s.gone = False
            s.passes = 0
            await pause(PASS_LEAST_S, wake, "runs that became live")
            return
        s.status = ended.status
        s.outcome = ended.outcome
        s.cause = ended.cause
        s.waiting = None
        s.inbox.closed = True
