"""Ports for all external systems except the database (package ``store``) and the cluster (module
``cluster``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any, ClassVar, Protocol

from crawler_lifecycle.domain.audits.adoption import WorkflowRecord
from crawler_lifecycle.domain.audits.audit import OpenWorkflow, WorkflowState
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.run import ExportResult, RunRequest, StopRequest
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.features.managers.domain.manager import Decision, Facts, Page, Start

from .files import FilePart, FileSource
from .runs import DeployedTask, Deployment, Event, Fence, Owner, Ticket


class KnowsRuns(Protocol):
    """A system outside the database that contains run numbers. Some of these numbers may be missing
    from the database.
    """

    def highest_run(self, above: int = 0) -> int:
        """Return the highest run number in this system, or ``above`` if no number in the system is
        higher than that. Numbers above ``names.RUN_NUMBER_MAX`` belong to no run. Raises a domain
        error if the system does not respond, or contains too many objects to read.
        """


class SchedulerClient(Protocol):
    """The scheduler service. Raises ``DeploymentRefused`` if a repeated call cannot succeed, and
    ``SchedulerUnavailable`` if a repeated call can succeed. ``MeantElsewhere``, a subclass of
    ``SchedulerUnavailable``, states that the call certainly created nothing.
    """

    problem: str | None
    """The reason why the last response contains the crawlers from an older catalogue."""

    def deploy(self, deployment: Deployment) -> list[DeployedTask]: ...

    def crawlers(self) -> list[CrawlerDefinition]: ...


class RowOrder(Protocol):
    """The input of a workflow that belongs to one stored row."""

    WORKFLOW: ClassVar[str]
    """The name of the workflow."""
    WAKES: ClassVar[bool]
    """True if a workflow that is already open must read its row again."""


class WorkflowDirectory(KnowsRuns, Protocol):
    """The workflows in Temporal: methods that query, start, signal and end them. All methods raise
    ``TemporalUnavailable``.
    """

    def has_begun(self, workflow_id: str) -> None:
        """Let further steps of this workflow take precedence over the first steps of other
        workflows, if the server supports this. Never raises.
        """

    def is_open(self, owner: Owner) -> bool:
        """Return whether the chain of executions that began with ``owner.first_run_id`` is still
        open.
        """

    def state(self, workflow_id: str, first_run_id: str | None = None) -> WorkflowState:
        """Return whether the workflow is open, and how it closed. If ``first_run_id`` is given,
        only the chain of executions that began with this id is considered.
        """

    def open_runs(
        self, after: str | None = None, limit: int = 100
    ) -> tuple[list[OpenWorkflow], str | None]:
        """Return a page of the open workflows for runs and managers, and the position of the next
        page. The position is ``None`` on the last page. The result can be a few seconds old, so
        call ``confirm`` for each workflow before a decision.
        """

    def confirm(self, workflow: OpenWorkflow) -> OpenWorkflow | None:
        """Return the current state of this workflow, or ``None`` if it is no longer open."""

    def of_run(self, run: RunRef) -> OpenWorkflow | None:
        """Return the open lifecycle workflow that belongs to exactly this run. The result can be a
        few seconds old.
        """

    def ended_runs(self) -> list[int]:
        """Return runs whose workflow failed or was ended from outside in the last minutes.

        The result can be a few seconds old.
        """

    def record(self, workflow: OpenWorkflow) -> WorkflowRecord:
        """Return the data about the run's row that its workflow has. The query can be answered only
        while a worker is running.
        """

    def begin(
        self, request: RunRequest, workflow_id: str, run_uid: str, *, repair: bool = False
    ) -> object:
        """Start a workflow for the stored run with this uid, or find the open one. If ``repair`` is
        true, the new workflow replaces one that was lost. If the workflow of another run is open
        under this id, part of the uid is added to the id.
        """

    def begin_for(self, order: RowOrder, workflow_id: str) -> object:
        """Start the workflow of a stored row, or find the open one."""

    def wake(self, workflow_id: str) -> bool:
        """Make the workflow of a manager or a graph read its rows now.

        Return ``False`` if no workflow with this id is open.
        """

    def stop(self, workflow_id: str, stop: StopRequest, *, run_uid: str | None = None) -> bool:
        """Signal a stop to a workflow. Return ``False`` if no workflow with this id is open, or if
        the workflow belongs to another run.
        """

    def delete_executions(self, run: RunRef, workflow_ids: Sequence[str]) -> int:
        """Delete executions of exactly this run with their histories, and executions of these
        workflows that belong to no run. Each call deletes some executions. Return the number of
        executions that Temporal listed. The list can be a few seconds old.
        """

    def hurry(self, owner: Owner) -> None:
        """Request a poll of the run now, even if a step of the run is waiting for its next retry. A
        closed chain is not an error.
        """

    def deliver_again(self, fence: Fence, *, event: bool, files: bool) -> object:
        """Start the repeated delivery for an ended attempt, or find the delivery under way."""

    def deliver_event(self, key: str) -> None:
        """Start the separate delivery of the event with this key, or find the delivery under
        way."""

    def end(self, workflow: OpenWorkflow, reason: str) -> None:
        """Terminate this execution and record the reason.

        A closed execution is not an error.
        """


class Notifier(Protocol):
    """Pushes events to the front end. A failed push is not repeated, and never fails a run."""

    name: str

    sends: bool
    """True if ``push`` sends anything. If this is false, ``push`` need not be called."""

    def push(self, event: Event) -> None:
        """Deliver one event. Raises ``NotDelivered``. The implementation needs a time limit,
        because the caller waits for at most 1.4 s.
        """

    def check(self) -> str:
        """Return the name of the receiver of the pushes. Raises ``NotDelivered``, which
        contains the reason and the fix, if the receiver cannot be reached.
        """


class EventSink(Protocol):
    """The bus or file from which data pipelines read events."""

    name: str

    def send(self, event: Event) -> None:
        """Deliver one event. Receivers recognise a repeated event by the event's id. Raises
        ``NotDelivered``.
        """

    def check(self) -> str:
        """Return the name of the receiver of the events, without sending an event.

        Raises ``NotDelivered`` if the receiver cannot be used.
        """


class FileArchive(Protocol):
    """The archive that stores the zips with supporting files."""

    def store(
        self,
        key: str,
        sources: Sequence[FileSource],
        manifest: Mapping[str, object],
        progress: Callable[[int, int], None],
        *,
        files_max: int | None = None,
    ) -> ExportResult:
        """Write one zip under ``key``, either completely or not at all.

        A second call with the same key replaces the zip. The zip contains at most ``files_max``
        files, and its manifest names the files that are left out. ``progress`` is called with the
        numbers of files and bytes written so far. Raises ``NotDelivered``.
        """

    def open(self, url: str) -> Iterator[bytes]:
        """Return the bytes of a stored archive."""

    def part(self, url: str, place: int, limit: int) -> FilePart:
        """Return at most ``limit`` bytes of a stored archive, starting at the offset ``place``, and
        the size of the archive.

        The offset must be less than the size. Raises ``NotDelivered``.
        """

    def remove(self, run: RunRef) -> None:
        """Remove all archives of the run, including incomplete ones.

        Raises ``NotDelivered``.
        """

    def check(self) -> str:
        """Write a small test object, remove the object, and return the name of the archive.

        Raises ``NotDelivered``.
        """


class TaskBundles(Protocol):
    """Object storage for the tasks' supporting files, with a prefix for each task."""

    def ticket(
        self, run: RunRef, index: int, attempt: int, part: int | None, size: int, md5: str
    ) -> Ticket:
        """Return the permission to write one part of a task's bundle. The part has ``size`` bytes
        and this digest. ``part`` is ``None`` for the end of the bundle. ``md5`` is in base64.
        Raises ``InvalidRequest`` if the part is too large or there are too many parts, and
        ``NotDelivered`` if nothing can be signed now.
        """

    def read(self, run: RunRef, index: int, attempt: int) -> Iterator[bytes]:
        """Return the bytes of the bundle, a ``tar.gz``.

        Raises the same errors as ``FileSource.bundle``.
        """


