"""Stage 2, deployment: offering tasks to the scheduler service, and waiting until the main task has
started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.audits.adoption import record_of
from crawler_lifecycle.domain.clocks import CLOCK_MARGIN_S
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.errors import (
    CallTooLarge,
    ClusterUnavailable,
    DeploymentRefused,
    LifecycleError,
    MeantElsewhere,
    NothingDeployed,
    NotStarted,
    Overtaken,
    SchedulerUnavailable,
)
from crawler_lifecycle.domain.names import EVENT_RUN_STARTED, event_key
from crawler_lifecycle.domain.polling_schedule import start_check_interval
from crawler_lifecycle.domain.pools import DEFAULT
from crawler_lifecycle.domain.run import RunRequest, RunStatus
from crawler_lifecycle.domain.task import ACTIVE, Observation, Phase, TaskState, TaskStatus
from crawler_lifecycle.domain.waiting import CLUSTER_WAIT, SCHEDULER_WAIT
from crawler_lifecycle.ports.cluster import TaskPlaces
from crawler_lifecycle.ports.entries import CatalogueEntry, Entries, EntryVersion, number_of
from crawler_lifecycle.ports.polls import FoundState, Poll
from crawler_lifecycle.ports.protocols import Notifier, SchedulerClient
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, Fence, Resting

from .poll_step import PollStep, again_if_overtaken, ref_of
from .retries import Policies
from .shared import Counts, activity_method, beating, ordered_at, push_event, reporting

if TYPE_CHECKING:
    from crawler_lifecycle.store.events import EventStore
    from crawler_lifecycle.store.runs.deployment import DeploymentStore
    from crawler_lifecycle.store.runs.polls import PollStore
    from crawler_lifecycle.store.runs.reads import RunReader
    from crawler_lifecycle.store.runs.tasks import TaskReader


#: Seconds after which a deployment call expires, so that a delayed call cannot undo a stop.
DEPLOYMENT_LIFE_S = 25
#: Maximum number of tasks that one call offers to the scheduler service.
DEPLOYMENT_PAGE = 100


@dataclass(frozen=True, slots=True)
class Deploy:
    """Input of the three activities that deploy tasks. All other data is in the stored request."""

    fence: Fence
    max_parallel: int | None = None
    resume: bool = False
    next_look_at: datetime | None = None
    """The time of the run's next poll. This time does not depend on the response to the call."""


@dataclass(frozen=True, slots=True)
class DeployReport:
    """The result of a deployment call."""

    counts: Counts
    offered: int = 0
    deferred: int = 0
    refused: str | None = None
    in_line: bool = False
    """True if the run is waiting for slots of its pool or of a site."""
    resting: Resting = field(default_factory=Resting)
    """The tasks whose next try may not begin yet. These tasks are counted only if no task was
    offered."""


@dataclass(frozen=True, slots=True)
class MainJob:
    """Input of ``get_main_job_status``."""

    fence: Fence
    start_check_s: float
    alone: bool = False
    """True if the main task is the run's only task. Then each try is recorded as a poll of the
    run.
    """


@dataclass(frozen=True, slots=True)
class MainJobReport:
    """Result of ``get_main_job_status``: the main task has started, and may have ended."""

    started_at: datetime | None
    ended: bool
    counts: Counts | None = None
    """The run's task counts, or ``None`` if the main task has ended."""


@dataclass(frozen=True, slots=True)
class StartReport:
    """Input of ``update_run_started``."""

    fence: Fence
    started_at: datetime | None = None
    next_look_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Requeue:
    """Input of ``requeue_ended_tasks``."""

    fence: Fence
    include_succeeded: bool = False


