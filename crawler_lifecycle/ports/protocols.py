"""Ports of all external systems except the database and the cluster, whose ports are in ``store`` and ``cluster``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from crawler_lifecycle.domain.audits.adoption import WorkflowRecord
from crawler_lifecycle.domain.audits.audit import OpenWorkflow, WorkflowState
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.managers.manager import Decision, Facts, Page, Start
from crawler_lifecycle.domain.run import ExportResult, RunRequest, StopRequest
from crawler_lifecycle.domain.run_ref import RunRef

from .files import FilePart, FileSource
from .runs import Deployed, Deployment, Event, Fence, Owner, Ticket


class KnowsRuns(Protocol):
    """A system outside of the database that holds run numbers, also numbers that the database has lost."""

    def highest_run(self, above: int = 0) -> int:
        """The highest run number in this system, ``above`` when none is higher.

        Numbers over ``names.RUN_NUMBER_MAX`` belong to no run. Raises an error of the domain for anything but an
        answer, also when there is too much to read all of it.
        """


class SchedulerClient(Protocol):
    """The scheduler service. Raises ``DeploymentRefused`` (never works) or ``SchedulerUnavailable`` (may work).

    ``MeantElsewhere``, one of the latter, says that the call certainly created nothing.
    """

    def deploy(self, deployment: Deployment) -> list[Deployed]: ...

    def crawlers(self) -> list[CrawlerDefinition]: ...


class WorkflowDirectory(KnowsRuns, Protocol):
    """The open workflows, and the repairs of an audit. Raises ``TemporalUnavailable``."""

    def is_open(self, owner: Owner) -> bool:
        """Return whether the chain of executions that began with ``owner.first_run_id`` is still open."""

    def state(self, workflow_id: str, first_run_id: str | None = None) -> WorkflowState:
        """Return whether the workflow is open, and how it closed; ``first_run_id``: of the chain that began with it."""

    def open_runs(self, after: str | None = None, limit: int = 100) -> tuple[list[OpenWorkflow], str | None]:
        """A page of the workflows of runs and managers that are open, and the position of the next one (``None``:
        none).

        It may lag by seconds: ``confirm`` each workflow before a decision.
        """

    def confirm(self, workflow: OpenWorkflow) -> OpenWorkflow | None:
        """The present state of the same; ``None`` when it is not open any more."""

    def of_run(self, run: RunRef) -> OpenWorkflow | None:
        """The open lifecycle workflow that says it works for this very run. It may lag behind by seconds."""

    def record(self, workflow: OpenWorkflow) -> WorkflowRecord:
        """The run's row as its workflow knows it; the question needs a worker."""

    def begin(self, request: RunRequest, workflow_id: str, run_uid: str, *, repair: bool = False) -> object:
        """Start a workflow for the stored run with this uid, or find it open. ``repair``: it replaces a lost one. If
        another run's workflow is open under the id, the id gets a part of the uid.
        """

    def begin_manager(self, manager_id: int, workflow_id: str) -> object:
        """Start the workflow of a stored manager, or find it open."""

    def begin_graph(self, graph_id: int, workflow_id: str) -> object:
        """Start the workflow of a stored graph, or wake the one that is open."""

    def begin_due(self, due_id: int, workflow_id: str) -> None:
        """Start the workflow of a due time on record, or find it open."""

    def begin_webhook(self, webhook_id: int, workflow_id: str) -> None:
        """Start the workflow of a stored webhook, or find it open."""

    def wake(self, workflow_id: str) -> bool:
        """Have a manager or a graph look into its rows now; ``False`` when no workflow of this id is open."""

    def stop(self, workflow_id: str, stop: StopRequest, *, run_uid: str | None = None) -> bool:
        """Signal a stop to a workflow; ``False`` when none of this id is open, or it works for another run."""

    def delete_executions(self, run: RunRef, workflow_ids: Sequence[str]) -> int:
        """Delete executions of this very run, with their histories, and those of these workflows that are of no run;
        some of them by each call. How many were listed; it may lag behind."""
        ...

    def hurry(self, owner: Owner) -> None:
        """Request a look at the run now, even if a step of it waits for its next retry. A closed chain is no error."""

    def deliver_again(self, fence: Fence, *, event: bool, files: bool) -> object:
        """Start the repeated delivery for an ended attempt, or find it under way."""

    def deliver_event(self, key: str) -> None:
        """Start the separate delivery of the event of this id, or find it under way."""

    def end(self, workflow: OpenWorkflow, reason: str) -> None:
        """Terminate this execution, and record its reason. A closed one is no error."""


class Notifier(Protocol):
    """Pushes to the front end; never more than best effort, never a reason to fail."""

    name: str

    sends: bool
    """True when ``push`` sends anything; otherwise it need not be called."""

    def push(self, event: Event) -> None:
        """Deliver one event. Raises ``NotDelivered``."""

    def check(self) -> str:
        """Say in words where pushes go. Raises ``NotDelivered`` with reason and cure when that cannot be reached."""