class FilesPlace(Protocol):
    """A location where tasks leave files, with the methods that remove these files. Runs are
    identified by ``RunRef``, including the uid. Raises ``ClusterUnavailable`` and ``NotDelivered``.
    """

    @property
    def where(self) -> str:
        """The location, in words for people."""

    def runs(self) -> set[str]:
        """Return the names of all run folders. A name can have any form."""

    def put_aside(self, run: RunRef) -> None:
        """Move the run's files away at once, so that no later attempt resumes from the run's saved
        state.
        """

    def remove(self, run: RunRef, attempt: int) -> None:
        """Remove the files of the run's attempts up to this attempt. A second call removes the
        files that are left.
        """

    def finish(self) -> list[str]:
        """Remove files that interrupted calls moved away.

        Return the files that could not be removed, with the reasons.
        """


class Catalogue(Protocol):
    """The definitions of the crawlers that may be run."""

    @property
    def problem(self) -> str | None:
        """The reason why the newest definitions cannot be read, so that older ones are in use."""

    def get(self, name: str) -> CrawlerDefinition | None: ...

    def all(self) -> list[CrawlerDefinition]: ...


class UserCodeProcess(Protocol):
    """The process that runs user code and holds the instance of a manager's class. It handles one
    call at a time. During a call, the class can send questions; ``answer`` is then called with the
    question's name and arguments. Raises ``UserCodeFailed``. The form and the size of the values
    that the process returns are checked, but their contents are not checked.
    """

    fingerprint: str
    """The fingerprint of the source code of the loaded class."""
    on_code_change: str
    """The class's choice if its source code differs from the recorded code: ``replay``,
    ``continue`` or ``fail``.
    """
    on_item_error: str
    """The class's choice for a yield that is not a valid job: ``stop`` or ``skip``."""
    on_hook_error: str
    """The class's choice if errors occurred in its hooks: ``fail`` or ``complete``."""
    failed_outcomes: frozenset[str]
    """The outcomes that the object treats as failures. Empty until ``begin`` is called."""
    generation: int | None
    """The generation that the process uses in its writes, or ``None`` until ``begin`` is called."""
    settled: bool
    """True if all decisions of the process are recorded. The caller that commits the decisions sets
    this field. A process that is not settled is discarded.
    """

    @property
    def at(self) -> str | None:
        """The method of the class that is executing or was executed last, or ``None`` if no method
        was called.
        """

    @property
    def done(self) -> Decision | None:
        """The decision of the hooks that returned in the last ``cycle``, even if the cycle itself
        failed, or ``None`` if unknown. This decision is committed if the decision of the cycle
        cannot be committed.
        """

    def begin(
        self, start: Start, generation: int, answer: Callable[[str, Mapping[str, Any]], Any]
    ) -> object:
        """Create the object: call ``__init__``, ``on_start`` and the resume hooks."""

    def page(self, after: int, answer: Callable[[str, Mapping[str, Any]], Any]) -> Page:
        """Return the values that the source yields after this position."""

    def cycle(self, facts: Facts, answer: Callable[[str, Mapping[str, Any]], Any]) -> Decision:
        """Call ``workflow_loop`` once and return its decision.

        The caller must commit the whole decision or discard the process.
        """

    def finish(
        self, reason: str | None, answer: Callable[[str, Mapping[str, Any]], Any]
    ) -> Decision:
        """Call ``on_close`` and return its decision. After the last cycle, the decision includes
        and replaces the decision of that cycle. After a stop, the decision has the close reason
        ``reason`` unless the class set a reason.
        """


