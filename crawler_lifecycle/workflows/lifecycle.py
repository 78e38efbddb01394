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
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from crawler_lifecycle.activities.cancellation import CancellationActivities, RecordStop, StopTask
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
from crawler_lifecycle.activities.initiation import AddWorkflowId, CreateHistory, InitiationActivities
from crawler_lifecycle.activities.reconciliation import ActiveTasks, LookOrder, ReconciliationActivities, Sync
from crawler_lifecycle.activities.shared import Counts
from crawler_lifecycle.domain import cadence, names
from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState
from crawler_lifecycle.domain.run import RunRequest, RunResult, RunSnapshot, RunStatus, Stage, StopIntent
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports import Fence, Owner

from .calls import Interrupted, call, pause, settle, start
from .state import RunState

A = TypeVar("A")
R = TypeVar("R")

#: Stops of a multi-process run that are under way at once, and how long one such window is waited for.
STOP_WINDOW, STOP_WINDOW_S = 100, 30.0


@workflow.defn(name=names.LIFECYCLE_WORKFLOW)
class CrawlerLifecycleWorkflow:
    """One attempt of one run. Returns a ``RunResult`` however the crawl ended."""

    @workflow.init
    def __init__(self, request: RunRequest | None = None, carried: RunState | None = None) -> None:
        self._s = carried or RunState()
        self._published: dict[str, object] = {}

    @workflow.run
    async def run(self, request: RunRequest | None = None, carried: RunState | None = None) -> RunResult:
        """Take the run through its stages. Fails only for a request that is invalid or a run it may not own."""
        if request is None:
            text = 'request: missing; start the workflow with a RunRequest, for example {"crawler": "services"}'
            raise ApplicationError(text, type=InvalidRequest.code, non_retryable=True)
        life = asyncio.create_task(self._live(request))
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

    @workflow.query(name=names.QUERY_STATUS, description="The run as its workflow sees it now")
    def status(self) -> RunSnapshot:
        """The run as its workflow sees it now."""
        return self._s.snapshot()

    def _cancelled(self) -> None:
        """Temporal's cancel is a graceful stop."""
        reason = workflow.cancellation_reason() or None
        intent = StopIntent(workflow.now(), requested_by="temporal cancel", reason=reason)
        self._s.inbox.want_stop(intent, f"cancel/{workflow.info().run_id}")

    async def _live(self, request: RunRequest) -> RunResult | None:
        """Step by step to the result; ``None`` asks for continue-as-new."""
        s = self._s
        while s.outcome is None:
            self._publish()
            try:
                if s.stage is Stage.INITIATION:
                    await self._initiate(request)
                elif s.stage is Stage.COMPLETION:
                    await self._judge()
                elif workflow.info().is_continue_as_new_suggested():
                    return None
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
        self._publish()
        return await self._complete()

    # --- 1. initiation ---------------------------------------------------------------------------------------------

    async def _initiate(self, request: RunRequest) -> None:
        s, info = self._s, workflow.info()
        owner = Owner(info.workflow_id, info.first_execution_run_id)
        order = CreateHistory(request, request.request_id or info.first_execution_run_id, owner)
        s.adopt(await call(InitiationActivities.create_history_id, order), owner.first_run_id)
        registration = AddWorkflowId(s.run_id, s.attempt, info.workflow_id)
        await call(InitiationActivities.add_workflow_id, registration)
        s.stage = Stage.DEPLOYMENT

    async def _look_back(self) -> None:
        """Resume: what ended meanwhile gets its end, what executes is adopted, the rest is queued anew."""
        s = self._s
        await self._round("resume", self._gap(), self._gap(), resumed=True)
        if s.inbox.stop is not None:
            return
        s.counts = await call(DeploymentActivities.requeue_ended_tasks, Requeue(s.fence, s.rerun), wake=self._stopping)
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
            s.cause = report.refused
            s.stage = Stage.COMPLETION
            await self._courtesy(DeploymentActivities.signal_pusher_started)
            return
        await self._await_start()

    async def _deploy_wave(self, method: Callable[[DeploymentActivities, Deploy], DeployReport]) -> DeployReport:
        s = self._s
        order = Deploy(s.fence, s.max_parallel, resume=s.attempt > 1 and not s.rerun)
        report = await self._starting(method, order)
        s.counts = report.counts
        return report

    async def _await_start(self) -> None:
        """Wait until the main task runs or ended; its retries carry the wait, ``look_now`` makes it ask at once."""
        s = self._s
        s.waiting_for = "the main task's start"
        self._publish()
        await pause(s.limits.start_check_s, self._woken, "first check of the start")
        order = MainJob(s.fence, s.limits.start_check_s)
        main = await self._starting(DeploymentActivities.get_main_job_status, order)
        s.waiting_for = None
        s.next_look_at = workflow.now() + timedelta(seconds=0 if main.ended else self._gap())
        started = Started(s.fence, main.started_at, s.next_look_at)
        s.status = await call(DeploymentActivities.update_run_started, started, wake=self._stopping)
        s.stage = Stage.RECONCILIATION
        if s.limits.run_timeout_s is not None:
            s.run_deadline = workflow.now() + timedelta(seconds=s.limits.run_timeout_s)
        await self._courtesy(DeploymentActivities.signal_pusher_started)

    async def _starting(self, method: Callable[[DeploymentActivities, A], R], arg: A) -> R:
        """An activity that a stop and ``start_timeout_s`` end, and that ``look_now`` makes try again at once."""
        s = self._s
        while True:
            s.inbox.look_now = False
            left = (s.start_deadline - workflow.now()).total_seconds() if s.start_deadline else None
            try:
                return await call(method, arg, wake=self._woken, seconds=left)
            except Interrupted:
                if s.start_deadline is not None and workflow.now() >= s.start_deadline:
                    s.inbox.want_stop(StopIntent(workflow.now(), limit="start_timeout"), None)
                if self._stopping() or workflow.info().is_continue_as_new_suggested():
                    raise

    # --- 3. reconciliation -----------------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        s, now = self._s, workflow.now()
        due = s.next_look_at or now + timedelta(seconds=self._gap())
        until = min(due, s.run_deadline or due)
        await pause((until - now).total_seconds(), self._woken, f"look {s.looks + 1}")
        if s.inbox.look_now and s.last_look_at is not None:
            least = max(cadence.MIN_GAP_SECONDS, 2 * s.last_look_s)
            await pause(least - (workflow.now() - s.last_look_at).total_seconds(), self._stopping)
        if self._stopping():
            return
        if s.run_deadline is not None and workflow.now() >= s.run_deadline:
            s.inbox.want_stop(StopIntent(workflow.now(), limit="timed_out"), None)
            return
        gap, source = self._gap(), "wake" if s.inbox.look_now else "look"
        s.inbox.look_now = False
        s.rung += 1
        await self._round(source, gap, self._gap())
        if s.room and not self._stopping():
            await self._deploy_wave(DeploymentActivities.deploy_queued_tasks)
        if not s.counts.alive:
            s.stage = Stage.COMPLETION

    async def _round(self, source: str, gap: float, next_gap: float, *, resumed: bool = False) -> None:
        """One look and what follows from it. A quiet round is its first two activities and nothing else."""
        s = self._s
        control, wake = s.inbox.stop is not None, self._escalating if s.inbox.stop is not None else self._stopping
        rec, fence = ReconciliationActivities, s.fence
        believed = await call(rec.get_active_running_tasks, ActiveTasks(s.run_id), control=control, wake=wake)
        order = LookOrder(fence, gap, next_gap, source, resumed)
        text = f"look {s.looks + 1} ({source}), {believed.counts.alive} tasks alive"
        found = await call(rec.get_history_statuses_to_sync, order, control=control, wake=wake, summary=text)
        s.looks += 1
        s.last_look_at, s.next_look_at, s.last_look_s = found.observed_at, found.next_look_at, found.seconds
        s.counts = believed.counts
        s.inbox.recorded_stop(found.stop)
        if found.changed:
            text = f"{found.changed} tasks changed"
            await call(rec.get_bulk_task_history_data, fence, control=control, wake=wake, summary=text)
            await call(rec.reconcile_tasks, fence, control=control, wake=wake)
            await call(rec.sync_statuses, Sync(fence, source), control=control, wake=wake)
        if found.changed or not believed.counts.active:
            s.counts = await call(rec.count_alive_tasks, s.run_id, control=control, wake=wake)

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
        s.inbox.recorded_stop(await call(CancellationActivities.record_stop, RecordStop(s.fence, heard)))
        s.status = RunStatus.STOPPING
        self._publish()
        s.counts = await call(CancellationActivities.cancel_queued_tasks, s.fence)
        await self._ask_to_end()
        if s.stop_rung == 0 or heard:
            await call(CancellationActivities.add_cancellation_log_to_db, RecordStop(s.fence, s.stop_log))
            s.stop_log = []
        gap = cadence.stop_interval(s.stop_rung, s.last_look_s)
        s.stop_rung += 1
        await self._round("stop", gap, cadence.stop_interval(s.stop_rung, s.last_look_s))
        if not s.counts.alive:
            s.stage = Stage.COMPLETION
            return
        await pause(self._until_force(gap), lambda: self._escalating() or s.inbox.look_now, "proof of the stop")
        s.inbox.look_now = False

    async def _ask_to_end(self) -> None:
        """``k8_stop_task`` for each active task not asked yet; by force ``k8_stop_pod`` for each that is left."""
        s = self._s
        forced = s.inbox.stop is not None and s.inbox.stop.force
        method = CancellationActivities.k8_stop_pod if forced else CancellationActivities.k8_stop_task
        statuses = [TaskStatus.PENDING, TaskStatus.RUNNING] + ([TaskStatus.STOPPING] if forced else [])
        after = -1
        while s.counts.active:
            order = ActiveTasks(s.run_id, statuses, after, STOP_WINDOW)
            page = await call(ReconciliationActivities.get_active_running_tasks, order, control=True)
            if not page.tasks:
                return
            handles = [
                start(method, StopTask(s.fence, task), control=True, summary=f"task {task.index}")
                for task in page.tasks
            ]
            await settle(handles, STOP_WINDOW_S)
            after = page.tasks[-1].index

    # --- 4. completion ---------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        s = self._s
        try:
            ended = await call(CompletionActivities.update_run_status, s.fence, control=s.stopped)
        except ApplicationError as error:
            if error.type != NotInThisState.code:
                raise
            s.stage, s.next_look_at = Stage.RECONCILIATION, workflow.now()  # a task came to life: look again
            return
        s.status, s.outcome, s.cause = ended.status, ended.outcome, ended.cause
        s.counts, s.waiting_for, s.next_look_at = Counts(ended.tasks), None, None
        s.pages, s.items, s.errors = ended.pages, ended.items, ended.errors
        if s.inbox.heard:
            s.inbox.note("a stop came after the verdict and changed nothing")

    async def _complete(self) -> RunResult:
        s = self._s
        if s.stopped:
            await self._courtesy(CancellationActivities.signal_pusher_stopped)
        await self._courtesy(CompletionActivities.initiate_export_signal)
        export = await self._courtesy(CompletionActivities.export_supporting_files)
        result = RunResult(
            run_id=s.run_id,
            status=s.status,
            outcome=s.outcome or "",
            cause=s.cause or "",
            attempt=s.attempt,
            tasks=s.counts.by_status,
            items=s.items,
            pages=s.pages,
            errors=s.errors,
            export=export,
        )
        await self._tell_parent(result)
        self._publish()
        return result

    async def _tell_parent(self, result: RunResult) -> None:
        if self._s.parent is None:
            return
        try:
            await workflow.get_external_workflow_handle(self._s.parent).signal(names.SIGNAL_RUN_ENDED, result)
        except ApplicationError as error:
            self._s.inbox.note(f"parent {self._s.parent} could not be told: {error.message}")

    # --- small helpers ---------------------------------------------------------------------------------------------

    def _gap(self) -> float:
        return cadence.poll_interval(self._s.rung, self._s.poll_minutes, self._s.last_look_s)

    def _stopping(self) -> bool:
        return self._s.inbox.stop is not None

    def _woken(self) -> bool:
        return self._stopping() or self._s.inbox.look_now

    def _escalating(self) -> bool:
        """Something about the stop itself is new: another request, or the time to use force."""
        return bool(self._s.inbox.heard) or self._s.escalated(workflow.now()) is not None

    def _until_force(self, seconds: float) -> float:
        stop, after = self._s.inbox.stop, self._s.limits.force_stop_after_s
        if stop is None or stop.force or after is None:
            return seconds
        left = (stop.requested_at + timedelta(seconds=after) - workflow.now()).total_seconds()
        return min(seconds, max(left, 0.0))

    async def _courtesy(self, method: Callable[[Any, Fence], R]) -> R | None:
        """An activity whose failure is on record elsewhere and never changes the run."""
        try:
            return await call(method, self._s.fence)
        except (ActivityError, ApplicationError) as error:
            self._s.inbox.note(f"{method.__name__} gave up: {error.cause or error}")
            return None

    def _publish(self) -> None:
        """Let the Temporal UI tell the story: search attributes where they changed, details always."""
        s = self._s
        if not s.run_id:
            return
        wanted = [(key, value) for key, value in s.search_attributes() if value is not None]
        changed = [key.value_set(value) for key, value in wanted if self._published.get(key.name) != value]
        if changed:
            workflow.upsert_search_attributes(changed)
        self._published = {key.name: value for key, value in wanted}
        workflow.set_current_details(s.details())