class EventSink(Protocol):
    """The bus or file that data pipelines read."""

    name: str

    def send(self, event: Event) -> None:
        """Deliver one event; receivers de-duplicate by its id. Raises ``NotDelivered``."""

    def check(self) -> str:
        """Return a text about where events are sent, without sending one. Raises ``NotDelivered`` when this cannot be
        used.
        """


class FileArchive(Protocol):
    """The archive that zips of supporting files go to."""

    def store(
        self,
        key: str,
        sources: Sequence[FileSource],
        manifest: Mapping[str, object],
        progress: Callable[[int, int], None],
        *,
        files_max: int | None = None,
    ) -> ExportResult:
        """Write one zip under ``key``, complete or not at all; the same key again replaces it.

        Of more than ``files_max`` files the rest is left out and named in the zip's manifest.
        ``progress`` is called with (files, bytes) so far. Raises ``NotDelivered``.
        """

    def open(self, url: str) -> Iterator[bytes]:
        """The bytes of a stored archive."""

    def part(self, url: str, place: int, limit: int) -> FilePart:
        """At most ``limit`` bytes of a stored archive from the position ``place`` on, which is before its end, and its
        size. Raises ``NotDelivered``.
        """

    def remove(self, run: RunRef) -> None:
        """Remove all archives of the run, also what was begun of one. Raises ``NotDelivered``."""
        ...

    def check(self) -> str:
        """Say in words where archives go, after writing and removing a probe. Raises ``NotDelivered``."""


class TaskBundles(Protocol):
    """Object storage for the tasks' supporting files, with a prefix for each task."""

    def ticket(self, run: RunRef, index: int, attempt: int, part: int | None, size: int, md5: str) -> Ticket:
        """Leave to write one part of a task's bundle, or its end (``part`` ``None``): ``size`` bytes with this digest.

        ``md5`` is in base64. Raises ``InvalidRequest`` for a part that is too large or one too many, ``NotDelivered``
        when nothing can be signed now.
        """

    def read(self, run: RunRef, index: int, attempt: int) -> Iterator[bytes]:
        """The bundle, a ``tar.gz``. Raises as ``FileSource.bundle`` does."""


class FilesPlace(Protocol):
    """The place where tasks leave files, as the one who clears it sees it. It names runs as ``RunRef`` does,
    with their uid.

    Raises ``ClusterUnavailable`` and ``NotDelivered``.
    """

    @property
    def where(self) -> str:
        """For people."""

    def runs(self) -> set[str]:
        """All names at the level of runs, of whatever form."""

    def put_aside(self, run: RunRef) -> None:
        """Move a resume's saved state out of the way, at once."""

    def remove(self, run: RunRef, attempt: int) -> None:
        """Remove the files of the run's attempts up to this one. A second call removes the rest, or nothing."""

    def finish(self) -> list[str]:
        """Remove what killed calls had put aside. Returns what could not be removed, and why."""


class Catalogue(Protocol):
    """The crawlers that may be run."""

    def get(self, name: str) -> CrawlerDefinition | None: ...

    def all(self) -> list[CrawlerDefinition]: ...


class PlanHost(Protocol):
    """The process that holds the object of a manager's class: users' code. One call at a time.

    While a call is under way the class may ask for more: ``answer`` gets the name of the question and its arguments.
    Raises ``PlanFailed``. Its answers are checked: they have the promised form and size, but may be wrong otherwise.
    """

    fingerprint: str
    """The fingerprint of the class's source, as it was loaded."""
    on_code_change: str
    """``replay``, ``continue`` or ``fail``: the choice of the class when its source differs from the recorded one."""
    on_item_error: str
    """``stop`` or ``skip``: the choice of the class for a yield that cannot be a job."""
    on_hook_error: str
    """``fail`` or ``complete``: the choice of the class for an end with errors in its hooks."""
    failed_outcomes: frozenset[str]
    """Outcomes that are failures for the object; empty until ``begin``."""
    generation: int | None
    """The generation of its writes; ``None`` until ``begin``."""
    settled: bool
    """True when all its decisions are recorded. The committing caller sets it; a process that is not settled is
    discarded.
    """

    @property
    def at(self) -> str | None:
        """The method of the class that is being called, or was called last; ``None``: none was."""

    @property
    def done(self) -> Decision | None:
        """The decision of the hooks that ended in the last ``cycle``, however the cycle itself ended; ``None``:
        unknown. It is committed when the decision of the cycle cannot be committed.
        """

    def begin(self, start: Start, generation: int, answer: Callable[[str, Mapping[str, Any]], Any]) -> object:
        """Make the object: ``__init__``, ``on_start``, and the resume hooks."""

    def page(self, after: int, answer: Callable[[str, Mapping[str, Any]], Any]) -> Page:
        """The yields of its source after this position."""

    def cycle(self, facts: Facts, answer: Callable[[str, Mapping[str, Any]], Any]) -> Decision:
        """One ``workflow_loop``. Its decision must be committed as a whole, or the process must be discarded."""

    def finish(self, reason: str | None, answer: Callable[[str, Mapping[str, Any]], Any]) -> Decision:
        """``on_close``. After the last cycle: returns the decision of both, which replaces that of the cycle. After a
        stop: returns its decision, with this close reason unless the class set one.
        """


