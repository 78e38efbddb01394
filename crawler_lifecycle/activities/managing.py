"""What a crawl manager's workflow does about its row and its runs: claim it, begin and stop runs, end it.

The class of the manager decides elsewhere (``managers.py``); nothing here knows it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from temporalio import activity

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.crawler import CrawlerDefinition, check_tasks, with_limits
from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    InvalidRequest,
    LifecycleError,
    RowUnreadable,
    RunNotFound,
    StoreRefused,
)
from crawler_lifecycle.domain.manager import BUILT_IN, Job, Live, manager_workflow_id, run_request_id
from crawler_lifecycle.domain.manager_jobs import base_of, laid_over
from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopIntent, StopRequest
from crawler_lifecycle.domain.scrapy_cloud import Cloud, run_request_of
from crawler_lifecycle.ports import (
    AcceptanceStore,
    Catalogue,
    Owner,
    RunReader,
    RunRow,
    SchedulerClient,
    StopIntentStore,
    WorkflowDirectory,
)
from crawler_lifecycle.ports.store.managers import ManagerFence, ManagerRow, ManagerStore

from .abreast import Abreast
from .run_commands import begin_request, next_workflow_id, workflow_ids
from .shared import Clock, alive, beating, utc_now

log = logging.getLogger(__name__)

#: Runs that are begun or stopped in one go.
WINDOW = 100
#: Seconds after which no further run is begun or stopped: the activity answers, and is asked for again.
PASS_S = 20.0
#: Characters of what is wrong with a job.
ERROR_MAX = 1000


@dataclass(frozen=True, slots=True)
class OpenManager:
    """Input of ``open_manager``."""

    manager_id: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class ManagerOpened:
    """The manager as its workflow finds it."""

    name: str
    flow_id: str
    plan: str
    attempt: int
    status: RunStatus
    parent: str | None = None
    stop: StopIntent | None = None
    leave: bool = False


@dataclass(frozen=True, slots=True)
class BegunRuns:
    """What one ``begin_manager_runs`` has done."""

    begun: int = 0
    refused: int = 0
    """Jobs that can never be begun: they have ended, and their hooks are to run."""
    more: bool = False
    """Whether its time was over before every job had its turn."""
    stopped: bool = False
    """Whether a stop is on record, so that none is begun any more."""


@dataclass(frozen=True, slots=True)
class NoteManager:
    """Input of ``note_manager``: what the manager waits for, and what its class did wrong."""

    fence: ManagerFence
    waiting: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class AddManagerJobs:
    """Input of ``add_manager_jobs``."""

    manager_id: int
    key: str
    jobs: list[Job]
    seal: bool = False


@dataclass(frozen=True, slots=True)
class RecordManagerStop:
    """Input of ``record_manager_stop``: all stops that were heard, as one wish."""

    manager_id: int
    intent: StopIntent
    leave: bool = False
    must: bool = True
    """Whether a row that another hand spoilt is waited for; else it is answered, and the runs are stopped meanwhile."""


@dataclass(frozen=True, slots=True)
class ManagerStopped:
    """What is on record of a stop. ``stop`` is ``None`` when the manager had ended before."""

    stop: StopIntent | None
    leave: bool
    status: RunStatus
    unreadable: str | None = None
    """Why nothing could be recorded: what is wrong with the row, and the cure. The rest is what was asked for."""


@dataclass(frozen=True, slots=True)
class StopRuns:
    """Input of ``stop_manager_runs``."""

    manager_id: int
    intent: StopIntent


@dataclass(frozen=True, slots=True)
class RunsLeft:
    """What a pass over the live runs of a manager came to."""

    live: int = 0
    """Runs that have not ended; when the time was over, those that were counted."""
    told: int = 0
    """Runs that were told of the stop in this pass."""
    more: bool = False
    """Whether its time was over before every run had its turn."""
    trouble: str | None = None
    """Why a run could not be told."""


@dataclass(frozen=True, slots=True)
class EndManager:
    """Input of ``end_manager``. ``leave``: live runs go on by themselves."""

    fence: ManagerFence
    status: RunStatus
    outcome: str
    cause: str
    leave: bool = False


@dataclass(frozen=True, slots=True)
class ManagerEnded:
    """How the manager ended, as it is on record."""

    status: RunStatus
    outcome: str
    cause: str


@dataclass
class ManagingActivities:
    """Activities of a manager's workflow on the main and on the control queue."""

    managers: ManagerStore
    acceptance: AcceptanceStore
    stops: StopIntentStore
    runs: RunReader
    directory: WorkflowDirectory
    catalogue: Catalogue
    scheduler: SchedulerClient
    cloud: Cloud = field(default_factory=Cloud)
    clock: Clock = utc_now

    @activity.defn(name="open_manager", no_thread_cancel_exception=True)
    def open_manager(self, order: OpenManager) -> ManagerOpened:
        """Claim the manager: as it was reserved, or after its end as its next attempt.

        Its runs report to the workflow id that its name and flow id make, so no other workflow may own it.
        Second execution: the same owner gets the same answer.
        """
        row = self._row(order.manager_id)
        expected = manager_workflow_id(row.name, row.flow_id)
        if order.owner.workflow_id != expected:
            raise refusal("workflow id", order.owner.workflow_id, f"manager {row.manager_id} runs as {expected!r}")
        row = self.managers.claim_manager(order.manager_id, order.owner)
        told = (row.name, row.flow_id, row.plan, row.attempt, row.status, row.parent, row.stop, row.leave)
        return ManagerOpened(*told)

    # --- begin -----------------------------------------------------------------------------------------------------

    @activity.defn(name="begin_manager_runs", no_thread_cancel_exception=True)
    def begin_manager_runs(self, fence: ManagerFence) -> BegunRuns:
        """Begin the run of every job that was picked, as the gateway begins runs: first the row, then the workflow.

        A job that no crawler takes has ended by that. After a stop none is begun.
        Second execution: finds the runs that it made, by the ids of their requests, and begins the others.
        """
        with beating():
            return _Beginning(self, fence).run()

    @activity.defn(name="note_manager", no_thread_cancel_exception=True)
    def note_manager(self, order: NoteManager) -> None:
        """Write down what the manager waits for, so that people see it. Second execution: writes the same."""
        self.managers.note_error(order.fence, order.error, order.waiting)

    @activity.defn(name="add_manager_jobs", no_thread_cancel_exception=True)
    def add_manager_jobs(self, order: AddManagerJobs) -> int:
        """Add jobs from outside, over what the manager was started with; how many are new.

        Raises ``InvalidRequest`` for another crawler than that of the built-in manager.
        Second execution: the same key answers the same.
        """
        row = self._row(order.manager_id)
        base = base_of(row.plan, row.options)
        other = next((job.spider for job in order.jobs if row.plan == BUILT_IN and job.spider != base.spider), None)
        if other is not None:
            raise refusal("spider", other, f"this manager runs crawler {base.spider!r} and nothing else")
        jobs = [laid_over(base, job) for job in order.jobs]
        return self.managers.add_jobs(order.manager_id, jobs, order.key, seal=order.seal)

    # --- stop ------------------------------------------------------------------------------------------------------

    @activity.defn(name="record_manager_stop", no_thread_cancel_exception=True)
    def record_manager_stop(self, order: RecordManagerStop) -> ManagerStopped:
        """Write the stop down before anything is done about it. Second execution: it is there, nothing changes."""
        try:
            row = self.managers.record_manager_stop(order.manager_id, order.intent, order.leave)
        except RowUnreadable as error:
            if order.must:
                raise
            return ManagerStopped(order.intent, order.leave, RunStatus.STOPPING, str(error)[:ERROR_MAX])
        return ManagerStopped(row.stop, row.leave, row.status)

    @activity.defn(name="stop_manager_runs", no_thread_cancel_exception=True)
    def stop_manager_runs(self, order: StopRuns) -> RunsLeft:
        """Stop each live run of the manager whose workflow has not acted on a stop yet, some at once.

        A run that nobody works for gets a workflow that carries the stop out.
        Second execution: tells those again that have not acted on it; a run knows the stop by its id.
        """
        with beating():
            return self._stop_all(order)

    def _stop_all(self, order: StopRuns) -> RunsLeft:
        until, after, left = time.monotonic() + PASS_S, 0, RunsLeft()
        while True:
            page = self.managers.live_runs(order.manager_id, after, WINDOW)
            left = replace(left, live=left.live + len(page))
            asking = Abreast[RunRow, None](lambda run: self._stop_one(order, run))
            for run, answer in asking.over([run for run in page if _to_tell(run, order.intent)]):
                alive()
                if isinstance(answer, Exception):
                    log.warning("run %d of manager %d could not be stopped: %s", run.run_id, order.manager_id, answer)
                    left = replace(left, trouble=f"run {run.run_id}: {answer}"[:ERROR_MAX])
                else:
                    left = replace(left, told=left.told + 1)
            if asking.slow:
                left = replace(left, trouble=f"{asking.slow} runs do not answer")
            if len(page) < WINDOW:
                return left
            after = page[-1].run_id
            if time.monotonic() >= until:
                return replace(left, more=True)

    def _stop_one(self, order: StopRuns, run: RunRow) -> None:
        """Record the stop of a run, then tell its workflow, or start one, as the gateway does."""
        intent = order.intent
        kind = "force_stop" if intent.force else "stop"
        request_id = f"manager/{order.manager_id}/{run.attempt}/{kind}"
        unreadable: RowUnreadable | None = None
        try:
            run = self.stops.record_stop(run.run_id, intent, request_id)
        except RowUnreadable as error:
            unreadable = error
        if unreadable is None and run.status.terminal:
            return
        stop = StopRequest(request_id, intent.requested_by, intent.reason, intent.force)
        if any(self.directory.stop(candidate, stop) for candidate in workflow_ids(run)):
            return
        if unreadable is not None:
            raise unreadable
        self._take_over(run)

    def _take_over(self, run: RunRow) -> None:
        now = self.runs.get_run(run.run_id)
        if now is None or now.status.terminal or (now.attempt, now.owner_run_id) != (run.attempt, run.owner_run_id):
            return
        self.directory.begin(begin_request(now), next_workflow_id(now), repair=True)

    # --- end -------------------------------------------------------------------------------------------------------

    @activity.defn(name="end_manager", no_thread_cancel_exception=True)
    def end_manager(self, order: EndManager) -> ManagerEnded:
        """Set how the manager ended, once for each attempt. Second execution: answers what is on record."""
        row = self.managers.end_manager(order.fence, order.status, order.outcome, order.cause, leave=order.leave)
        return ManagerEnded(row.status, row.outcome or "", row.cause or "")

    def _row(self, manager_id: int) -> ManagerRow:
        row = self.managers.get_manager(manager_id)
        if row is None:
            raise RunNotFound(f"manager {manager_id} does not exist; crawlctl manager list shows what there is")
        return row


