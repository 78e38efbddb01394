"""Activities of a manager's workflow: claim its row, begin and stop its runs, and end it.

The class of the manager is called only in ``cycles.py``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.activities.audits.giving_up import OUTCOME, check_gone, owner_name
from crawler_lifecycle.activities.audits.parents import source
from crawler_lifecycle.activities.child_runs import (
    ERROR_MAX,
    BegunRuns,
    ChildRuns,
    Claim,
    RecordParentStop,
    RunsLeft,
    StopRecorded,
    StopRuns,
)
from crawler_lifecycle.activities.shared import activity_method, beating, there
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.audits.audit import FindingKind, LiveParent
from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.crawlers.crawler import check_tasks, completed
from crawler_lifecycle.domain.due_ids import due_of
from crawler_lifecycle.domain.errors import QuotaReached, RowUnreadable
from crawler_lifecycle.domain.names import ended_key
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.quotas import QUOTA
from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopIntent, StopRequest
from crawler_lifecycle.ports.protocols import WorkflowDirectory
from crawler_lifecycle.ports.runs import Owner

from ..domain.jobs import base_of, laid_over
from ..domain.manager import BUILT_IN, Job, Live, ManagerOrder, run_request_id
from ..domain.scrapy_cloud import Cloud, run_request_of
from ..ports import ManagerFence, ManagerRow

if TYPE_CHECKING:
    from ..store.managers import ManagerStore

#: The managers that audits compare with their workflows.
SOURCES = (source("open_managers", "manager", FindingKind.UNREADABLE),)


@dataclass(frozen=True, slots=True)
class ManagerOpened:
    """The result of ``open_manager``: the claimed manager."""

    name: str
    flow_id: str
    attempt: int
    status: RunStatus
    parent: str | None = None
    stop: StopIntent | None = None
    leave: bool = False


@dataclass(frozen=True, slots=True)
class NoteManager:
    """The input of ``note_manager``: the reason why the manager is waiting, and the error from its
    class.
    """

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
class EndManager:
    """The input of ``end_manager``. If ``leave`` is true, live runs continue without the
    manager.
    """

    fence: ManagerFence
    status: RunStatus
    outcome: str
    cause: str
    leave: bool = False


@dataclass(frozen=True, slots=True)
class ManagerEnded:
    """The recorded end of the manager."""

    status: RunStatus
    outcome: str
    cause: str


@dataclass
class ManagingActivities:
    """Activities of a manager's workflow on the main and on the control queue."""

    managers: ManagerStore
    children: ChildRuns
    cloud: Cloud = field(default_factory=Cloud)
    clock: Clock = utc_now

    @activity_method
    def open_manager(self, order: Claim) -> ManagerOpened:
        """Claim a reserved manager, or an ended manager as its next attempt.

        The manager's runs report to the workflow id that is derived from the manager's name and
        flow id, so no other workflow may own the manager. A second execution returns the same
        result to the same owner.
        """
        row = self._row(order.number)
        if order.owner.workflow_id != row.workflow_id:
            raise refusal(
                "workflow id",
                order.owner.workflow_id,
                f"manager {row.manager_id} runs as {row.workflow_id!r}",
            )
        row = self.managers.claim_manager(order.number, order.owner)
        return ManagerOpened(
            row.name, row.flow_id, row.attempt, row.status, row.parent, row.stop, row.leave
        )

    # --- begin ------------------------------------------------------------------------------------

    @activity_method
    def begin_manager_runs(self, fence: ManagerFence) -> BegunRuns:
        """Begin the run of every picked job as the gateway does: first the row, then the workflow.

        A job that no crawler accepts ends at once. A job that a quota refuses waits, because the
        activity fails and is repeated. After a stop, no run is begun. A second execution finds the
        existing runs by their request ids, and begins the others.
        """
        row = self._row(fence.manager_id)
        crawlers = functools.cache(self.children.crawlers)
        whose = f"manager/{row.manager_id}"
        parent = row.workflow_id

        def waiting(limit: int) -> dict[int, Live]:
            return {job.item_id: job for job in self.managers.starting_jobs(fence, limit)}

        def stopped() -> StopIntent | None:
            now = self._row(row.manager_id)
            ended = StopIntent(
                self.clock(), requested_by=now.requested_by, reason="its manager has ended"
            )
            return now.stop or (ended if now.status.terminal else None)

        def request(job: Live, **more: Any) -> RunRequest:
            crawler = self.cloud.crawler(
                job.job.spider, job.job.project_id, crawlers(), self.children.problem
            )
            asked = run_request_of(
                job.job,
                crawler,
                self.cloud,
                parent=parent,
                flow_id=row.flow_id,
                due_at=due_of(row.flow_id, row.parent),
                **more,
            )
            check_tasks(crawler, asked.args, asked.settings, None)
            return completed(asked, crawler, self.children.versions)

        def begin(job: Live) -> int | None:
            request_id = run_request_id(row.manager_id, job.seq, job.retry)
            asked = functools.partial(
                request,
                job,
                request_id=request_id,
                requested_by=row.requested_by,
                project=row.project,
            )
            run = self.children.begin(whose, parent, request_id, asked, stopped)
            return None if run is None else run.run_id

        with beating(), limited(row.project):
            begun = functools.partial(self.managers.job_started, fence)
            try:
                answer = self.children.begin_all(whose, waiting, begin, begun, stopped)
            except QuotaReached as error:
                self.managers.note_error(fence, row.error, str(error))
                raise
            if (row.waiting_for or "").startswith(QUOTA):  # an earlier execution recorded it
                self.managers.note_error(fence, row.error)
            return answer

    @activity_method
    def note_manager(self, order: NoteManager) -> None:
        """Record what the manager is waiting for, so that people can see it. A second execution
        records the same.
        """
        self.managers.note_error(order.fence, order.error, order.waiting)

    @activity_method
    def add_manager_jobs(self, order: AddManagerJobs) -> int:
        """Add jobs that users send, with the manager's own defaults. Returns the number of new
        jobs.

        The built-in manager runs one crawler. A job for another crawler raises ``InvalidRequest``.
        A second execution with the same key returns the same number.
        """
        row = self._row(order.manager_id)
        base = base_of(row.plan, row.options)
        other = next(
            (
                job.spider
                for job in order.jobs
                if row.plan == BUILT_IN and job.spider != base.spider
            ),
            None,
        )
        if other is not None:
            raise refusal("spider", other, f"this manager runs only crawler {base.spider!r}")
        jobs = [laid_over(base, job) for job in order.jobs]
        return self.managers.add_jobs(order.manager_id, jobs, order.key, seal=order.seal)

    # --- stop -------------------------------------------------------------------------------------

    @activity_method
    def record_manager_stop(self, order: RecordParentStop) -> StopRecorded:
        """Record the stop before any action.

        A second execution changes nothing.
        """
        try:
            row = self.managers.record_manager_stop(order.number, order.intent, order.leave)
        except RowUnreadable as error:
            if order.must:
                raise
            return StopRecorded(order.intent, order.leave, unreadable=str(error)[:ERROR_MAX])
        return StopRecorded(row.stop, row.leave, row.status)

    @activity_method
    def stop_manager_runs(self, order: StopRuns) -> RunsLeft:
        """Stop each live run of the manager whose workflow has not acted on a stop yet. Several
        runs are stopped at the same time.

        A run without a workflow gets a workflow that carries out the stop. A second execution again
        notifies the runs that have not acted on the stop. A run recognizes a repeated stop by the
        id of the stop.
        """
        intent = order.intent or StopIntent(self.clock(), requested_by=f"manager {order.number}")
        with beating():
            page = functools.partial(self.managers.live_runs, order.number)
            return self.children.stop_all(f"manager/{order.number}", page, intent)

    # --- end --------------------------------------------------------------------------------------

    @activity_method
    def end_manager(self, order: EndManager) -> ManagerEnded:
        """Record the end of the manager, once for each attempt, and start the delivery of its
        event.

        A second execution returns the recorded end, but may deliver the same event again.
        """
        row = self.managers.end_manager(
            order.fence, order.status, order.outcome, order.cause, leave=order.leave
        )
        key = ended_key("manager", row.manager_id, row.manager_uid, row.attempt)
        self.children.directory.deliver_event(key)
        return ManagerEnded(row.status, row.outcome or "", row.cause or "")

    def give_up(self, parent: LiveParent, why: str) -> str | None:
        """End a manager that no workflow can run (``ParentKind.give_up``)."""
        number = parent.number
        own = owner_name(parent.owner_run_id)
        opened = self.open_manager(Claim(number, Owner(parent.workflow_id, own)))
        leave = opened.stop is None or opened.leave
        if opened.stop is not None and not leave:
            check_gone(self.stop_manager_runs(StopRuns(number, opened.stop)).live)
        outcome = OUTCOME if opened.stop is None else "cancelled"
        self.end_manager(
            EndManager(
                ManagerFence(number, opened.attempt, own),
                RunStatus.FAILED,
                outcome,
                why,
                leave=leave,
            )
        )
        return opened.parent

    def _row(self, manager_id: int) -> ManagerRow:
        return there(self.managers.get_manager(manager_id), f"manager {manager_id}")


def stop_manager(
    managers: ManagerStore,
    directory: WorkflowDirectory,
    row: ManagerRow,
    whose: str,
    intent: StopIntent,
) -> None:
    """Record the stop of a manager, unless an equal or stronger stop is already recorded.

    Afterwards, notify the manager's workflow, or start a workflow.
    """
    if row.stop is None or (intent.force and not row.stop.force):
        row = managers.record_manager_stop(row.manager_id, intent)
    stop = StopRequest(f"{whose}/{row.attempt}", intent.requested_by, intent.reason, intent.force)
    if not row.status.terminal and not directory.stop(row.workflow_id, stop):
        directory.begin_for(ManagerOrder(row.manager_id), row.workflow_id)
