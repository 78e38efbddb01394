"""Starts and stops of runs for a manager, a graph or a schedule.

In addition, the module defines the ids and inputs of run workflows, for all code that begins, stops
or follows runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from crawler_lifecycle.domain.code import CodeVersions
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    InvalidRequest,
    LifecycleError,
    QuotaReached,
    RowUnreadable,
    StoreRefused,
)
from crawler_lifecycle.domain.names import attempt_workflow_id, workflow_id
from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopIntent, StopRequest
from crawler_lifecycle.ports.protocols import Catalogue, SchedulerClient, WorkflowDirectory
from crawler_lifecycle.ports.runs import Owner, RunRow

from .abreast import Abreast
from .shared import alive

if TYPE_CHECKING:
    from crawler_lifecycle.store.runs.initiation import InitiationStore
    from crawler_lifecycle.store.runs.reads import RunReader
    from crawler_lifecycle.store.runs.stops import StopStore

log = logging.getLogger(__name__)

J = TypeVar("J")

#: Number of runs that are read from the database at once, in order to begin or stop these runs.
WINDOW = 100
#: Seconds after which no further run is begun or stopped. The activity then returns and is called
#: again.
PASS_S = 20.0
#: Maximum length of a recorded error message.
ERROR_MAX = 1000


class NeverBegun(InvalidRequest):
    """No run can ever begin for this job. The message explains why."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Input of ``open_manager`` and ``open_graph``: the number of the row, and its new owner."""

    number: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class RecordParentStop:
    """Input of ``record_manager_stop`` and ``record_graph_stop``: all received stops, combined."""

    number: int
    intent: StopIntent
    leave: bool = False
    must: bool = False
    """If true, an error about a damaged row of a manager is raised, so that Temporal retries until
    the row is repaired. If false, the error is returned, so that the runs can be stopped before the
    repair.
    """


@dataclass(frozen=True, slots=True)
class StopRecorded:
    """The recorded stop, or ``None`` if the manager or graph had already ended."""

    stop: StopIntent | None
    leave: bool = False
    status: RunStatus = RunStatus.STOPPING
    unreadable: str | None = None
    """The defect in the row and its fix, if nothing could be recorded. The other fields then
    contain the requested values.
    """


@dataclass(frozen=True, slots=True)
class StopRuns:
    """Input of ``stop_manager_runs`` and ``stop_graph_runs``.

    For a graph without an ``intent``, only the runs of cancelled steps are stopped, and all other
    runs continue.
    """

    number: int
    intent: StopIntent | None


@dataclass(frozen=True, slots=True)
class BegunRuns:
    """Result of one pass that begins runs for waiting jobs."""

    begun: int = 0
    refused: int = 0
    """Number of jobs that can never be begun or were cancelled in the meantime. These jobs have
    ended.
    """
    more: bool = False
    """True if the time limit was reached before every job was tried."""
    stopped: bool = False
    """True if a stop is recorded, so that no further run is begun."""


@dataclass(frozen=True, slots=True)
class RunsLeft:
    """Result of one pass that stops live runs."""

    live: int = 0
    """Number of live runs. If ``more`` is true, only runs that were read from the database are
    counted."""
    more: bool = False
    """True if the time limit was reached before all runs were read."""
    trouble: str | None = None
    """The most recent reason why a run could not be stopped."""