def _to_tell(run: RunRow, intent: StopIntent) -> bool:
    """Whether a run is to be told of a stop: nobody did, or its workflow has not acted on it, or not on force."""
    return run.stop is None or run.stop_acted_at is None or (intent.force and not run.stop.force)


class _Beginning:
    """One pass over the jobs of a manager that were picked."""

    def __init__(self, acts: ManagingActivities, fence: ManagerFence) -> None:
        self._a, self._fence = acts, fence
        self._crawlers: Sequence[CrawlerDefinition] | None = None
        self._begun = self._refused = 0

    def run(self) -> BegunRuns:
        """Begin all, as far as the time reaches. An outage ends the pass; a job that is in trouble holds up no other.

        Raises the first such trouble when all others had their turn.
        """
        until, troubles, tried = time.monotonic() + PASS_S, list[LifecycleError](), set[int]()
        while True:
            jobs = [job for job in self._a.managers.starting_jobs(self._fence, WINDOW) if job.item_id not in tried]
            row = self._a._row(self._fence.manager_id)
            if _is_over(row):
                return BegunRuns(self._begun, self._refused, stopped=True)
            if not jobs:
                if troubles:
                    raise troubles[0]
                return BegunRuns(self._begun, self._refused)
            for job in jobs:
                if time.monotonic() >= until:
                    return BegunRuns(self._begun, self._refused, more=True)
                alive()
                tried.add(job.item_id)
                try:
                    self._begin(row, job)
                except (StoreRefused, RowUnreadable, InvalidRequest) as error:
                    log.error("job %d of manager %d cannot be begun now: %s", job.item_id, row.manager_id, error)
                    troubles.append(error)

    def _begin(self, row: ManagerRow, job: Live) -> None:
        request_id = run_request_id(row.manager_id, job.seq, job.retry)
        run, fresh = self._a.runs.find_run(request_id), False
        if run is None:
            try:
                request = self._request(row, job)
            except InvalidRequest as error:
                self._refuse(job, str(error))
                return
            with suppress(DuplicateRequest):  # another try of this activity was faster
                run, fresh = self._a.acceptance.reserve_run(request, request_id)
            run = run or self._a.runs.find_run(request_id)
        if run is None or run.parent != manager_workflow_id(row.name, row.flow_id):
            self._refuse(
                job, f"the request id {request_id!r} belongs to a run that is not this manager's; end that run"
            )
            return
        if fresh and _is_over(self._a._row(row.manager_id)):
            self._withdraw(row, run)
            return
        if run.owner_run_id is None and not run.status.terminal:
            self._a.directory.begin(begin_request(run), next_workflow_id(run), repair=True)
        self._a.managers.job_started(self._fence, job.item_id, run.run_id)
        self._begun += 1

    def _request(self, row: ManagerRow, job: Live) -> RunRequest:
        """The request of a new run, checked as the gateway checks it. Raises ``InvalidRequest``."""
        if self._crawlers is None:
            # Whoever brings a scheduler service of their own may have no catalogue here.
            self._crawlers = self._a.catalogue.all() or self._a.scheduler.crawlers()
        crawler = self._a.cloud.crawler(job.job.spider, job.job.project_id, self._crawlers)
        request = run_request_of(
            job.job,
            job.seq,
            job.retry,
            crawler,
            self._a.cloud,
            manager_id=row.manager_id,
            parent=manager_workflow_id(row.name, row.flow_id),
            flow_id=row.flow_id,
            requested_by=row.requested_by,
        )
        check_tasks(crawler, request.args, request.settings, None)
        return with_limits(request, crawler.limits)

    def _refuse(self, job: Live, why: str) -> None:
        self._a.managers.job_started(self._fence, job.item_id, None, why[:ERROR_MAX])
        self._refused += 1

    def _withdraw(self, row: ManagerRow, run: RunRow) -> None:
        """A stop, or the end, came between the pick and the row of the run: what we have just made must not execute.

        A stop that comes later finds the row.
        """
        intent = row.stop or StopIntent(self._a.clock(), requested_by=row.requested_by, reason="its manager has ended")
        self._a._stop_one(StopRuns(row.manager_id, intent), run)


def _is_over(row: ManagerRow) -> bool:
    return row.stop is not None or row.status.terminal
