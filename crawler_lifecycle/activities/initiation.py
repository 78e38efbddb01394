"""Stage 1, initiation: recording the run and the workflow that owns it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from temporalio.exceptions import ApplicationError

from crawler_lifecycle.domain.code import CodeVersions
from crawler_lifecycle.domain.crawlers.crawler import check_request, check_tasks, completed, pinned
from crawler_lifecycle.domain.errors import QuotaReached
from crawler_lifecycle.domain.names import PROPERTY_WORKFLOW_ID
from crawler_lifecycle.domain.run import ChildTask, RunRequest, TasksAdded
from crawler_lifecycle.ports.protocols import Catalogue, WorkflowDirectory
from crawler_lifecycle.ports.runs import Fence, Owner, RunHandle

from .shared import activity_method

if TYPE_CHECKING:
    from crawler_lifecycle.store.runs.additions import AdditionStore
    from crawler_lifecycle.store.runs.initiation import InitiationStore
    from crawler_lifecycle.store.runs.reads import RunReader


@dataclass(frozen=True, slots=True)
class CreateHistory:
    """Input of ``create_history_id``."""

    request: RunRequest
    request_id: str
    owner: Owner
    repair: bool = False
    """True if the run is claimed because its workflow was lost."""


@dataclass(frozen=True, slots=True)
class AddWorkflowId:
    """Input of ``add_workflow_id``."""

    run_id: int
    attempt: int
    workflow_id: str


@dataclass(frozen=True, slots=True)
class AddToRun:
    """Input of ``add_tasks``."""

    fence: Fence
    key: str
    tasks: list[ChildTask]


@dataclass
class InitiationActivities:
    """Activities for stage 1."""

    initiation: InitiationStore
    additions: AdditionStore
    runs: RunReader
    directory: WorkflowDirectory
    catalogue: Catalogue
    versions: CodeVersions

    @activity_method
    def create_history_id(self, order: CreateHistory) -> RunHandle:
        """Insert the run with all its tasks, or claim the run named by ``run_id`` (resumption,
        reserved runs).

        If this worker has a catalogue, an impossible request is refused with ``InvalidRequest``
        before anything is recorded. A request that a quota refuses is not retried, because the
        sender decides when to try again. After this step, the steps of this workflow precede the
        first steps of other workflows. Second execution: returns the same result to the same owner,
        and inserts nothing.
        """
        self.directory.has_begun(order.owner.workflow_id)
        request = order.request
        if request.run_id is not None:
            if request.version is not None:
                name = request.crawler or self.runs.request_of(request.run_id).crawler
                crawler = self.catalogue.get(name or "")
                if crawler is not None:
                    request = pinned(replace(request, crawler=name), crawler, self.versions)
            return self.initiation.claim_run(
                request, order.owner, self.directory.is_open, repair=order.repair
            )
        crawler = self.catalogue.get(request.crawler or "")
        if crawler is not None:
            # The catalogue may have changed since the first execution. The record from the first
            # execution stays valid.
            if self.runs.find_run(order.request_id) is None:
                check_request(crawler, request)
            request = completed(request, crawler, self.versions)
        try:
            return self.initiation.create_run(request, order.request_id, order.owner)
        except QuotaReached as error:
            raise ApplicationError(str(error), type=error.code, non_retryable=True) from None

    @activity_method
    def add_workflow_id(self, order: AddWorkflowId) -> None:
        """Record the workflow's id as a property of the run.

        A stop or a resume finds the workflow by this id.

        Second execution: writes the same value again.
        """
        self.initiation.set_property(
            order.run_id, order.attempt, PROPERTY_WORKFLOW_ID, order.workflow_id
        )

    @activity_method
    def add_tasks(self, order: AddToRun) -> TasksAdded:
        """Append child tasks to a live run. After the next poll, they are deployed into free slots.

        Arguments that the crawler does not accept are refused here, because the scheduler service
        would otherwise refuse all queued tasks in the same call. A call that a quota refuses is not
        retried, because a caller is waiting for the result.

        Second execution: the same key gets the same tasks.
        """
        run_id = order.fence.run_id
        request = self.runs.request_of(run_id)
        crawler = self.catalogue.get(request.crawler or "")
        args = [task.args for task in order.tasks]
        if crawler is not None:
            check_tasks(crawler, request.args, request.settings, args)
        try:
            return TasksAdded(
                run_id, self.additions.add_tasks(run_id, order.key, args, order.fence)
            )
        except QuotaReached as error:
            raise ApplicationError(str(error), type=error.code, non_retryable=True) from None