@dataclass
class DeploymentActivities:
    """Activities for stage 2."""

    deployment: DeploymentStore
    polls: PollStore
    runs: RunReader
    tasks: TaskReader
    events: EventStore
    cluster: TaskPlaces
    scheduler: SchedulerClient
    notifiers: Sequence[Notifier]
    policies: Policies
    entries: Entries
    clock: Clock = utc_now

    @activity_method
    def run_scheduled_crawler(self, order: Deploy) -> DeployReport:
        """Deploy the first tasks of a scheduled run through the scheduler service.

        Second execution: the service finds existing tasks by run, attempt and index, and starts no
        task twice.
        """
        return self._deploy(order, scheduled=True)

    @activity_method
    def run_onetime_crawler(self, order: Deploy) -> DeployReport:
        """Deploy the first tasks of a manual or API run through the scheduler service.

        Second execution: the service finds existing tasks by run, attempt and index, and starts no
        task twice.
        """
        return self._deploy(order, scheduled=False)

    @activity_method
    def deploy_queued_tasks(self, order: Deploy) -> DeployReport:
        """Deploy further QUEUED tasks, as many as the limit of active tasks allows.

        Second execution: the same as for the first tasks.
        """
        row = self.runs.get_run(order.fence.run_id)
        return self._deploy(order, scheduled=row is not None and row.trigger == "scheduled")

    def _deploy(self, order: Deploy, *, scheduled: bool) -> DeployReport:
        fence = order.fence
        now = ordered_at()
        expires_at = self.clock() + timedelta(seconds=DEPLOYMENT_LIFE_S)
        # The service that creates tasks and the poll that proves their absence can use different
        # clocks.
        until = expires_at + timedelta(seconds=CLOCK_MARGIN_S)
        with (
            beating(),
            reporting(self.deployment.note_waiting, fence),
            self._noting_cluster_wait(fence),
        ):
            # The namespace is recorded before the tasks are created. While other tasks of the run
            # can be in another namespace, ``place`` raises, because no poll could find all of them.
            place = self.cluster.place(self.deployment.places(fence.run_id))
            handle = self.runs.request_of(fence.run_id)
            if fence.attempt > 1:
                self._adopt_late_ones(fence)
            tasks, stop = self.deployment.offer_tasks(
                fence, DEPLOYMENT_PAGE, order.max_parallel, until, place, order.next_look_at, now
            )
            if stop is not None or not tasks:
                counts = self.tasks.count_tasks(fence.run_id)
                in_line = self.deployment.waits_for_slot(fence.run_id)
                resting = self.policies.retries.resting(fence.run_id, now)
                if (
                    stop is None
                    and counts.queued > resting.tasks
                    and not (counts.active or in_line)
                ):
                    raise NothingDeployed(
                        "a deployment call of the previous attempt may still create tasks"
                    )
                return DeployReport(Counts.of(counts), in_line=in_line, resting=resting)
            call = Deployment(
                run=fence.run,
                attempt=fence.attempt,
                crawler=handle.crawler or "",
                args=handle.args,
                settings=handle.settings,
                tasks=self.policies.for_tasks(handle, tasks),
                resources=handle.resources,
                limits=handle.limits,
                expires_at=expires_at,
                # The runs of a manager or a graph that a schedule started have the schedule's due
                # time, but a different trigger.
                scheduled=scheduled or handle.due_at is not None,
                due_at=handle.due_at,
                priority=handle.priority,
                pool=handle.pool or DEFAULT,
                queue=self.deployment.queue_of(handle.pool or DEFAULT, handle.project),
                resume=order.resume,
                place=place,
                record=self._record(fence),
                code=Code(handle.code, handle.version) if handle.code else None,
                entry=self._entry(handle),
            )
            try:
                call, answers = self._sent(fence, call, until)
            except DeploymentRefused as error:
                return self._refused(call, until, fence, str(error))
            except SchedulerUnavailable as error:
                # Such a call created no task. Its offer must be withdrawn, because a later call may
                # create the tasks in another namespace.
                if isinstance(error, MeantElsewhere | CallTooLarge):
                    self.deployment.withdraw_offer(fence, tasks, until)
                self.deployment.note_waiting(fence, f"{SCHEDULER_WAIT}{error}")
                raise
            counts = self.deployment.record_deployed(
                fence, self.cluster.kind, call.tasks, answers, self.clock(), until
            )
        deferred = [a for a in answers if a.state == "deferred"]
        refused = next((a.reason for a in answers if a.state == "refused"), None)
        why = next((a.reason for a in deferred if a.reason), "no free capacity on the cluster")
        if deferred:
            self.deployment.note_waiting(fence, why)
        if deferred and not counts.active and not self.deployment.waits_for_slot(fence.run_id):
            raise NothingDeployed(f"the cluster accepts no task of this run yet: {why}")
        return DeployReport(Counts.of(counts), len(call.tasks), len(deferred), refused)

    def _entry(self, request: RunRequest) -> Mapping[str, object] | None:
        """Return the document of the run's version, if the database has the crawler's entry. A
        package has versions of its own, for which the present entry holds.
        """
        name = request.crawler or ""
        number = request.version if request.code is None else None
        found: CatalogueEntry | EntryVersion | None
        if number is None:
            found = self.entries.get_entry(name)
        else:
            found = self.entries.entry_version(name, number_of(number))
        return None if found is None else {**found.document, "name": name}

    def _sent(
        self, fence: Fence, call: Deployment, until: datetime
    ) -> tuple[Deployment, list[DeployedTask]]:
        """Deploy as many tasks as the service accepts in one call, and return that call and its
        results. A call that is too large creates no task. The offer of half of the tasks is then
        withdrawn, and the other half is tried. Raises ``CallTooLarge`` if even one task is too
        large.
        """
        while True:
            try:
                return call, self.scheduler.deploy(call)
            except CallTooLarge:
                if len(call.tasks) == 1:
                    raise
            half = len(call.tasks) // 2
            self.deployment.withdraw_offer(fence, call.tasks[half:], until)
            call = replace(call, tasks=call.tasks[:half])

    @contextmanager
    def _noting_cluster_wait(self, fence: Fence) -> Iterator[None]:
        """Record that the run is waiting for the cluster while the cluster is unavailable."""
        try:
            yield
        except ClusterUnavailable as error:
            self.deployment.note_waiting(fence, f"{CLUSTER_WAIT}{error}")
            raise

    def _record(self, fence: Fence) -> Mapping[str, object]:
        """Return the record that the cluster stores with each task, so that a missing row of the
        run can be restored.
        """
        row = self.runs.get_run(fence.run_id)
        if row is None or row.owner_workflow_id is None:
            return {}
        owner = (row.owner_workflow_id, fence.owner_run_id)
        tasks = self.tasks.count_tasks(fence.run_id)
        total = sum(tasks.by_status.values())
        return record_of(row.request, row.request_id, row.multi, owner, total, row.attempt)

    def _refused(self, call: Deployment, until: datetime, fence: Fence, why: str) -> DeployReport:
        """Record that the service refuses these tasks permanently. An earlier call may have created
        some of these tasks, so a poll searches for them. A missing task may still appear until the
        earlier call expires. After that, the task is refused as well.
        """
        counts = self.deployment.refuse_queued(fence, why, call.tasks, until)
        if counts.queued:
            self._look_for_queued(fence, "look")
            counts = self.deployment.refuse_queued(fence, why)
        if counts.queued and not counts.active:
            text = (
                "an earlier deployment call may still create tasks, and the later call was "
                f"refused: {why}"
            )
            self.deployment.note_waiting(fence, text)
            raise NothingDeployed(text)
        return DeployReport(Counts.of(counts), len(call.tasks), counts.queued, refused=why)

    def _adopt_late_ones(self, fence: Fence) -> None:
        """Find the tasks that a call of the previous attempt created late, after a resume.

        The store offers such a task again only after that call has expired. This poll takes place
        before the offer, so that no second task is created.
        """
        page = self.tasks.task_page(fence.run_id, [TaskStatus.QUEUED], limit=DEPLOYMENT_PAGE)
        if any(
            task.run_attempt < fence.attempt and task.offered_until is not None for task in page
        ):
            self._look_for_queued(fence, "resume")

    def _look_for_queued(self, fence: Fence, source: str) -> None:
        """Record the tasks that deployment calls without a response have created. The poll is
        recorded as a complete poll, so it includes the tasks that were deployed before.
        """
        step = PollStep(self.polls, self.cluster, fence, self.policies)

        def record() -> Poll:
            state, poll = step.poll()
            step.record(state, poll, resumed=source == "resume")
            return poll

        step.apply(source, again_if_overtaken(record))

    @activity_method
    def get_main_job_status(self, order: MainJob) -> MainJobReport:
        """Ask the cluster whether the main task has started. If the task has not started, the
        activity fails, and Temporal retries the activity. So a long wait adds nothing to the
        workflow's history. Each try records in the database why the run is waiting. Second
        execution: asks again.
        """
        fence = order.fence
        with beating(), reporting(self.deployment.note_waiting, fence):
            active = self.tasks.task_page(fence.run_id, ACTIVE, limit=1)
            if not active:
                return MainJobReport(None, ended=True)
            main = active[0]
            try:
                poll = self.cluster.poll(fence.run, [ref_of(main)])
            except ClusterUnavailable as error:
                self.deployment.note_waiting(fence, f"{CLUSTER_WAIT}{error}")
                if order.alone:
                    self.polls.record_poll_error(fence, str(error), ordered_at())
                raise self._again(error, order.start_check_s) from error
            seen = poll.observations[0]
            replaced = main.uid is not None and seen.uid is not None and seen.uid != main.uid
            over = replaced or seen.phase in (Phase.ENDED, Phase.GONE)
            if not over and seen.phase in (Phase.ABSENT, Phase.WAITING):
                absent = seen.phase is Phase.ABSENT
                why = seen.reason or (
                    "the cluster does not know the task yet" if absent else "waiting to be started"
                )
                self.deployment.note_waiting(fence, why)
                again_s = poll.again_s
                if order.alone:
                    wait = timedelta(seconds=_interval(order.start_check_s, again_s))
                    self._note(fence, self.polls.found_state(fence), poll, self.clock() + wait)
                elif _is_news(main, seen):
                    again_s = self._note_executing(fence) or again_s
                raise self._again(NotStarted(why), order.start_check_s, again_s)
            if over:  # a complete poll follows at once
                return MainJobReport(None if replaced else seen.started_at, ended=True)
            self._note_executing(fence)
        return MainJobReport(
            seen.started_at, ended=False, counts=Counts.of(self.tasks.count_tasks(fence.run_id))
        )

    def _note_executing(self, fence: Fence) -> float | None:
        """Record which tasks are executing, so that no outdated PENDING is visible in the first
        minute. Record missing tasks too, because two polls together prove that a task is gone.
        Return the seconds until the second poll can prove it. The next poll records the outcomes of
        tasks, because that poll fetches their debugging information.
        """
        try:
            state, poll = PollStep(self.polls, self.cluster, fence).poll()
        except ClusterUnavailable:
            # The caller continues without this poll; the next one is due within a minute.
            return None
        self._note(fence, state, poll)
        return poll.again_s

    def _note(
        self, fence: Fence, state: FoundState, poll: Poll, next_look_at: datetime | None = None
    ) -> None:
        with suppress(Overtaken):  # a newer state is already recorded
            PollStep(self.polls, self.cluster, fence).record(
                state, poll, next_look_at=next_look_at, ends=False
            )
            self.polls.apply_findings(fence, "look", poll.observed_at)

    def _again(
        self, error: LifecycleError, start_check_s: float, again_s: float | None = None
    ) -> ApplicationError:
        """Return the failure that makes Temporal retry after the interval in the specification. The
        failure is expected, so it is marked as benign. ``again_s`` is the number of seconds after
        which the cluster can give the missing proof.
        """
        delay = timedelta(seconds=max(_interval(start_check_s, again_s), error.retry_after_s or 0))
        category = ApplicationErrorCategory.BENIGN
        return ApplicationError(
            str(error), type=error.code, next_retry_delay=delay, category=category
        )

    @activity_method
    def update_run_started(self, order: StartReport) -> RunStatus:
        """Change the run from INITIALIZING to PROCESSING.

        Second execution: the run already has this status or one that follows it, and the status
        stays.
        """
        return self.deployment.mark_started(order.fence, order.started_at, order.next_look_at)

    @activity_method
    def signal_pusher_started(self, fence: Fence) -> None:
        """Notify the front end that the run started (or failed to), so that it closes its dialog.

        Second execution: pushes the same event through the notifiers that have not delivered it.
        """
        row = self.runs.get_run(fence.run_id)
        if row is None:
            return
        failed = row.status is RunStatus.INITIALIZING
        body = {
            "run_id": row.run_id,
            "attempt": row.attempt,
            "crawler": row.crawler,
            "started": not failed,
        }
        if failed:
            body["cause"] = next(
                (g.cause for g in self.deployment.ended_groups(row.run_id) if g.cause),
                row.waiting_for,
            )
        key = event_key(fence.run, fence.attempt, EVENT_RUN_STARTED)
        event = self.events.append_event(fence, EVENT_RUN_STARTED, key, body)
        push_event(self.events, event, self.notifiers)

    @activity_method
    def requeue_ended_tasks(self, order: Requeue) -> Counts:
        """After a resume, insert new QUEUED rows for the tasks that did not succeed. The old rows
        point to the new rows. Second execution: the old rows already point to new rows, and nothing
        changes.
        """
        return Counts.of(self.deployment.requeue_ended(order.fence, order.include_succeeded))


def _interval(start_check_s: float, again_s: float | None) -> float:
    return (
        start_check_interval(activity.info().attempt, start_check_s) if again_s is None else again_s
    )


def _is_news(main: TaskState, seen: Observation) -> bool:
    """Return whether the presence or absence of a deployed task is not recorded in the database
    yet. If a task was seen waiting and then disappears, it must not be recorded as never created.
    """
    if seen.phase is Phase.ABSENT:
        return main.uid is not None and main.missed_at is None
    return main.missed_at is not None or not main.ever_seen
