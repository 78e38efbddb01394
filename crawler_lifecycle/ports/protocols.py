"""Ports of everything outside but the database, whose ports are in ``store``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.adoption import WorkflowRecord
from crawler_lifecycle.domain.audit import ClusterTask, OpenWorkflow, WorkflowState
from crawler_lifecycle.domain.crawler import CrawlerDefinition
from crawler_lifecycle.domain.run import ExportResult, RunRequest
from crawler_lifecycle.domain.run_ref import RunRef

from .rows import Event
from .values import (
    Counted,
    Deployed,
    Deployment,
    Details,
    Fence,
    FilePart,
    FileSource,
    KeptEnd,
    LogPart,
    Look,
    ObserverHealth,
    Owner,
    TaskFileList,
    TaskRecord,
    TaskRef,
    Ticket,
)


class KnowsRuns(Protocol):
    """What lies outside of the database and bears the numbers of its runs, also of those that it has forgotten."""

    def highest_run(self, above: int = 0) -> int:
        """The highest number of a run that anything here bears, ``above`` when none is higher.

        Numbers over ``names.RUN_NUMBER_MAX`` are no run's. Raises an error of the domain for anything but an answer,
        also when there is too much to read all of it.
        """
        ...


class Cluster(KnowsRuns, Protocol):
    """Where tasks execute, as looks and stops see it. Raises ``ClusterUnavailable`` for anything but an answer.

    What lies under a run's number and does not bear its uid is foreign: it is told (``RunRef.foreign``), and never
    taken for the run's, changed or ended for it.
    """

    kind: str

    log_fades: bool
    """Whether what a task printed may be gone soon after it was stopped, so that it has to be read before."""

    def place(self, beside: Collection[str] = ()) -> str | None:
        """Where tasks are put and looked for, in at most 200 characters that only the cluster understands.

        It goes on record with a task before the task is asked for. ``None``: there is but one place. Raises
        ``ClusterUnavailable`` also when tasks at one of the places ``beside`` may live where nobody would look.
        """
        ...

    def look(self, run: RunRef, tasks: Sequence[TaskRef]) -> Look:
        """A complete reading for these tasks of the run: exactly one observation for each of them.

        Where a task of which nothing is found was put somewhere else (``TaskRef.place``), nothing is proved about it:
        that is an error.
        """
        ...

    def details(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[Details]:
        """Debugging information; a task about which nothing can be read is left out."""
        ...

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Ask the task to end, once: a second call sends no second signal. A task that is gone is no error, one that
        may live in another place is.

        Another object under its name (``task.uid`` is not its uid) is left alone.
        """
        ...

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """End the task and everything it started, now. Another object under its name is left alone."""
        ...

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """The end of these tasks was committed: what the cluster keeps for the sake of evidence may go.

        Later looks need not find them any more; logs and files stay for as long as the cluster keeps them. Released
        twice, gone, or another object under the name: no error.
        """
        ...

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        """The folders that hold the supporting files of these tasks (those that exist)."""
        ...

    def inventory(
        self, *, run_id: int | None = None, after: tuple[int, int, int] | None = None, limit: int = 500
    ) -> list[ClusterTask]:
        """Everything of ours that waits or executes, in the order of run, index and attempt, whoever it belongs to.

        ``run_id`` asks for one run; ``after`` is the last one of the page before.
        """
        ...

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        """What is known about every task of this very run that left anything here, ended ones too, by index.

        Of an index that was deployed in several attempts the latest. At most 100,000.
        """
        ...


class EvidenceKeeper(Protocol):
    """A cluster that keeps the ends of tasks until they are released. Raises ``ClusterUnavailable``."""

    def kept(self) -> list[KeptEnd]:
        """Every task of ours that has ended and is not released, whoever it belongs to."""
        ...

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """As ``Cluster.release``."""
        ...