class PlanHosts(Protocol):
    """The processes with users' code of one worker, each of one manager."""

    @property
    def queue(self) -> str | None:
        """The task queue that only this worker serves; ``None`` when it shuts down."""

    def use(
        self, plan: str, manager_id: int, attempt: int, generation: int, alive: Callable[[], None]
    ) -> AbstractContextManager[PlanHost]:
        """The process of this manager, and of nobody else until the block ends; a new one when there is none of this
        attempt and generation.

        ``alive`` is called now and then while anything is waited for; what it raises ends the wait, and the process. A
        block that ends by an error ends a process that is not settled. Raises ``PlanFailed`` when the class cannot be
        loaded.
        """

    def drop(self, manager_id: int) -> None:
        """End the manager's process, if there is one."""

    def printed(self, manager_id: int) -> str:
        """The output of the manager's processes until they were given back, since this was asked last: at most 16 KiB,
        for people, without secrets."""


class FunctionHost(Protocol):
    """A process that calls functions of graphs, one after the other. Its answers are checked and limited."""

    def call(
        self, call: FunctionCall, answer: Callable[[str, Mapping[str, Any]], Any], alive: Callable[[], None]
    ) -> FunctionReply:
        """Execute the function once, and return how it ended. ``answer`` gets questions of the function, ``alive`` is
        called now and then; what it raises ends the process.

        Raises ``PlanFailed``: ``missing`` when this worker cannot call it and another one may, ``for_good`` when it
        cannot be called at all; otherwise it failed, and with its process unless that ``lives``. ``WorkerLeaves``: the
        process was ended with all others of this worker.
        """

    def give(self, values: Iterable[tuple[Mapping[str, Any], Iterable[bytes]]]) -> int:
        """Pass values to the function, each with its description. Returns their size, for the answer. Raises
        ``InvalidRequest`` for more than a process can hold, and ``PlanFailed`` when this machine has no room.
        """

    def taken(self, size: int) -> list[bytes]:
        """The values of a question of the function. Raises ``InvalidRequest`` for impossible ones."""

    def end_soon(self) -> None:
        """Ask the process to end: SIGTERM."""

    def printed(self) -> str:
        """The output since this was asked last: at most 16 KiB, for people, without secrets."""


class FunctionHosts(Protocol):
    """The processes of one worker that call functions of graphs."""

    def use(self, graph: str) -> AbstractContextManager[FunctionHost]:
        """A process for the caller alone until the block ends, in which nothing of another graph runs. Raises
        ``PlanFailed`` when none can be started, and ``WorkerLeaves``."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One execution of a step's function, as the process that calls it needs it."""

    function: str
    """``module:qualname``."""
    graph: str
    """The key of its graph."""
    job: Mapping[str, Any]
    """The step, as ``graphs.job.Job.of`` reads it."""
    limit_s: float
    """Seconds that it may take."""
    graft: bool = False
    given: Iterable[tuple[Mapping[str, Any], Iterable[bytes]]] = ()
    """For a cascade: contexts from the outermost graph inwards (``path`` is empty), then the records of its
    dependencies, each after its ``path``: names below the level of the step.
    """


@dataclass(frozen=True, slots=True)
class FunctionReply:
    """The end of a function that was executed to its end."""

    kind: str
    """``done``; ``value``: with a result; ``cancel``: it returned ``Cancel``; ``snooze``: it returned ``Snooze``."""
    result: Sequence[bytes] | None = None
    """Encoded and packed (``domain.values``)."""
    result_bytes: int = 0
    reason: str | None = None
    seconds: float = 0.0


class WorkerLeaves(Exception):
    """This worker shuts down, and ends its processes; this says nothing about the calls in them."""


class PlanFailed(Exception):
    """Users' code failed. The text names the error, its position, and the cure where there is one."""

    def __init__(
        self,
        text: str,
        *,
        item_id: int | None = None,
        lives: bool = False,
        for_good: bool = False,
        missing: bool = False,
        struck: bool = False,
    ) -> None:
        """``item_id``: the job whose hooks were at work. ``lives``: its process is still there. ``for_good``: another
        try leads to the same until the code or the options change. ``missing``: the class could not be loaded on this
        worker; another one may have it. ``struck``: its process was ended from outside (SIGKILL, SIGTERM)."""
        super().__init__(text)
        self.item_id, self.lives, self.for_good, self.missing = item_id, lives, for_good, missing
        self.struck = struck