class UserCodeProcesses(Protocol):
    """The processes on one worker that run user code. Each process belongs to one manager."""

    @property
    def queue(self) -> str | None:
        """The task queue that only this worker serves, or ``None`` if the worker is shutting
        down.
        """

    def use(
        self, plan: str, manager_id: int, attempt: int, generation: int, alive: Callable[[], None]
    ) -> AbstractContextManager[UserCodeProcess]:
        """Return the process of this manager, reserved for the caller until the block ends.

        If there is no process of this attempt and generation, a new process is started. ``alive``
        is called repeatedly during each wait, and an error that it raises ends the wait and the
        process. A process that is not settled ends if the block raises an error, too. Raises
        ``UserCodeFailed`` if the class cannot be loaded.
        """

    def drop(self, manager_id: int) -> None:
        """End the manager's process, if there is one."""

    def printed(self, manager_id: int) -> str:
        """Return the output of the manager's processes since the last call. The output has at most
        16 KiB, is meant for people, and contains no secrets. Output of a process in use is not
        included.
        """


class FunctionHost(Protocol):
    """A process that calls functions of graphs, one after another. The values that it returns are
    checked and limited.
    """

    def call(
        self,
        call: FunctionCall,
        answer: Callable[[str, Mapping[str, Any]], Any],
        alive: Callable[[], None],
    ) -> FunctionReply:
        """Execute the function once and return its outcome.

        ``answer`` is called with each question from the function. ``alive`` is called repeatedly,
        and an error that it raises ends the process. Raises ``UserCodeFailed``: if ``missing`` is
        true, this worker cannot call the function but another worker may; if ``for_good`` is true,
        no worker can call the function. Otherwise the function failed, and its process ended unless
        ``lives`` is true. Raises ``WorkerLeaves`` if the worker ended all its processes.
        """

    def give(self, values: Iterable[tuple[Mapping[str, Any], Iterable[bytes]]]) -> int:
        """Pass values to the function, each with its description. Return the size of the values,
        which the answer must contain. Raises ``InvalidRequest`` if a process cannot hold the
        values, and ``UserCodeFailed`` if this machine has no space.
        """

    def taken(self, size: int) -> list[bytes]:
        """Return the values that a question from the function contains.

        Raises ``InvalidRequest`` for invalid values.
        """

    def end_soon(self) -> None:
        """Send SIGTERM to the process, so that it ends soon."""

    def printed(self) -> str:
        """Return the output since the last call. The output has at most 16 KiB, is meant for
        people, and contains no secrets.
        """


