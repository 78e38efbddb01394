"""Begins and stops runs for whoever they belong to: a manager or a graph.

Ids and inputs of runs' workflows stand here too, for everybody who begins, stops or follows runs.
"""

from __future__ import annotations

import functools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from crawler_lifecycle.activities.abreast import Abreast
from crawler_lifecycle.activities.shared import alive
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    InvalidRequest,
    LifecycleError,
    RowUnreadable,
    StoreRefused,
)
from crawler_lifecycle.domain.managers.manager import manager_workflow_id
from crawler_lifecycle.domain.names import attempt_workflow_id, workflow_id
from crawler_lifecycle.domain.run import RunRequest, StopIntent, StopRequest
from crawler_lifecycle.ports.managers import ManagerRow
from crawler_lifecycle.ports.protocols import Catalogue, SchedulerClient, WorkflowDirectory
from crawler_lifecycle.ports.runs import RunRow

if TYPE_CHECKING:
    from crawler_lifecycle.store.managers.managers import ManagerStore
    from crawler_lifecycle.store.runs.initiation import InitiationStore
    from crawler_lifecycle.store.runs.reads import RunReader
    from crawler_lifecycle.store.runs.stops import StopStore

log = logging.getLogger(__name__)

J = TypeVar("J")

#: Runs that are begun or stopped in one go.
WINDOW = 100
#: Seconds after which no further run is begun or stopped: the activity answers, and is asked for again.
PASS_S = 20.0
#: Characters of what is wrong with a job.
ERROR_MAX = 1000


@dataclass(frozen=True, slots=True)
class BegunRuns:
    """Result of one pass over jobs whose runs are to be begun."""

    begun: int = 0
    refused: int = 0
    """Jobs that can never be begun: they have ended by that."""
    more: bool = False
    """Whether its time was over before every job had its turn."""
    stopped: bool = False
    """Whether a stop is on record, so that none is begun any more."""


@dataclass(frozen=True, slots=True)
class RunsLeft:
    """Result of a pass over live runs that are to be stopped."""

    live: int = 0
    """Runs that have not ended; when the time was over, those that were counted."""
    more: bool = False
    """Whether its time was over before every run had its turn."""
    trouble: str | None = None
    """Why a run could not be told."""


@dataclass(frozen=True, slots=True)
class ChildRuns:
    """Runs that belong to another workflow, their ``parent``."""

    acceptance: InitiationStore
    stops: StopStore
    runs: RunReader
    directory: WorkflowDirectory
    catalogue: Catalogue
    scheduler: SchedulerClient

    def stop_all(self, whose: str, page: Callable[[int, int], Sequence[RunRow]], intent: StopIntent) -> RunsLeft:
        """Stop each of these runs whose workflow has not acted on a stop yet, some at once.

        ``whose``: the first part of the ids of these stops. ``page``: live runs behind this id, so many at most.
        """
        until, after, left = time.monotonic() + PASS_S, 0, RunsLeft()
        while True:
            runs = page(after, WINDOW)
            left = replace(left, live=left.live + len(runs))
            asking = Abreast[RunRow, None](lambda run: self.stop(run, whose, intent))
            for run, answer in asking.over([run for run in runs if _to_tell(run, intent)]):
                alive()
                if isinstance(answer, Exception):
                    log.warning("run %d of %s could not be stopped: %s", run.run_id, whose, answer)
                    left = replace(left, trouble=f"run {run.run_id}: {answer}"[:ERROR_MAX])
            if asking.slow:
                left = replace(left, trouble=f"{asking.slow} runs do not answer")
            if len(runs) < WINDOW:
                return left
            after = runs[-1].run_id
            if time.monotonic() >= until:
                return replace(left, more=True)

    def stop(self, run: RunRow, whose: str, intent: StopIntent) -> None:
        """Record the stop of a run, then tell its workflow, or start one, as the gateway does."""
        kind = "force_stop" if intent.force else "stop"
        request_id = f"{whose}/{run.attempt}/{kind}"
        run = self.stops.record_stop(run.run_id, intent, request_id)
        if run.status.terminal:
            return
        stop = StopRequest(request_id, intent.requested_by, intent.reason, intent.force)
        if any(self.directory.stop(one, stop, run_uid=uid_there(run, one)) for one in workflow_ids(run)):
            return
        self._take_over(run)

    def stop_manager(self, managers: ManagerStore, row: ManagerRow, whose: str, intent: StopIntent) -> None:
        """Record the stop of a manager, unless one is on record that suffices; then tell its workflow, or start one."""
        if row.stop is None or (intent.force and not row.stop.force):
            row = managers.record_manager_stop(row.manager_id, intent)
        stop = StopRequest(f"{whose}/{row.attempt}", intent.requested_by, intent.reason, intent.force)
        workflow_id = manager_workflow_id(row.name, row.flow_id)
        if not row.status.terminal and not self.directory.stop(workflow_id, stop):
            self.directory.begin_manager(row.manager_id, workflow_id)

    def _take_over(self, run: RunRow) -> None:
        now = self.runs.get_run(run.run_id)
        if now is None or now.status.terminal or (now.attempt, now.owner_run_id) != (run.attempt, run.owner_run_id):
            return
        self.directory.begin(begin_request(now), next_workflow_id(now), now.run_uid, repair=True)


def _to_tell(run: RunRow, intent: StopIntent) -> bool:
    """Tell whether a run is to be told of a stop: nobody did, or its workflow has not acted on it, or not on force."""
    return run.stop is None or run.stop_acted_at is None or (intent.force and not run.stop.force)


