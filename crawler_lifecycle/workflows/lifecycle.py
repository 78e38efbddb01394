"""``CrawlerLifecycleWorkflow``: a run from its request to its archive.

1. Initiation: create or claim the run's row, and record the workflow id.
2. Deployment: send the tasks to the scheduler service, and poll the run until a task has
   started.
3. Reconciliation: poll the cluster after 1, 2, 3, 5, 8, 15 … minutes until no task is alive.
4. Completion: record the verdict, send the event, and store the archive.

A stop interrupts 2 and 3 at any point. It leads to 4 after the proof that nothing runs. Each step
does one thing and returns. The next step depends only on the state, so continue-as-new is possible
between any two steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pydantic import TypeAdapter
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.activities.cancellation import CancellationActivities, RecordStop
from crawler_lifecycle.activities.completion import CompletionActivities
from crawler_lifecycle.activities.deployment import (
    DeploymentActivities,
    MainJob,
    Requeue,
    StartReport,
)
from crawler_lifecycle.activities.initiation import (
    AddToRun,
    AddWorkflowId,
    CreateHistory,
    InitiationActivities,
)
from crawler_lifecycle.activities.reconciliation import ReconciliationActivities
from crawler_lifecycle.activities.retries import RetryActivities
from crawler_lifecycle.activities.shared import Counts
from crawler_lifecycle.domain import names, polling_schedule
from crawler_lifecycle.domain.audits.adoption import WorkflowRecord
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.run import (
    AddTasks,
    RunRequest,
    RunResult,
    RunSnapshot,
    RunStatus,
    Stage,
    StopIntent,
    TasksAdded,
)
from crawler_lifecycle.domain.waiting import retry_wait
from crawler_lifecycle.ports.runs import Fence, Owner

from .calls import MustLeave, StepInterrupted, call, look_away, may_leave, pause
from .deploying import Deploying
from .requests import read_carried, read_update, refused, workflow_input
from .state import ReceivedSignal, RunState
from .steps import (
    ask_to_end,
    best_effort,
    catch_up,
    commanded,
    gap,
    gap_left,
    heeding,
    is_retry_time,
    is_time,
    poll_round,
    publish,
    tell,
    tell_parent,
    until_turn,
)

#: The maximum wait, in seconds, between polls for the proof that a deployment call without a
#: response did not create a task.
QUEUED_PROOF_S = 5.0

#: The maximum number of times that repeated stops are recorded before the verdict. Later stops are
#: logged in parallel with it.
LATE_ROUNDS = 10

R = TypeVar("R")

_STATE = TypeAdapter(RunState)


@workflow.defn(name=names.LIFECYCLE_WORKFLOW)
class CrawlerLifecycleWorkflow:
    """The workflow of one attempt of a run.

    It returns a ``RunResult``, even if the crawl failed.
    """

    @workflow.init
    def __init__(self, request: Any = None, carried: Any = None, *surplus: Any) -> None:
        self._s, self._refused = read_carried(_STATE, RunState(), carried, surplus)
        self._deploying = Deploying(self._s)

    @workflow.run
    async def run(self, request: Any = None, carried: Any = None, *surplus: Any) -> RunResult:
        """Carry out the run to its end.

        The workflow fails only for an invalid request, or for a run that it may not own. Starters
        send only ``request``, a ``RunRequest``.
        """
        if self._refused is not None:
            raise self._refused
        life = asyncio.create_task(self._live(workflow_input(RunRequest, request)))
        self._clock = asyncio.create_task(self._keep_time())
        cancelled = f"cancel/{workflow.info().run_id}"
        result = await heeding(life, lambda intent: self._s.inbox.want_stop(intent, cancelled))
        if result is None:
            known = self._s.stage is not Stage.INITIATION
            again = RunRequest(crawler=self._s.crawler, run_id=self._s.run_id) if known else request
            workflow.continue_as_new(args=[again, self._s])
        return result

    @workflow.signal(
        dynamic=True, description="stop, force_stop (StopRequest or nothing), look_now, place_free"
    )
    def _on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        new_id = str(workflow.uuid4())
        self._s.inbox.signal(ReceivedSignal(name, args, workflow.now(), new_id))

    @workflow.update(
        name=names.UPDATE_ADD_TASKS,
        description="A page of child tasks for this run ({tasks, request_id})",
    )
    async def add_tasks(self, page: Any = None) -> TasksAdded:
        """Append tasks to the live run.

        A poll follows at once, and then their deployment.
        """
        s = self._s
        order = read_update(AddTasks, page)

        def add(key: str) -> Awaitable[TasksAdded]:
            return call(InitiationActivities.add_tasks, AddToRun(s.fence, key, order.tasks))

        added = await commanded(order.request_id, lambda: s.run_id != 0, add)
        s.multi = True
        s.inbox.look_now = True
        return added

    @add_tasks.validator
    def _check_tasks(self, page: Any = None) -> None:
        read_update(AddTasks, page)
        if self._s.outcome is not None:
            raise refused(f"run {self._s.run_id} has ended; resume it or start another run")
        if self._s.stop_wanted():
            raise refused(
                f"run {self._s.run_id} was asked to stop and accepts no more tasks; wait for its "
                "end and resume it"
            )

    @workflow.query(name=names.QUERY_STATUS, description="The run as its workflow sees it now")
    def status(self) -> RunSnapshot:
        """Return the state of the run as the workflow knows it."""
        return self._s.snapshot()

    @workflow.query(
        name=names.QUERY_RECORD,
        description="The data of the run's row, for a database that lost it",
    )
    def record(self) -> WorkflowRecord:
        """Return the data of the run's row as the workflow knows it."""
        return self._s.record()

    def note(self, text: str) -> None:
        """Add a note for people, both in the snapshot and in Temporal's UI."""
        self._s.inbox.note(text)

    async def _live(self, request: RunRequest) -> RunResult | None:
        """Carry out the steps.

        Return the result, or ``None`` to continue as new.
        """
        try:
            return await self._steps(request)
        except MustLeave:
            # After any interrupted work, the next execution begins with a poll.
            self._s.inbox.look_now = True
            await self._deploying.leave()
            await workflow.wait_condition(workflow.all_handlers_finished)
            return None

    async def _steps(self, request: RunRequest) -> RunResult | None:
        s = self._s
        while s.outcome is None:
            # COMPLETION is published with the verdict, which follows.
            if s.run_id and s.stage is not Stage.COMPLETION:
                publish(s)
            try:
                if s.stage is Stage.INITIATION:
                    await self._initiate(request)
                elif s.stage is Stage.COMPLETION:
                    await self._deploying.leave()
                    await self._judge()
                elif may_leave():
                    await self._deploying.leave()
                    return None
                elif s.inbox.stop is not None:
                    await self._deploying.leave()
                    await self._stop()
                elif s.resumed and not s.looked_back:
                    await self._look_back()
                else:
                    await self._attend()
            except StepInterrupted:
                continue
        publish(s)
        return await self._complete()

    # --- 1. initiation ----------------------------------------------------------------------------

    async def _initiate(self, request: RunRequest) -> None:
        s = self._s
        info = workflow.info()
        owner = Owner(info.workflow_id, info.first_execution_run_id)
        order = CreateHistory(
            request, request.request_id or info.first_execution_run_id, owner, s.repair
        )
        s.adopt(await call(InitiationActivities.create_history_id, order), owner.first_run_id)
        registration = AddWorkflowId(s.run_id, s.attempt, info.workflow_id)
        await call(InitiationActivities.add_workflow_id, registration)
        s.stage = Stage.DEPLOYMENT
        s.since = workflow.now()

    async def _look_back(self) -> None:
        """Begin a resume: record the outcomes of tasks, keep executing tasks, and queue the other
        tasks again.
        """
        s = self._s
        found = await poll_round(s, "sweep" if s.repair else "resume", gap(s), gap(s), resumed=True)
        if s.inbox.stop is not None:
            return
        s.counts = await call(
            DeploymentActivities.requeue_ended_tasks, Requeue(s.fence, s.rerun), wake=s.stop_wanted
        )
        s.looked_back = True
        if not s.counts.alive:
            s.stage = Stage.COMPLETION
        elif found.started:
            await self._has_started(found.started_at)

    # --- 2. deployment and 3. reconciliation ------------------------------------------------------

    async def _attend(self) -> None:
        """Do one turn of a live run: deploy tasks, wait for the first event, and poll if it is
        time.

        Deployment and reconciliation use the same turns, because polls begin as soon as a task may
        be on the cluster.
        """
        s = self._s
        if s.undecided:
            await self._retry()
            if s.undecided:  # more tasks have ended than one activity decides about
                return
        if s.counted and not s.counts.alive:
            if s.started_at is None:  # no task was ever seen on the cluster
                await best_effort(s, DeploymentActivities.signal_pusher_started)
            s.stage = Stage.COMPLETION
            return
        if s.inbox.place_free or is_retry_time(s):
            s.inbox.place_free = False
            s.resting = 0
            s.retry_at = None
            self._deploying.allow()
        self._deploying.begin()
        self._say_why()
        due = await self._wait()
        self._deploying.settle()
        if s.stop_wanted():
            return
        if s.inbox.look_recorded:
            await self._catch_up()
        elif due:
            await self._poll()

    async def _retry(self) -> None:
        """Let the policy of retries decide about the tasks that ended without success."""
        s = self._s
        report = await call(RetryActivities.retry_ended_tasks, s.fence, wake=s.stop_wanted)
        s.counts = report.counts
        s.ended = report.ended
        s.rest(report.resting, workflow.now())
        self._deploying.allow()

    def _say_why(self) -> None:
        s = self._s
        s.waiting_for = names.WAITING_FOR_START if s.started_at is None else None
        if self._deploying.under_way and (s.started_at is not None or not s.counts.active):
            s.waiting_for = "the scheduler service"
        elif s.in_line and not s.counts.active:
            s.waiting_for = "a slot in its pool or of its site"
        elif s.retry_at is not None and not s.counts.active:
            s.waiting_for = retry_wait(s.retry_at, "").strip()
        publish(s)

    def _woken(self) -> bool:
        """Return whether something else takes precedence over the planned poll."""
        inbox = self._s.inbox
        poll = inbox.look_now or inbox.look_recorded
        return (
            self._s.stop_wanted()
            or poll
            or inbox.place_free
            or self._deploying.over()
            or may_leave()
        )

    async def _wait(self) -> bool:
        """Wait for the next poll, or for the start of the main task.

        Return whether it is time for a poll.
        """
        s = self._s
        if s.started_at is None and s.counts.active:
            ended = await self._watch_start()
        else:
            await pause(until_turn(s), self._woken, f"poll {s.looks + 1}")
            ended = False
        if s.inbox.look_now or ended:
            await pause(gap_left(s), s.stop_wanted)
            return True
        return is_time(s)

    async def _watch_start(self) -> bool:
        """Check the main task until it executes or the next poll is due.

        Return whether it has already ended. One activity repeats the check through its retries. For
        a run with only one task, these checks replace polls.
        """
        s = self._s
        alone = not s.multi and not s.counts.queued
        if alone:
            s.next_look_at = None
        least = s.limits.start_check_s
        left = until_turn(s)
        await pause(
            least if left is None else min(least, left), self._woken, "first check of the start"
        )
        if self._woken() or is_time(s) or is_retry_time(s):
            return False
        order = MainJob(s.fence, s.limits.start_check_s, alone)
        try:
            main = await call(
                DeploymentActivities.get_main_job_status,
                order,
                wake=self._woken,
                seconds=until_turn(s),
            )
        except StepInterrupted:
            return False
        if not main.ended:
            s.counts = main.counts or s.counts
            await self._has_started(main.started_at)
        return main.ended

    async def _poll(self) -> None:
        s = self._s
        led_by = gap(s)
        source = "wake" if s.inbox.look_now else "look"
        s.inbox.look_now = False
        s.rung += source == "look"  # a poll after a wake-up is not a step of the schedule
        found = await poll_round(s, source, led_by, gap(s))
        self._deploying.allow()
        if s.started_at is None and (found.started or (found.changed and not s.counts.alive)):
            await self._has_started(found.started_at)

    async def _catch_up(self) -> None:
        """Adopt what a poll without the workflow has recorded."""
        s = self._s
        found = await catch_up(s)
        self._deploying.allow()
        if s.started_at is None and (found.started or not s.counts.alive):
            await self._has_started(found.started_at)

    async def _has_started(self, at: datetime | None) -> None:
        """Record that a task has started.

        The polling schedule restarts, and ``run_timeout_s`` begins.
        """
        s = self._s
        now = workflow.now()
        s.rung, soon = (
            0,
            now
            + timedelta(seconds=polling_schedule.poll_interval(0, s.poll_minutes, s.last_look_s)),
        )
        s.next_look_at = min(s.next_look_at or soon, soon)
        started = StartReport(s.fence, at, s.next_look_at)
        s.status = await call(DeploymentActivities.update_run_started, started, wake=s.stop_wanted)
        s.started_at = min(max(at or now, s.since or now), now)
        s.stage = Stage.RECONCILIATION
        s.waiting_for = None
        await best_effort(s, DeploymentActivities.signal_pusher_started)

    async def _keep_time(self) -> None:
        """Stop the run when one of its time limits is reached, in parallel with all other work."""
        s = self._s
        while s.outcome is None:
            await workflow.wait_condition(lambda: s.limit is not None or s.outcome is not None)
            limit = s.limit
            if limit is None:
                continue
            left = (limit[0] - workflow.now()).total_seconds()
            await pause(left, lambda limit=limit: s.limit != limit, limit[1])  # type: ignore[misc]
            if s.limit == limit:
                s.inbox.want_stop(StopIntent(workflow.now(), limit=limit[1]), None)

    # --- stop -------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Do one turn of a stop: record it, ask all tasks to end, and poll for the proof.

        Turns repeat until no task is alive.
        """
        s = self._s
        s.stopped, forced = True, s.escalated(workflow.now())
        if forced is not None:
            s.inbox.want_stop(forced.intent, None)
        news = s.stop_rung == 0 or s.inbox.changed
        heard = await self._record_stop()
        await self._logging(self._end_tasks())
        if s.stop_rung == 0 or heard:
            await call(
                CancellationActivities.add_cancellation_log_to_db, RecordStop(s.fence, s.stop_log)
            )
            s.stop_log = []
        if s.counts.alive:
            await self._prove(rested=news)
        if not s.counts.alive:
            s.stage = Stage.COMPLETION

    async def _record_stop(self) -> bool:
        """Record the received stops before they are carried out.

        Return whether there were any.
        """
        s = self._s
        with s.inbox.taken() as heard:
            if heard:
                order = RecordStop(s.fence, heard)
                # The activity is retried while the row is unreadable. A stronger stop interrupts
                # it.
                recorded = await call(
                    CancellationActivities.record_stop, order, wake=lambda: s.inbox.changed
                )
                s.inbox.recorded_stop(recorded)
        s.stop_log += heard
        s.status = RunStatus.STOPPING
        publish(s)
        return bool(heard)

    async def _prove(self, *, rested: bool) -> None:
        """Poll for the proof that no task is alive, and then wait until the next poll.

        If ``rested`` is false, first wait for the shortest gap, because the previous execution may
        just have polled.
        """
        s = self._s
        changed = self._s.stop_changed
        if not rested and gap_left(s) > 0:
            await self._logging(pause(s.until_force(gap_left(s)), changed))
            if changed():
                return
        wait = polling_schedule.stop_interval(s.stop_rung, s.last_look_s)
        s.stop_rung += 1
        await self._logging(
            poll_round(s, "stop", wait, polling_schedule.stop_interval(s.stop_rung, s.last_look_s))
        )
        if not s.counts.alive:
            return
        # Only a deployment call is left, which expires soon.
        if s.counts.queued and not s.counts.active:
            wait = min(wait, QUEUED_PROOF_S)
        await self._logging(pause(s.until_force(wait), self._stop_news, "proof of the stop"))
        if s.inbox.look_recorded:
            await self._logging(catch_up(s))
        if s.inbox.look_now:
            await self._logging(pause(s.until_force(gap_left(s)), changed))
        s.inbox.look_now = False

    def _stop_news(self) -> bool:
        """Return whether something takes precedence over the next poll for the proof of a stop."""
        return self._s.stop_changed() or self._s.inbox.look_now or self._s.inbox.look_recorded

    async def _end_tasks(self) -> None:
        """Cancel waiting tasks, and ask executing tasks to end, both in parallel."""
        s = self._s
        if s.stop_rung and not s.counts.queued:
            await ask_to_end(s)
        elif s.counts.active:
            await asyncio.gather(ask_to_end(s), self._cancel_queued())
        else:  # ``_cancel_queued`` counts the tasks again, and may find executing tasks
            await self._cancel_queued()
            await ask_to_end(s)

    async def _cancel_queued(self) -> None:
        s = self._s
        s.counts = await call(
            CancellationActivities.cancel_queued_tasks, s.fence, wake=s.stop_changed
        )

    async def _logging(self, step: Coroutine[Any, Any, R], *, leave: bool = True) -> R:
        """Do a step of a stop, and log repeated stops in parallel.

        Repeated stops never interrupt the step. If they fill the history and ``leave`` is true,
        this raises ``StepInterrupted``, and the next execution repeats the step.
        """
        s = self._s
        task = asyncio.create_task(step)

        def over() -> bool:
            return task.done() or s.inbox.changed

        def full() -> bool:
            return leave and may_leave()

        try:
            while True:
                # This wait ends when the stop becomes forced, so that a step that hangs also ends
                # then.
                await pause(
                    s.until_force(None),
                    lambda: over() or full() or bool(s.inbox.heard),
                    "until force",
                )
                if over() or not (full() or s.inbox.heard):
                    return await task
                if full():
                    raise StepInterrupted
                with suppress(StepInterrupted), s.inbox.taken() as heard:
                    order = RecordStop(s.fence, heard)
                    await call(CancellationActivities.add_cancellation_log_to_db, order, wake=over)
        finally:
            task.add_done_callback(look_away)
            task.cancel()

    # --- 4. completion ----------------------------------------------------------------------------

    async def _judge(self) -> None:
        s = self._s
        rounds = 0
        while s.inbox.changed or (s.inbox.heard and rounds < LATE_ROUNDS):
            rounds += 1
            await self._record_late_stop()
        # A stop that comes before the verdict is recorded before it. The verdict decides which of
        # the stops counts.
        verdict = call(
            CompletionActivities.update_run_status,
            s.fence,
            control=s.stopped,
            wake=lambda: s.inbox.changed,
        )
        try:
            ended = await self._logging(verdict, leave=False)
        except ApplicationError as error:
            if error.type != NotInThisState.code:
                raise
            s.stage = Stage.DEPLOYMENT if s.started_at is None else Stage.RECONCILIATION
            # A task is alive again, so poll again.
            s.counts, s.next_look_at = Counts(), workflow.now()
            return
        s.judged(ended)

    async def _record_late_stop(self) -> None:
        """Record stops that came after the last task ended, unless the verdict is already
        recorded.
        """
        s = self._s
        with s.inbox.taken() as heard:
            recorded = await call(CancellationActivities.record_stop, RecordStop(s.fence, heard))
        if recorded is None:
            return
        s.inbox.recorded_stop(recorded)
        s.stopped = True
        s.status = RunStatus.STOPPING
        await call(
            CancellationActivities.add_cancellation_log_to_db,
            RecordStop(s.fence, s.stop_log + heard),
        )
        s.stop_log = []

    async def _complete(self) -> RunResult:
        s = self._s
        if not s.parent_told:
            await tell_parent(s)
            s.parent_told = True
        steps: list[Callable[[Any, Fence], object]] = []
        if s.stopped:
            steps.append(CancellationActivities.signal_pusher_stopped)
        if s.push_end:
            steps.append(ReconciliationActivities.signal_pusher_changed)
        for step in [*steps, CompletionActivities.initiate_export_signal][s.completed :]:
            await best_effort(s, step)
            s.completed += 1
        export = await best_effort(s, CompletionActivities.export_supporting_files)
        # A graph waits for the archive.
        if s.parent is not None and names.graph_key_of(s.parent) is not None:
            await tell(s.parent, names.SIGNAL_WAKE, None, s.inbox)
        # Late updates get a response (a refusal) before the workflow ends.
        await workflow.wait_condition(workflow.all_handlers_finished)
        publish(s)
        return s.result(export)
