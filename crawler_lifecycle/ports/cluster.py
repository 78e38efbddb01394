"""Ports of the cluster where tasks execute, each as narrow as who needs it.

All raise ``ClusterUnavailable`` for anything but an answer, where they do not say otherwise. What lies under a run's
number and does not bear its uid is foreign: it is told (``RunRef.foreign``), and never taken for the run's, changed or
ended for it.
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

        Where a task of which nothing is found was put somewhere else (``TaskRef.place``), nothing is proved about it:
        that is an error.
        """


class TaskPlaces(TaskLooks, Protocol):
    """The places where tasks are put, and looks for what a deployment may have brought there."""

    kind: str

    def place(self, beside: Collection[str] = ()) -> str | None:
        """The place where tasks are put and looked for, in at most 200 characters that only the cluster understands.

        It goes on record with a task before the task is asked for. ``None``: there is but one place. Raises
        ``ClusterUnavailable`` also when tasks at one of the places ``beside`` may live where nobody would look.
        """


class TaskStops(TaskDetails, Protocol):
    """Stops, and what has to be read before."""

    log_fades: bool
    """True when a task's output may be gone soon after it was stopped, so that it has to be read before."""

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Ask the task to end, once: a second call sends no second signal. A task that is gone is no error, one that
        may live in another place is.

        Another object under its name (``task.uid`` is not its uid) is left alone.
        """

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """End the task and everything it started, now. Another object under its name is left alone."""


class TaskInventory(Protocol):
    """The tasks that are on the cluster, whatever the database knows of them."""

    kind: str

    def inventory(
        self, *, run_id: int | None = None, after: tuple[int, int, int] | None = None, limit: int = 500
    ) -> list[ClusterTask]:
        """Everything of ours that waits or executes, in the order of run, index and attempt, whoever it belongs to.

        ``run_id`` asks for one run; ``after`` is the last one of the page before.
        """

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        """Records of every task of this very run that left anything here, ended ones too, by index.

        Of an index that was deployed in several attempts the latest. At most 100,000.
        """


class AuditedCluster(TaskInventory, TaskLooks, TaskStops, Protocol):
    """The cluster as an audit needs it, to find tasks, look at them and end them."""


class Cluster(AuditedCluster, TaskPlaces, Protocol):
    """All that looks, deployments, stops and audits need, for whoever puts a process together."""


class TaskFiles(Protocol):
    """Supporting files of tasks, for their archive. Needs no way to the cluster itself."""

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        """The files that these tasks left; a task that left nothing may be left out. When files should be there and are
        not, their source says so."""


class EvidenceKeeper(Protocol):
    """Ends of tasks that a cluster keeps until they are on record."""

    def kept(self) -> list[KeptEnd]:
        """Every task of ours that has ended and is not released, whoever it belongs to."""

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """The end of these tasks was committed: what is kept for the sake of evidence may go.

        Later looks need not find them any more; logs and files stay for as long as the cluster keeps them. Released
        twice, gone, or another object under the name: no error.
        """


class Deployer(Protocol):
    """The cluster as the reference scheduler service needs it."""

    kind: str

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[Deployed]:
        """Start the tasks, each at most once per (run, attempt, index), whoever else calls at the same time.

        Raises ``DeploymentExpired`` when ``expires_at`` passed before a creation (what was created stays).
        """


class Observer(Protocol):
    """A watcher that notices changes on a cluster at once. It only speeds things up: looks tell what is true, and find
    everything later.

    Any number of observers may watch one cluster; each of them notices everything.
    """

    def watch(self, changed: Callable[[int, datetime], None], over: threading.Event) -> None:
        """Until ``over`` is set, call ``changed(run_id, at)`` for every start, end or disappearance of a task.

        ``at`` is a moment at which the change had happened: a look that observed at or after it has seen the change.
        Everything that may have changed while nobody watched is told first, some of it perhaps for nothing. Raises
        nothing: an observer that cannot see says so by ``health`` and tries again. May be called again afterwards.
        ``changed`` must return at once.
        """

    def health(self) -> ObserverHealth:
        """Tell whether it sees now."""

    def counted(self) -> Sequence[Counted]:
        """The counts of crawlers that execute now, as far as they can be read in a few seconds: of very many those
        whose turn it is. Raises nothing but what the cluster cannot be asked for; one that says nothing is left out.
        """


class TaskLogs(Protocol):
    """The output of tasks, as far as it can be read here. Raises ``ClusterUnavailable`` for anything but an answer.

    What a crawler printed is never trusted: bytes, of any kind and number.
    """

    def read(self, run: RunRef, task: TaskRef, after: int | None, limit: int) -> LogPart | None:
        """At most ``limit`` bytes of a task's log: from the place ``after`` on, or its end when that is ``None``.

        A place beyond the end is that of a log which was cut meanwhile: reading goes on at its beginning. ``None``
        when there is no log here: the task has not begun, executes on another machine, or was cleared away.
        """


class LiveFiles(Protocol):
    """Supporting files of tasks, also of those that execute, as far as they can be read from here.

    Raises ``ClusterUnavailable``. Names and contents are the crawler's: bytes of any kind, never more than asked for.
    """

    def list(self, run: RunRef, task: TaskRef, most: int) -> TaskFileList | None:
        """At most ``most`` files of a task; ``None`` when its folder is not here."""

    def read(self, run: RunRef, task: TaskRef, path: str, place: int, limit: int) -> FilePart | None:
        """At most ``limit`` bytes of a file from ``place`` on; ``None`` when there is no such regular file."""