@dataclass(frozen=True, slots=True)
class ChildRuns:
    """Begins and stops runs for another workflow, their ``parent``."""

    acceptance: InitiationStore
    stops: StopStore
    runs: RunReader
    directory: WorkflowDirectory
    catalogue: Catalogue
    scheduler: SchedulerClient
    versions: CodeVersions

    def crawlers(self) -> Sequence[CrawlerDefinition]:
        """Return the known crawlers."""
        known = self.catalogue.all()
        if any(crawler.number is None for crawler in known):
            return known
        # An installation with its own scheduler service may have no file on this worker. Then ask
        # that service.
        return [*known, *self.scheduler.crawlers()]

    @property
    def problem(self) -> str | None:
        """The reason why the newest catalogue cannot be read."""
        return self.catalogue.problem or self.scheduler.problem

    def begin_all(
        self,
        whose: str,
        waiting: Callable[[int], Mapping[int, J]],
        begin: Callable[[J], int | None],
        begun: Callable[[int, int | None, str | None], bool | None],
        stopped: Callable[[], StopIntent | None],
    ) -> BegunRuns:
        """Begin the runs of all waiting jobs until the time limit is reached. A job that fails does
        not delay the other jobs. The first error is raised after all jobs were tried. An outage
        ends the pass at once.

        ``waiting(most)`` returns up to ``most`` jobs by number. ``begin(job)`` begins a run and
        returns the run's id, or ``None`` if the run was stopped at once. It raises ``NeverBegun``.
        ``begun(number, id, why)`` records the id, or the reason why no run can ever begin for the
        job, and returns ``False`` if the job was cancelled in the meantime. ``stopped()`` returns
        the stop that prevents further runs.
        """
        until = time.monotonic() + PASS_S
        incidents = list[LifecycleError]()
        tried = set[int]()
        done = BegunRuns()
        while True:
            jobs = {number: job for number, job in waiting(WINDOW).items() if number not in tried}
            if stopped() is not None:
                return replace(done, stopped=True)
            if not jobs and incidents:
                raise incidents[0]
            if not jobs:
                return done
            for number, job in jobs.items():
                if time.monotonic() >= until:
                    return replace(done, more=True)
                alive()
                tried.add(number)
                try:
                    try:
                        id = begin(job)
                        why = None
                    except NeverBegun as never:
                        id = None
                        why = str(never)[:ERROR_MAX]
                    if id is not None or why is not None:
                        refused = begun(number, id, why) is False or why is not None
                        done = replace(
                            done,
                            begun=done.begun + (id is not None),
                            refused=done.refused + refused,
                        )
                except QuotaReached as error:
                    incidents.append(error)  # this job waits, while jobs in other pools can begin
                except (StoreRefused, RowUnreadable, InvalidRequest) as error:
                    log.error("job %d of %s cannot begin now: %s", number, whose, error)
                    incidents.append(error)

    def begin(
        self,
        whose: str,
        parent: str | None,
        request_id: str,
        request: Callable[[], RunRequest],
        stopped: Callable[[], StopIntent | None] = lambda: None,
    ) -> RunRow | None:
        """Create or find the run for this request, and start the run's workflow.

        Return ``None`` if the run was stopped before it executed. As in the gateway, the row is
        created before the workflow. ``request()`` creates and checks the request. ``stopped()``
        returns the recorded stop that prevents new runs. Raises ``NeverBegun``.
        """
        run = self.runs.find_run(request_id)
        fresh = False
        if run is None:
            try:
                wanted = request()
                with suppress(DuplicateRequest):  # another try of this activity has created the run
                    run, fresh = self.acceptance.reserve_run(wanted, request_id)
            except InvalidRequest as error:
                raise NeverBegun(str(error)) from None
            run = run or self.runs.find_run(request_id)
        if run is None or run.parent != parent:
            raise NeverBegun(
                f"the request id {request_id!r} belongs to a run that {whose} does not own; end it"
            )
        # A stop or the end may have come after the job was picked and before the run had a row.
        # Then the new run must not begin to execute. The next stop finds the row.
        intent = stopped() if fresh else None
        if intent is not None:
            self.stop(run, whose, intent)
            return None
        self.carry(run)
        return run

    def carry(self, run: RunRow) -> None:
        """Start the workflow of a run if no workflow has claimed the run."""
        if run.owner_run_id is None and not run.status.terminal:
            self.directory.begin(
                begin_request(run), next_workflow_id(run), run.run_uid, repair=True
            )

    def stop_all(
        self, whose: str, page: Callable[[int, int], Sequence[RunRow]], intent: StopIntent
    ) -> RunsLeft:
        """Stop each of these runs whose workflow has not acted on a stop yet, several at a time.
        ``whose`` is the prefix of the ids of the stops. ``page(after, most)`` returns up to
        ``most`` live runs with ids above ``after``.
        """
        until = time.monotonic() + PASS_S
        after = 0
        left = RunsLeft()
        while True:
            runs = page(after, WINDOW)
            left = replace(left, live=left.live + len(runs))
            asking = Abreast[RunRow, None](lambda run: self.stop(run, whose, intent))
            for run, answer in asking.over([run for run in runs if _to_notify(run, intent)]):
                alive()
                if isinstance(answer, Exception):
                    log.warning("run %d of %s could not be stopped: %s", run.run_id, whose, answer)
                    left = replace(left, trouble=f"run {run.run_id}: {answer}"[:ERROR_MAX])
            if asking.slow:
                left = replace(left, trouble=f"the workflows of {asking.slow} runs do not respond")
            if len(runs) < WINDOW:
                return left
            after = runs[-1].run_id
            if time.monotonic() >= until:
                return replace(left, more=True)

    def stop(self, run: RunRow, whose: str, intent: StopIntent) -> None:
        """Record the stop of a run. Then notify the run's workflow or start a new one, as the
        gateway does."""
        kind = "force_stop" if intent.force else "stop"
        request_id = f"{whose}/{run.attempt}/{kind}"
        run = self.stops.record_stop(run.run_id, intent, request_id)
        if run.status.terminal:
            return
        stop = StopRequest(request_id, intent.requested_by, intent.reason, intent.force)
        if any(
            self.directory.stop(id_, stop, run_uid=uid_there(run, id_)) for id_ in workflow_ids(run)
        ):
            return
        self._take_over(run)

    def _take_over(self, run: RunRow) -> None:
        now = self.runs.get_run(run.run_id)
        if (
            now is None
            or now.status.terminal
            or (now.attempt, now.owner_run_id) != (run.attempt, run.owner_run_id)
        ):
            return
        self.directory.begin(begin_request(now), next_workflow_id(now), now.run_uid, repair=True)