class BeginningRuns(ABC, Generic[J]):
    """One pass over the jobs of one parent whose runs are to be begun, as the gateway begins runs: first the row, then
    the workflow. The run of a job is known by the id of its request, so another pass makes no second one."""

    def __init__(self, children: ChildRuns, whose: str, parent: str | None) -> None:
        self._children, self._whose, self._parent = children, whose, parent
        self._begun = self._refused = 0

    @functools.cached_property
    def crawlers(self) -> Sequence[CrawlerDefinition]:
        """The known crawlers, read once in this pass."""
        # Whoever brings a scheduler service of their own may have no catalogue here.
        return self._children.catalogue.all() or self._children.scheduler.crawlers()

    @abstractmethod
    def waiting(self, limit: int) -> list[J]:
        """Jobs that are to be begun."""

    @abstractmethod
    def number(self, job: J) -> int:
        """The number of the job."""

    @abstractmethod
    def stopped(self, job: J | None = None) -> StopIntent | None:
        """The stop because of which this job (``None``: any) is not begun any more, as the database has it now."""

    @abstractmethod
    def request_id(self, job: J) -> str:
        """The id of the job's request, the same for every try to begin it."""

    @abstractmethod
    def request(self, job: J) -> RunRequest:
        """The request of its run, checked as the gateway checks it. Raises ``InvalidRequest``."""

    @abstractmethod
    def started(self, job: J, run_id: int | None, error: str | None = None) -> None:
        """Write down that its run exists, or why there can never be one."""

    def run(self) -> BegunRuns:
        """Begin all, as far as the time reaches. An outage ends the pass; a job that is in trouble holds up no other.

        Raises the first such trouble when all others had their turn.
        """
        until, troubles, tried = time.monotonic() + PASS_S, list[LifecycleError](), set[int]()
        while True:
            jobs = [job for job in self.waiting(WINDOW) if self.number(job) not in tried]
            if self.stopped() is not None:
                return BegunRuns(self._begun, self._refused, stopped=True)
            if not jobs:
                if troubles:
                    raise troubles[0]
                return BegunRuns(self._begun, self._refused)
            for job in jobs:
                if time.monotonic() >= until:
                    return BegunRuns(self._begun, self._refused, more=True)
                alive()
                tried.add(self.number(job))
                try:
                    self.begin(job)
                except (StoreRefused, RowUnreadable, InvalidRequest) as error:
                    log.error("job %d of %s cannot be begun now: %s", self.number(job), self._whose, error)
                    troubles.append(error)

    def begin(self, job: J) -> None:
        """Make the run of a job, or find it, and start its workflow."""
        c, request_id = self._children, self.request_id(job)
        run, fresh = c.runs.find_run(request_id), False
        if run is None:
            try:
                request = self.request(job)
            except InvalidRequest as error:
                self.refuse(job, str(error))
                return
            with suppress(DuplicateRequest):  # another try of this activity was faster
                run, fresh = c.acceptance.reserve_run(request, request_id)
            run = run or c.runs.find_run(request_id)
        if run is None or run.parent != self._parent:
            self.refuse(job, f"the request id {request_id!r} belongs to a run that is not of {self._whose}; end that")
            return
        # A stop, or the end, may have come between the pick and the row of the run: what we have just made must not
        # execute. A stop that comes later finds the row.
        intent = self.stopped(job) if fresh else None
        if intent is not None:
            c.stop(run, self._whose, intent)
            return
        if run.owner_run_id is None and not run.status.terminal:
            c.directory.begin(begin_request(run), next_workflow_id(run), run.run_uid, repair=True)
        self.took(job, run)

    def took(self, job: J, run: RunRow) -> None:
        """Its run has a workflow."""
        self.started(job, run.run_id)
        self._begun += 1

    def refuse(self, job: J, why: str) -> None:
        """It can never be begun."""
        self.started(job, None, why[:ERROR_MAX])
        self._refused += 1


def own_workflow_id(row: RunRow) -> str:
    """The id under which we start a workflow for this run."""
    return workflow_id(row.crawler, row.request_id)


def next_workflow_id(row: RunRow) -> str:
    """The id under which we start the next workflow for this run.

    Under the plain one an earlier attempt may still be busy with its deliveries, for hours if an archive is down: a
    start would find that one and begin nothing. So it is used only where it is nobody else's. The id of the attempt
    keeps a repeat from starting two.
    """
    own = own_workflow_id(row)
    if row.owner_run_id is None:
        return row.owner_workflow_id or own
    free = row.attempt == 1 or row.owner_workflow_id in (None, own)
    return own if free else attempt_workflow_id(row.crawler, row.request_id, row.attempt + 1)


def workflow_ids(row: RunRow) -> list[str]:
    """Ids of workflows that may work for this run: its recorded owner, then the one that is to follow it."""
    return list(dict.fromkeys(filter(None, (row.owner_workflow_id, next_workflow_id(row)))))


def uid_there(row: RunRow, workflow_id: str) -> str | None:
    """The uid that the workflow under one of these ids must name, if it names one; ``None``: it is the recorded owner.

    Under an id that the request makes, another run's may be open: a restore lost its row, and the request came again.
    """
    owner = row.owner_run_id is not None and workflow_id == row.owner_workflow_id
    return None if owner else row.run_uid


def begin_request(row: RunRow, **more: Any) -> RunRequest:
    """The input of a workflow for a run that is stored already: its id says everything."""
    priority = row.request.get("priority")
    # Temporal orders by it before the workflow has read the stored request.
    return RunRequest(
        crawler=row.crawler, run_id=row.run_id, priority=priority if isinstance(priority, int) else 3, **more
    )