class Observer(Protocol):
    """What notices changes on a cluster at once. An accelerator: looks are what is true, and find all of it later.

    Any number of observers may watch one cluster; each of them notices everything.
    """

    def watch(self, changed: Callable[[int, datetime], None], over: threading.Event) -> None:
        """Until ``over`` is set, call ``changed(run_id, at)`` for every start, end or disappearance of a task.

        ``at`` is a moment at which the change had happened: a look that observed at or after it has seen the change.
        Everything that may have changed while nobody watched is told first, some of it perhaps for nothing. Raises
        nothing: an observer that cannot see says so by ``health`` and tries again. May be called again afterwards.
        ``changed`` must return at once.
        """
        ...

    def health(self) -> ObserverHealth:
        """Whether it sees now."""
        ...

    def counted(self) -> Sequence[Counted]:
        """What crawlers that execute now have counted, as far as that can be read in a few seconds: of very many those
        whose turn it is. Raises nothing but what the cluster cannot be asked for; one that says nothing is left out.
        """
        ...


class TaskLogs(Protocol):
    """What tasks print, as far as it can be read from here. Raises ``ClusterUnavailable`` for anything but an answer.

    What a crawler printed is never trusted: bytes, of any kind and number.
    """

    def read(self, run: RunRef, task: TaskRef, after: int | None, limit: int) -> LogPart | None:
        """At most ``limit`` bytes of a task's log: from the place ``after`` on, or its end when that is ``None``.

        A place beyond the end is that of a log which was cut meanwhile: reading goes on at its beginning. ``None``
        when there is no log here: the task has not begun, executes on another machine, or was cleared away.
        """
        ...


class LiveFiles(Protocol):
    """Supporting files of tasks, also of those that execute, as far as they can be read from here.

    Raises ``ClusterUnavailable``. Names and contents are the crawler's: bytes of any kind, never more than asked for.
    """

    def list(self, run: RunRef, task: TaskRef, most: int) -> TaskFileList | None:
        """At most ``most`` files of a task; ``None`` when its folder is not here."""
        ...

    def read(self, run: RunRef, task: TaskRef, path: str, place: int, limit: int) -> FilePart | None:
        """At most ``limit`` bytes of a file from ``place`` on; ``None`` when there is no such regular file."""
        ...


class Deployer(Protocol):
    """What the reference scheduler service needs of a cluster."""

    kind: str

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[Deployed]:
        """Start the tasks, each at most once per (run, attempt, index), whoever else calls at the same time.

        Raises ``DeploymentExpired`` when ``expires_at`` passed before a creation (what was created stays).
        """
        ...


class SchedulerClient(Protocol):
    """The scheduler service. Raises ``DeploymentRefused`` (never works) or ``SchedulerUnavailable`` (may work).

    ``MeantElsewhere``, which is one of the latter, says for certain that the call brought nothing.
    """

    def deploy(self, deployment: Deployment) -> list[Deployed]: ...

    def crawlers(self) -> list[CrawlerDefinition]: ...