def _to_notify(run: RunRow, intent: StopIntent) -> bool:
    """Return whether a run still needs this stop. This is true if the run has no stop, if its
    workflow has not acted on the recorded stop, or if only the new stop is forced.
    """
    return run.stop is None or run.stop_acted_at is None or (intent.force and not run.stop.force)


def own_workflow_id(row: RunRow) -> str:
    """Return the plain workflow id for a run, which contains the names of the crawler and the
    request."""
    return workflow_id(row.crawler, row.request_id)


def next_workflow_id(row: RunRow) -> str:
    """Return the id for the next workflow of this run. An earlier attempt may still use the plain
    id while it is delivering its events, which can take hours if the archive is unavailable. A
    start under that id would find the old workflow and begin nothing. So the plain id is used only
    if no other workflow uses it. Otherwise the returned id contains the number of the next attempt,
    so that a repeated call starts no second workflow.
    """
    own = own_workflow_id(row)
    if row.owner_run_id is None:
        return row.owner_workflow_id or own
    free = row.attempt == 1 or row.owner_workflow_id in (None, own)
    return own if free else attempt_workflow_id(row.crawler, row.request_id, row.attempt + 1)


def workflow_ids(row: RunRow) -> list[str]:
    """Return the ids of workflows that can belong to this run: its recorded owner, then its next
    workflow.
    """
    return list(dict.fromkeys(filter(None, (row.owner_workflow_id, next_workflow_id(row)))))


def uid_there(row: RunRow, workflow_id: str) -> str | None:
    """Return the run uid that a workflow with this id must have, or ``None`` for the recorded
    owner.

    The id is made from the request, so the workflow of another run can use the same id. That
    happens if a restore removed that run's row and the request was repeated.
    """
    owner = row.owner_run_id is not None and workflow_id == row.owner_workflow_id
    return None if owner else row.run_uid


def begin_request(row: RunRow, **more: Any) -> RunRequest:
    """Return the input of a workflow for a stored run. The workflow reads all other data from the
    run's row.
    """
    priority = row.request.get("priority")
    # Temporal needs the priority before the workflow has read the stored request.
    return RunRequest(
        crawler=row.crawler,
        run_id=row.run_id,
        priority=priority if isinstance(priority, int) else 3,
        **more,
    )
