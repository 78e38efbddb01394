"""Begins and stops runs for their owner: a manager or a graph.

Ids and inputs of runs' workflows are also defined here, for all code that begins, stops or follows runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

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
from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopIntent, StopRequest
from crawler_lifecycle.ports.managers import ManagerRow
from crawler_lifecycle.ports.protocols import Catalogue, SchedulerClient, WorkflowDirectory
from crawler_lifecycle.ports.runs import Owner, RunRow

if TYPE_CHECKING:
    from crawler_lifecycle.store.managers.managers import ManagerStore
    from crawler_lifecycle.store.runs.initiation import InitiationStore
    from crawler_lifecycle.store.runs.reads import RunReader
    from crawler_lifecycle.store.runs.stops import StopStore

log = logging.getLogger(__name__)

J = TypeVar("J")

#: Runs that are begun or stopped in one go.
WINDOW = 100
#: Seconds after which no further run is begun or stopped: the activity returns, and is called again.
PASS_S = 20.0
#: The longest message about a wrong job, in characters.
ERROR_MAX = 1000


class NeverBegun(InvalidRequest):
    """There can be no run of this job, now or later; the text says why."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Input of ``open_manager`` and ``open_graph``: the number of the row, and who is to own it."""

    number: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class RecordParentStop:
    """Input of ``record_manager_stop`` and ``record_graph_stop``: all stops that were heard, as one wish."""

    number: int
    intent: StopIntent
    leave: bool = False
    must: bool = False
    """True to wait for the repair of a damaged row; otherwise the error is returned, and the runs are stopped
    meanwhile.
    """


@dataclass(frozen=True, slots=True)
class StopRecorded:
    """The stop as it is on record. ``stop`` is ``None`` when the manager or graph had ended before."""

    stop: StopIntent | None
    leave: bool = False
    status: RunStatus = RunStatus.STOPPING
    unreadable: str | None = None
    """The reason why nothing could be recorded: the defect of the row, and the cure. The other fields are as
    requested.
    """


@dataclass(frozen=True, slots=True)
class StopRuns:
    """Input of ``stop_manager_runs`` and ``stop_graph_runs``; there ``intent`` is ``None`` when only steps were
    cancelled, and the runs of others go on."""

    number: int
    intent: StopIntent | None


@dataclass(frozen=True, slots=True)
class BegunRuns:
    """Result of one pass over jobs whose runs are to be begun."""

    begun: int = 0
    refused: int = 0
    """Jobs that can never be begun: they have ended by that."""
    more: bool = False
    """True if its time was over before every job had its turn."""
    stopped: bool = False
    """True if a stop is on record, so that no further run is begun."""


@dataclass(frozen=True, slots=True)
class RunsLeft:
    """Result of a pass over live runs that are to be stopped."""

    live: int = 0
    """Number of runs that have not ended; when the time was over, of those that were counted."""
    more: bool = False
    """True if its time was over before every run had its turn."""
    trouble: str | None = None
    """The reason why a run could not be notified."""


