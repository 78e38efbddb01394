"""``CrawlerLifecycleWorkflow``: a crawl from request to archive.

1. Initiation: the run records itself (or is claimed again) and registers its workflow.
2. Deployment: its tasks go to the scheduler service; the main task is watched until it has started.
3. Reconciliation: look at the cluster at 1, 2, 3, 5, 8, 15 … minutes until no task is alive.
4. Completion: verdict, export signal, archive.

A stop interrupts 2 and 3 at any point and leads, by proof that nothing runs any more, to 4. Every step below does one
thing and returns; which step comes next depends on nothing but the state, so continue-as-new may come between any two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.activities.cancellation import CancellationActivities, RecordStop
from crawler_lifecycle.activities.completion import CompletionActivities
from crawler_lifecycle.activities.deployment import (
    DEPLOYMENT_PAGE,
    Deploy,
    DeploymentActivities,
    DeployReport,
    MainJob,
    Requeue,
    Started,
)
from crawler_lifecycle.activities.initiation import AddToRun, AddWorkflowId, CreateHistory, InitiationActivities
from crawler_lifecycle.activities.reconciliation import ReconciliationActivities
from crawler_lifecycle.domain import cadence, names
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.run import (
    RunRequest,
    RunResult,
    RunSnapshot,
    RunStatus,
    Stage,
    StopIntent,
    TasksAdded,
)
from crawler_lifecycle.ports import Owner

from .calls import Interrupted, call, history_full, pause
from .requests import read_carried, read_request, read_tasks
from .state import REASON_MAX, RunState
from .steps import ask_to_end, courtesy, gap, gap_left, look_round, publish, tell_parent, wait_for_look

A = TypeVar("A")
R = TypeVar("R")

#: Seconds that ``look_now`` leaves a deployment call before it is made again: by then it is void, or waits for a retry.
#: A deployment is full of changes that wake the run, and interrupting it for each would only make it slower.
DEPLOYMENT_HOLD_S = 30.0
#: Seconds between looks for the proof that a deployment call, to which nobody answered, has brought nothing.
QUEUED_PROOF_S = 5.0


@workflow.defn(name=names.LIFECYCLE_WORKFLOW)
class CrawlerLifecycleWorkflow:
    """One attempt of one run. Returns a ``RunResult`` however the crawl ended."""

    @workflow.init
    def __init__(self, request: Any = None, carried: Any = None, *surplus: Any) -> None:
        self._s, self._refused = RunState(), None
        try:
            self._s = read_carried(carried, surplus) or self._s
        except ApplicationError as error:
            if workflow.info().continued_run_id:
                # Our own state: a build that reads it can still come, and until then the run must not fail.
                raise RuntimeError(error.message) from error
            self._refused = error

    @workflow.run
    async def run(self, request: Any = None, carried: Any = None, *surplus: Any) -> RunResult:
        """Take the run through its stages. Fails only for a request that is invalid or a run it may not own.

        ``request`` is a ``RunRequest`` and all that an outside starter sends.
        """
        if self._refused is not None:
            raise self._refused
        life = asyncio.create_task(self._live(read_request(request)))
        while not life.done():
            try:
                await workflow.wait([life])
            except asyncio.CancelledError:
                self._cancelled()
        result = life.result()
        if result is None:
            again = RunRequest(crawler=self._s.crawler, run_id=self._s.run_id)
            workflow.continue_as_new(args=[again, self._s])
        return result

    @workflow.signal(dynamic=True, description="stop, force_stop (StopRequest or nothing) and look_now")
    def _on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        self._s.inbox.signal(name, args, workflow.payload_converter(), workflow.now(), str(workflow.uuid4()))

    @workflow.update(
        name=names.UPDATE_ADD_TASKS, description="A page of child tasks for this run ({tasks, request_id})"
    )
    async def add_tasks(self, page: Any = None) -> TasksAdded:
        """Append tasks to the live run; they are deployed after the look that follows at once."""
        s, order = self._s, read_tasks(page)
        await workflow.wait_condition(lambda: s.run_id != 0)
        update = workflow.current_update_info()
        key = order.request_id or (update.id if update is not None else str(workflow.uuid4()))
        added = await call(InitiationActivities.add_tasks, AddToRun(s.fence, key, order.tasks))
        s.multi, s.inbox.look_now = True, True
        return added

    @add_tasks.validator
    def _check_tasks(self, page: Any = None) -> None:
        read_tasks(page)
        if self._s.outcome is not None:
            text = f"run {self._s.run_id} has ended; resume it or start another run"
            raise ApplicationError(text, type=NotInThisState.code, non_retryable=True)
        if self._s.stop_wanted():
            text = f"run {self._s.run_id} was asked to stop and takes no more tasks; wait for its end and resume it"
            raise ApplicationError(text, type=NotInThisState.code, non_retryable=True)

    @workflow.query(name=names.QUERY_STATUS, description="The run as its workflow sees it now")
    def status(self) -> RunSnapshot:
        """The run as its workflow sees it now."""
        return self._s.snapshot()

    def note(self, text: str) -> None:
        """Show people a remark, in the snapshot and in Temporal's UI."""
        self._s.inbox.note(text)

    def _cancelled(self) -> None:
        """Temporal's cancel is a graceful stop."""
        reason = (workflow.cancellation_reason() or "")[:REASON_MAX] or None
        intent = StopIntent(workflow.now(), requested_by="temporal cancel", reason=reason)
        self._s.inbox.want_stop(intent, f"cancel/{workflow.info().run_id}")

    async def _live(self, request: RunRequest) -> RunResult | None:
        """Step by step to the result; ``None`` asks for continue-as-new."""
        s = self._s
        while s.outcome is None:
            if s.stage is not Stage.COMPLETION:  # told together with the verdict, which comes at once
                publish(s)
            try:
                if s.stage is Stage.INITIATION:
                    await self._initiate(request)
                elif s.stage is Stage.COMPLETION:
                    await self._judge()
                elif history_full() and workflow.all_handlers_finished():
                    return None  # while an update hangs, looks and stops go on where they are
                elif s.inbox.stop is not None:
                    await self._stop()
                elif s.resumed and not s.looked_back:
                    await self._look_back()
                elif s.stage is Stage.DEPLOYMENT:
                    await self._deploy()
                else:
                    await self._reconcile()
            except Interrupted:
                continue
        publish(s)
        return await self._complete()

    # --- 1. initiation ---------------------------------------------------------------------------------------------

    async def _initiate(self, request: RunRequest) -> None:
        s, info = self._s, workflow.info()
        owner = Owner(info.workflow_id, info.first_execution_run_id)
        order = CreateHistory(request, request.request_id or info.first_execution_run_id, owner, s.repair)
        s.adopt(await call(InitiationActivities.create_history_id, order), owner.first_run_id)
        registration = AddWorkflowId(s.run_id, s.attempt, info.workflow_id)
        await call(InitiationActivities.add_workflow_id, registration)
        s.stage = Stage.DEPLOYMENT

    async def _look_back(self) -> None:
        """Resume: what ended meanwhile gets its end, what executes is adopted, the rest is queued anew."""
        s = self._s
        await look_round(s, "sweep" if s.repair else "resume", gap(s), gap(s), resumed=True)
        if s.inbox.stop is not None:
            return
        s.counts = await call(DeploymentActivities.requeue_ended_tasks, Requeue(s.fence, s.rerun), wake=s.stop_wanted)
        s.looked_back = True

    # --- 2. deployment ---------------------------------------------------------------------------------------------

    async def _deploy(self) -> None:
        s = self._s
        if s.start_deadline is None and s.limits.start_timeout_s is not None:
            s.start_deadline = workflow.now() + timedelta(seconds=s.limits.start_timeout_s)
        if s.resumed and not s.counts.alive:
            s.stage = Stage.COMPLETION
            return
        first = (
            DeploymentActivities.run_scheduled_crawler
            if s.trigger == "scheduled"
            else DeploymentActivities.run_onetime_crawler
        )
        s.waiting_for = "the scheduler service"
        report = await self._deploy_wave(first)
        while report.offered >= DEPLOYMENT_PAGE and not report.deferred and s.room:
            report = await self._deploy_wave(DeploymentActivities.deploy_queued_tasks)
        if not s.counts.alive:
            s.stage = Stage.COMPLETION
            await courtesy(s, DeploymentActivities.signal_pusher_started)
            return
        await self._await_start()

    async def _deploy_wave(self, method: Callable[[DeploymentActivities, Deploy], DeployReport]) -> DeployReport:
        s = self._s
        order = Deploy(s.fence, s.max_parallel, resume=s.attempt > 1 and not s.rerun)
        report = await self._starting(method, order, DEPLOYMENT_HOLD_S)
        s.counts = report.counts
        return report

    async def _await_start(self) -> None:
        """Wait until the main task runs or ended; its retries carry the wait, ``look_now`` makes it ask at once."""
        s = self._s
        s.waiting_for = names.WAITING_FOR_START
        publish(s)
        await pause(s.limits.start_check_s, s.woken, "first check of the start")
        order = MainJob(s.fence, s.limits.start_check_s)
        main = await self._starting(DeploymentActivities.get_main_job_status, order, cadence.MIN_GAP_SECONDS)
        s.waiting_for = s.start_deadline = None
        s.next_look_at = workflow.now() + timedelta(seconds=0 if main.ended else gap(s))
        started = Started(s.fence, main.started_at, s.next_look_at)
        s.status = await call(DeploymentActivities.update_run_started, started, wake=s.stop_wanted)
        s.stage = Stage.RECONCILIATION
        if s.limits.run_timeout_s is not None:
            s.run_deadline = workflow.now() + timedelta(seconds=s.limits.run_timeout_s)
        await courtesy(s, DeploymentActivities.signal_pusher_started)

    async def _starting(self, method: Callable[[DeploymentActivities, A], R], arg: A, hold_s: float) -> R:
        """An activity that a stop and ``start_timeout_s`` end, and that ``look_now`` makes try again.

        It does so ``hold_s`` after the last try began at the earliest, however often it comes.
        """
        s = self._s
        while True:
            s.inbox.look_now = False
            began = workflow.now()
            left = (s.start_deadline - began).total_seconds() if s.start_deadline else None

            def hold(began: datetime = began, most: float = hold_s if left is None else min(hold_s, left)) -> float:
                if s.stop_wanted() or not s.inbox.look_now:
                    return 0.0
                seconds = most - (workflow.now() - began).total_seconds()
                return max(seconds, 0.0)

            try:
                return await call(method, arg, wake=s.woken, seconds=left, hold=hold)
            except Interrupted:
                if s.start_deadline is not None and workflow.now() >= s.start_deadline:
                    s.inbox.want_stop(StopIntent(workflow.now(), limit="start_timeout"), None)
                if s.stop_wanted() or history_full():
                    raise

    # --- 3. reconciliation -----------------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        s = self._s
        await wait_for_look(s)
        if s.stop_wanted():
            return
        if s.run_deadline is not None and workflow.now() >= s.run_deadline:
            s.inbox.want_stop(StopIntent(workflow.now(), limit="timed_out"), None)
            return
        led_by, source = gap(s), "wake" if s.inbox.look_now else "look"
        s.inbox.look_now, wakes = False, s.inbox.wakes
        s.rung += source == "look"  # a look for which it was woken is beside the ladder
        await look_round(s, source, led_by, gap(s))
        if s.room and not s.stop_wanted():
            await self._deploy_wave(DeploymentActivities.deploy_queued_tasks)
            if s.inbox.wakes > wakes and not s.inbox.look_now:  # it takes a look to see what it was woken for
                s.inbox.look_now = True
        if not s.counts.alive:
            s.stage = Stage.COMPLETION

    # --- stop ------------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """One turn of a stop: record it, ask everything to end, look for the proof. Repeated until nothing is alive."""
        s = self._s
        s.stopped = True
        forced = s.escalated(workflow.now())
        if forced is not None:
            s.inbox.want_stop(forced.intent, None)
        heard, s.inbox.heard = s.inbox.heard, []
        s.stop_log += heard
        if heard:
            s.inbox.recorded_stop(await call(CancellationActivities.record_stop, RecordStop(s.fence, heard)))
        s.status = RunStatus.STOPPING
        publish(s)
        if s.stop_rung == 0 or s.counts.queued:
            s.counts = await call(CancellationActivities.cancel_queued_tasks, s.fence)
        await ask_to_end(s)
        if s.stop_rung == 0 or heard:
            await call(CancellationActivities.add_cancellation_log_to_db, RecordStop(s.fence, s.stop_log))
            s.stop_log = []
        if not s.counts.alive:
            s.stage = Stage.COMPLETION
            return
        wait = cadence.stop_interval(s.stop_rung, s.last_look_s)
        s.stop_rung += 1
        await look_round(s, "stop", wait, cadence.stop_interval(s.stop_rung, s.last_look_s))
        if not s.counts.alive:
            s.stage = Stage.COMPLETION
            return
        if s.counts.queued and not s.counts.active:  # all that is left is a deployment call that is about to be void
            wait = min(wait, QUEUED_PROOF_S)
        await pause(s.until_force(wait), lambda: s.stop_changed() or s.inbox.look_now, "proof of the stop")
        if s.inbox.look_now:
            await pause(s.until_force(gap_left(s)), s.stop_changed)
        s.inbox.look_now = False

    # --- 4. completion ---------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        s, late = self._s, False
        while s.inbox.heard:
            await self._record_late_stop()
        verdict = call(CompletionActivities.update_run_status, s.fence, control=s.stopped, wake=lambda: late)
        judging = asyncio.create_task(verdict)
        await workflow.wait_condition(lambda: judging.done() or bool(s.inbox.heard))
        # A stop that comes before the verdict is on record before it; whether the crawl had finished is judged then.
        late = not judging.done()
        try:
            ended = await judging
        except ApplicationError as error:
            if error.type != NotInThisState.code:
                raise
            s.stage, s.next_look_at = Stage.RECONCILIATION, workflow.now()  # a task came to life: look again
            return
        s.judged(ended)

    async def _record_late_stop(self) -> None:
        """Put stops on record that came when no task was alive any more, unless the verdict came before them."""
        s = self._s
        heard, s.inbox.heard = s.inbox.heard, []
        recorded = await call(CancellationActivities.record_stop, RecordStop(s.fence, heard))
        if recorded is None:
            return
        s.inbox.recorded_stop(recorded)
        s.stopped, s.status = True, RunStatus.STOPPING
        await call(CancellationActivities.add_cancellation_log_to_db, RecordStop(s.fence, s.stop_log + heard))
        s.stop_log = []

    async def _complete(self) -> RunResult:
        s = self._s
        if s.stopped:
            await courtesy(s, CancellationActivities.signal_pusher_stopped)
        if s.push_end:
            await courtesy(s, ReconciliationActivities.signal_pusher_changed)
        await courtesy(s, CompletionActivities.initiate_export_signal)
        export = await courtesy(s, CompletionActivities.export_supporting_files)
        # An update that came too late gets its refusal before the workflow is over.
        await workflow.wait_condition(workflow.all_handlers_finished)
        result = s.result(export)
        await tell_parent(s, result)
        publish(s)
        return result