class WorkflowDirectory(KnowsRuns, Protocol):
    """Which workflows are open, and what an audit does about them. Raises ``TemporalUnavailable``."""

    def is_open(self, owner: Owner) -> bool:
        """Whether the chain of executions that began with ``owner.first_run_id`` is still open."""
        ...

    def state(self, workflow_id: str, first_run_id: str | None = None) -> WorkflowState:
        """Whether the workflow is open, and how it closed; of the chain that began with ``first_run_id``, if given."""
        ...

    def open_runs(self, after: str | None = None, limit: int = 100) -> tuple[list[OpenWorkflow], str | None]:
        """A page of the lifecycle workflows that are open, and where the next one begins (``None``: nowhere).

        It may lag behind by seconds: ``confirm`` each one before anything is decided.
        """
        ...

    def confirm(self, workflow: OpenWorkflow) -> OpenWorkflow | None:
        """The same as it is now; ``None`` when it is no longer open."""
        ...

    def of_run(self, run: RunRef) -> OpenWorkflow | None:
        """The open lifecycle workflow that says it works for this very run. It may lag behind by seconds."""
        ...

    def record(self, workflow: OpenWorkflow) -> WorkflowRecord:
        """What the workflow itself knows of its run's row; it takes a worker to ask it."""
        ...

    def begin(self, request: RunRequest, workflow_id: str, *, repair: bool = False) -> None:
        """Start a workflow for a stored run, or find it open. ``repair``: in place of one that was lost."""
        ...

    def hurry(self, owner: Owner) -> None:
        """Have the run looked at now, also where a step of it waits for its next try. A closed chain is no error."""
        ...

    def deliver_again(self, fence: Fence, *, event: bool, files: bool) -> None:
        """Have what an ended attempt has to deliver sent again, or find that going on."""
        ...

    def end(self, workflow: OpenWorkflow, reason: str) -> None:
        """Terminate this execution, with its reason on record. One that is closed is no error."""
        ...


class Notifier(Protocol):
    """Pushes to the front end; never more than best effort, never a reason to fail."""

    name: str

    sends: bool
    """Whether ``push`` sends anything anywhere; when not, nobody needs to be asked to call it."""

    def push(self, event: Event) -> None:
        """Deliver one event. Raises ``NotDelivered``."""
        ...

    def check(self) -> str:
        """Say in words where pushes go. Raises ``NotDelivered`` with reason and cure when that cannot be reached."""
        ...


class EventSink(Protocol):
    """The bus or file that data pipelines read."""

    name: str

    def send(self, event: Event) -> None:
        """Deliver one event; receivers de-duplicate by its id. Raises ``NotDelivered``."""
        ...

    def check(self) -> str:
        """Say in words where events go, sending none. Raises ``NotDelivered`` when that cannot be used."""
        ...


class FileArchive(KnowsRuns, Protocol):
    """Where zips of supporting files go."""

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
        ...

    def open(self, url: str) -> Iterator[bytes]:
        """The bytes of a stored archive."""
        ...

    def check(self) -> str:
        """Say in words where archives go, after writing and removing a probe. Raises ``NotDelivered``."""
        ...


class TaskBundles(Protocol):
    """Object storage that tasks put their supporting files into, each below a place of its own."""

    def ticket(self, run: RunRef, index: int, attempt: int, part: int | None, size: int, md5: str) -> Ticket:
        """Leave to write one part of a task's bundle, or its end (``part`` ``None``): ``size`` bytes with this digest.

        ``md5`` is in base64. Raises ``InvalidRequest`` for a part that is too large or one too many, ``NotDelivered``
        when nothing can be signed now.
        """
        ...

    def read(self, run: RunRef, index: int, attempt: int) -> Iterator[bytes]:
        """The bundle, a ``tar.gz``. Raises as ``FileSource.bundle`` does."""
        ...


class FilesPlace(Protocol):
    """Where tasks in pods leave files, as whoever clears it sees it. Names are those of ``RunRef``, uid and all.

    Raises ``ClusterUnavailable`` and ``NotDelivered``.
    """

    @property
    def where(self) -> str:
        """For people."""
        ...

    def runs(self) -> set[str]:
        """The names that lie where those of runs should, whatever they are."""
        ...

    def put_aside(self, run: RunRef) -> None:
        """Take what a resume would go on with out of its way, at once."""
        ...

    def remove(self, run: RunRef, attempt: int) -> None:
        """Remove what the run's attempts up to this one left. Again: what is still there, or nothing."""
        ...

    def finish(self) -> list[str]:
        """Remove what calls that were killed had put aside; what could not be removed, and why."""
        ...


class Catalogue(Protocol):
    """The crawlers that may be run."""

    def get(self, name: str) -> CrawlerDefinition | None: ...

    def all(self) -> list[CrawlerDefinition]: ...