@dataclass(frozen=True, slots=True)
class ChildRuns:
    """Runs that belong to another workflow, their ``parent``."""

    acceptance: InitiationStore
    stops: StopStore
    runs: RunReader
    directory: WorkflowDirectory
    catalogue: Catalogue
    scheduler: SchedulerClient

    def crawlers(self) -> Sequence[CrawlerDefinition]:
        """The known crawlers."""
        # An installation with its own scheduler service may have no catalogue here.
        return self.catalogue.all() or self.scheduler.crawlers()

    def begin_all(
        self,
        whose: str,
        waiting: Callable[[int], Mapping[int, J]],
        begin: Callable[[J], int | None],
        begun: Callable[[int, int | None, str | None], bool | None],
        stopped: Callable[[], StopIntent | None],
    ) -> BegunRuns:
        """One pass over jobs whose runs are to be begun, as far as the time reaches. An outage ends the pass; a job
        that fails does not delay the others. Raises the first such error after all jobs were tried.

        ``waiting``: so many of these jobs at most, by number. ``begin``: the id of what was begun for a job; ``None``:
        it was stopped at once; raises ``NeverBegun``. ``begun`` puts on record the number of a job with that id, or
        the reason why there can never be one; ``False``: the job was cancelled meanwhile. ``stopped``: as ``begin``
        of one run takes it.
        """
        until, incidents, tried, done = time.monotonic() + PASS_S, list[LifecycleError](), set[int](), BegunRuns()
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
                        id, why = begin(job), None
                    except NeverBegun as never:
                        id, why = None, str(never)[:ERROR_MAX]
                    if id is not None or why is not None:
                        refused = begun(number, id, why) is False or why is not None
                        done = replace(done, begun=done.begun + (id is not None), refused=done.refused + refused)
                except (StoreRefused, RowUnreadable, InvalidRequest) as error:
                    log.error("job %d of %s cannot be begun now: %s", number, whose, error)
                    incidents.append(error)

    def begin(
        self,
        whose: str,
        parent: str | None,
        request_id: str,
        request: Callable[[], RunRequest],
        stopped: Callable[[], StopIntent | None] = lambda: None,
    ) -> RunRow | None:
        """The run of this request, made or found, with a workflow: first the row, then the workflow, as the gateway
        begins runs. ``None``: it was stopped before it could execute.

        ``request`` makes the request, checked as the gateway checks it. ``stopped``: the stop because of which none is
        begun any more, as the database has it now. Raises ``NeverBegun``.
        """
        run, fresh = self.runs.find_run(request_id), False
        if run is None:
            try:
                wanted = request()
            except InvalidRequest as error:
                raise NeverBegun(str(error)) from None
            with suppress(DuplicateRequest):  # another try of this activity was faster
                run, fresh = self.acceptance.reserve_run(wanted, request_id)
            run = run or self.runs.find_run(request_id)
        if run is None or run.parent != parent:
            raise NeverBegun(f"the request id {request_id!r} belongs to a run that is not of {whose}; end that")
        # A stop, or the end, may have come after the pick and before the row of the run: then the new run must not
        # execute. A later stop finds the row.
        intent = stopped() if fresh else None
        if intent is not None:
            self.stop(run, whose, intent)
            return None
        self.carry(run)
        return run

    def carry(self, run: RunRow) -> None:
        """Start the workflow of a run that no workflow has claimed."""
        if run.owner_run_id is None and not run.status.terminal:
            self.directory.begin(begin_request(run), next_workflow_id(run), run.run_uid, repair=True)

    def stop_all(self, whose: str, page: Callable[[int, int], Sequence[RunRow]], intent: StopIntent) -> RunsLeft:
        """Stop each of these runs whose workflow has not acted on a stop yet, several at a time.

        ``whose``: the prefix of the ids of these stops. ``page``: returns at most so many live runs with ids above the
        given one.
        """
        until, after, left = time.monotonic() + PASS_S, 0, RunsLeft()
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
                left = replace(left, trouble=f"{asking.slow} runs do not answer")
            if len(runs) < WINDOW:
                return left
            after = runs[-1].run_id
            if time.monotonic() >= until:
                return replace(left, more=True)

    def stop(self, run: RunRow, whose: str, intent: StopIntent) -> None:
        """Record the stop of a run, then notify its workflow, or start one, as the gateway does."""
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
        """Record the stop of a manager, unless a sufficient one is there; then notify its workflow, or start one."""
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


def _to_notify(run: RunRow, intent: StopIntent) -> bool:
    """Return whether a run needs the stop: it has no stop yet, or its workflow has not acted on it (or not on its
    force).
    """
    return run.stop is None or run.stop_acted_at is None or (intent.force and not run.stop.force)


def own_workflow_id(row: RunRow) -> str:
    """The id under which we start a workflow for this run."""
    return workflow_id(row.crawler, row.request_id)


def next_workflow_id(row: RunRow) -> str:
    """The id under which we start the next workflow for this run.

    Under the plain one an earlier attempt may still be busy with its deliveries, for hours if an archive is down: a
    start would find that one and begin nothing. So it is used only when no other workflow has it. The attempt's id
    prevents a repeated call from starting two workflows.
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
    """The uid that the workflow under one of these ids must have, if it has one;

    ``None``: it is the recorded owner. Another run's workflow may be open under an id that is made from the request: a
    restore lost its row, and the request was repeated.
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
