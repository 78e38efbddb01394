"""Ports of the cluster where tasks execute, each as small as its user needs.

All raise ``ClusterUnavailable`` for anything but an answer, unless they say otherwise. Objects with a run's number but
not its uid are foreign: they are reported (``RunRef.foreign``), and never used, changed or ended for the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.audits.audit import ClusterTask
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.run_ref import RunRef

from .files import FilePart, FileSource, KeptEnd, LogPart, TaskFileList
from .looks import Counted, Details, Look, ObserverHealth
from .runs import Deployed, Deployment, TaskRecord, TaskRef


class TaskDetails(Protocol):
    """Debugging information of tasks."""

    def details(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[Details]:
        """Debugging information; a task about which nothing can be read is left out."""


class TaskLooks(TaskDetails, Protocol):
    """Looks."""

    def look(self, run: RunRef, tasks: Sequence[TaskRef]) -> Look:
        """A complete reading for these tasks of the run: exactly one observation for each of them.

        If a missing task was created in another namespace (``TaskRef.place``), nothing is proved about it: that is an
        error.
        """


class TaskPlaces(TaskLooks, Protocol):
    """The namespace in which tasks are created, and looks for tasks that a deployment may have created."""

    kind: str

    def place(self, beside: Collection[str] = ()) -> str | None:
        """The namespace in which tasks are created and read, in at most 200 characters that only the cluster
        understands.

        It is recorded with a task before the task is requested. ``None``: there is only one. Raises
        ``ClusterUnavailable`` also when tasks of the namespaces ``beside`` may live where no look would find them.
        """


class TaskStops(TaskDetails, Protocol):
    """Stops tasks, and says what has to be read before."""

    log_fades: bool
    """True when a task's output may disappear soon after its stop, so that it has to be read before."""

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Ask the task to end, once: a second call sends no second signal. A missing task is no error, unless it may
        live in another namespace.

        Another object under its name (``task.uid`` is not its uid) is left alone.
        """

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """End the task and everything it started, now. Another object under its name is left alone."""


class TaskInventory(Protocol):
    """The tasks on the cluster, whatever the database knows of them."""

    kind: str

    def inventory(
        self, *, run_id: int | None = None, after: tuple[int, int, int] | None = None, limit: int = 500
    ) -> list[ClusterTask]:
        """All our waiting and executing tasks, in the order of run, index and attempt, whoever owns them.

        ``run_id`` asks for one run; ``after`` is the last one of the page before.
        """

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        """Records of every task of this very run that left anything here, ended ones too, by index.

        Of an index that was deployed in several attempts the latest. At most 100,000.
        """


class AuditedCluster(TaskInventory, TaskLooks, TaskStops, Protocol):
    """The cluster as an audit needs it, to find tasks, look at them and end them."""


class Cluster(AuditedCluster, TaskPlaces, Protocol):
    """All ports together, as looks, deployments, stops and audits need them."""


class TaskFiles(Protocol):
    """Supporting files of tasks, for their archive. Needs no way to the cluster itself."""

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        """The files that these tasks left; a task that left nothing may be left out. When files should be there and are
        not, their source says so."""


class EvidenceKeeper(Protocol):
    """Ends of tasks that a cluster keeps until they are on record."""

    def kept(self) -> list[KeptEnd]:
        """Every ended task of ours that is not released yet, whoever owns it."""

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """The end of these tasks was committed: objects that are kept as evidence may be removed.

        Later looks need not find them any more; logs and files stay for as long as the cluster keeps them. Released
        twice, gone, or another object under the name: no error.
        """


class Deployer(Protocol):
    """The cluster as the reference scheduler service needs it."""

    kind: str

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[Deployed]:
        """Start the tasks, each at most once per (run, attempt, index), also with concurrent calls.

        Raises ``DeploymentExpired`` when ``expires_at`` passed before a creation (what was created stays).
        """


class Observer(Protocol):
    """A watcher that notices changes on a cluster at once. It only speeds things up: looks decide what is true, and
    find everything later.

    Any number of observers may watch one cluster; each of them notices everything.
    """

    def watch(self, changed: Callable[[int, datetime], None], over: threading.Event) -> None:
        """Until ``over`` is set, call ``changed(run_id, at)`` for every start, end or disappearance of a task.

        ``at`` is a moment at which the change had happened: a look that observed at or after it has seen the change.
        Possible changes from before the watch are reported first, some of them perhaps needlessly. Raises nothing: an
        observer that cannot watch reports this by ``health`` and tries again. May be called again afterwards.
        ``changed`` must return at once.
        """

    def health(self) -> ObserverHealth:
        """Return whether it can watch now, and its state."""

    def counted(self) -> Sequence[Counted]:
        """The counters of executing crawlers, as far as they can be read in a few seconds; of very many crawlers, those
        of this turn. Raises an error only when the cluster cannot be asked; a crawler without counters is left out.
        """


class TaskLogs(Protocol):
    """The output of tasks, as far as it can be read here. Raises ``ClusterUnavailable`` for anything but an answer.

    What a crawler printed is never trusted: bytes, of any kind and number.
    """

    def read(self, run: RunRef, task: TaskRef, after: int | None, limit: int) -> LogPart | None:
        """At most ``limit`` bytes of a task's log: from the position ``after`` on, or its end when that is ``None``.

        A position beyond the end means that the log was cut meanwhile: reading continues at its beginning. ``None``
        when there is no log here: the task has not begun, executes on another machine, or was cleared away.
        """


class LiveFiles(Protocol):
    """Supporting files of tasks, also of those that execute, as far as they can be read from here.

    Raises ``ClusterUnavailable``. Names and contents are the crawler's: bytes of any kind, never more than asked for.
    """

    def list(self, run: RunRef, task: TaskRef, most: int) -> TaskFileList | None:
        """At most ``most`` files of a task; ``None`` when its folder is not here."""

    def read(self, run: RunRef, task: TaskRef, path: str, place: int, limit: int) -> FilePart | None:
        """At most ``limit`` bytes of a file from the position ``place`` on; ``None`` when there is no such regular
        file.
        """