class FunctionHosts(Protocol):
    """The processes on one worker that call functions of graphs."""

    def use(self, graph: str) -> AbstractContextManager[FunctionHost]:
        """Return a process that is reserved for the caller until the block ends. The process runs
        only code from this graph. Raises ``UserCodeFailed`` if no process can be started, and
        ``WorkerLeaves`` if the worker is shutting down.
        """


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One execution of a step's function, with all data that its process needs."""

    function: str
    """The function, as ``module:qualname``."""
    graph: str
    """The key of the graph to which the step belongs."""
    job: Mapping[str, Any]
    """The step, in the form that ``graphs.job.Job.of`` reads."""
    limit_s: float
    """The maximum number of seconds for the function."""
    graft: bool = False
    given: Iterable[tuple[Mapping[str, Any], Iterable[bytes]]] = ()
    """The input of a cascade. First come the contexts, from the outermost graph to the innermost,
    each with an empty ``path``. Then come the records of the step's dependencies, each with its
    ``path`` relative to the step's level.
    """


@dataclass(frozen=True, slots=True)
class FunctionReply:
    """The result of a function that returned."""

    kind: str
    """``done`` (no result), ``value`` (a result), ``cancel`` (the function returned ``Cancel``) or
    ``snooze`` (it returned ``Snooze``).
    """
    result: Sequence[bytes] | None = None
    """The result, encoded and packed (``domain.values``)."""
    result_bytes: int = 0
    reason: str | None = None
    seconds: float = 0.0


class WorkerLeaves(Exception):
    """This worker is shutting down and ending its processes. The calls in these processes have not
    failed.
    """


@dataclass(eq=False, repr=False)
class UserCodeFailed(Exception):
    """User code failed. The message names the error, its position in the code and, if possible, the
    fix.
    """

    text: InitVar[str]
    _: KW_ONLY
    item_id: int | None = None
    """The job whose hooks were executing."""
    lives: bool = False
    """True if the process is still running."""
    for_good: bool = False
    """True if every further try fails in the same way until the code or the options change."""
    missing: bool = False
    """True if this worker could not load the class. Another worker may be able to load it."""
    struck: bool = False
    """True if the process was ended from outside (SIGKILL, SIGTERM)."""

    def __post_init__(self, text: str) -> None:
        super().__init__(text)
