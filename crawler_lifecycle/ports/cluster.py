"""Ports of the cluster where tasks execute, each as small as its user needs.

All methods raise ``ClusterUnavailable`` when they get no answer from the cluster, unless they state
otherwise. An object that has the number of a run but another uid is foreign (``RunRef.foreign``).
It is reported, and it is never used, changed or ended for the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.audits.audit import ClusterTask
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.run_ref import RunRef

from .files import FilePart, FileSource, LogPart, SavedOutcome, TaskFileList
from .polls import Details, LiveCounters, ObserverHealth, Poll
from .runs import DeployedTask, Deployment, TaskRecord, TaskRef

#: Called with the number of a run, a time, and the index and attempt of each task that changed; see
#: ``Observer.watch``.
Changed = Callable[[int, datetime, frozenset[tuple[int, int]] | None], None]


class TaskDetails(Protocol):
    """The debugging information about tasks."""

    def details(self, run: RunRef, tasks: Sequence[TaskRef]) -> Iterable[Details]:
        """Return debugging information about the tasks, perhaps read only while it is iterated.

        A task is left out when nothing can be read about it."""


class TaskPolls(TaskDetails, Protocol):
    """The part of a cluster that reads the states of a run's tasks."""

    def poll(self, run: RunRef, tasks: Sequence[TaskRef]) -> Poll:
        """Return a complete reading of these tasks: exactly one observation for each task.

        They may be a few of the run's tasks: then the poll reads only what is theirs, and its
        observations are those of a poll of all tasks.

        A task that is missing here may have been created in another namespace (``TaskRef.place``).
        Its absence then proves nothing, and the poll raises ``ClusterUnavailable``.
        """


class TaskPlaces(TaskPolls, Protocol):
    """The namespace in which tasks are created, and polls tasks that a deployment may have
    created.
    """

    kind: str

    def place(self, beside: Collection[str] = ()) -> str | None:
        """Return the namespace in which tasks are created and read; ``None`` when there is only
        one.

        The text has at most 200 characters, and only the cluster understands it. It is recorded
        with a task before the task is requested. ``beside`` are the namespaces of earlier tasks.
        Raises ``ClusterUnavailable`` also when a poll here could not find tasks of these
        namespaces.
        """


class TaskStops(TaskDetails, Protocol):
    """The part of a cluster that stops tasks."""

    log_fades: bool
    """True when a task's output may disappear soon after its stop. The output must then be read
    before the stop.
    """

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Ask the task to end. A second call sends no second signal.

        A missing task is no error, unless it may live in another namespace. An object with the same
        name but another uid than ``task.uid`` is not touched.
        """

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """End the task and everything that it started, at once.

        An object with the same name but another uid is not touched.
        """


class TaskInventory(Protocol):
    """The tasks that the cluster has, even if the database does not know them."""

    kind: str

    def inventory(
        self,
        *,
        run_id: int | None = None,
        after: tuple[int, int, int] | None = None,
        limit: int = 500,
    ) -> list[ClusterTask]:
        """Return all our waiting and executing tasks, of all owners, in the order of run, index and
        attempt.

        ``run_id`` limits the list to one run. ``after`` is the last task of the page before.
        """

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        """Return records of all tasks of exactly this run that left data on the cluster, by index.

        Ended tasks are included. If an index was deployed in several attempts, only the latest is
        returned. The list has at most 100,000 records.
        """


class RunPolls(TaskInventory, TaskPolls, Protocol):
    """The parts of a cluster that a poll of a run needs."""


class AuditedCluster(TaskInventory, TaskPolls, TaskStops, Protocol):
    """The parts of a cluster that an audit needs to find tasks, poll them and end them."""


class Cluster(AuditedCluster, TaskPlaces, Protocol):
    """All parts of a cluster that polls, deployments, stops and audits need."""


class TaskFiles(Protocol):
    """The supporting files of tasks, for the archive.

    The methods need no connection to the cluster itself.
    """

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        """Return the files that these tasks left.

        A task without files may be left out. The source reports it when files are missing that
        should exist.
        """


class EvidenceKeeper(Protocol):
    """The evidence of ended tasks that a cluster keeps until the ends are recorded."""

    def kept(self) -> list[SavedOutcome]:
        """Return all our ended tasks that are not released yet, of all owners."""

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """Allow the cluster to remove the evidence of these tasks, because their ends were
        committed.

        Later polls need not find the tasks any more. Logs and files stay as long as the cluster
        keeps them. It is no error when a task was released before, is gone, or has a name that
        another object uses now.
        """


class Deployer(Protocol):
    """The part of a cluster that the reference scheduler service needs."""

    kind: str

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[DeployedTask]:
        """Start the tasks.

        Each (run, attempt, index) is started at most once, even by concurrent calls.

        Raises ``DeploymentExpired`` when ``expires_at`` passed before a task was created. Tasks
        that were created before stay.
        """


class Observer(Protocol):
    """A watcher that notices changes on a cluster at once.

    It only saves time: polls decide what is true, and they find all changes later.

    Any number of observers may watch one cluster. Each of them notices every change.
    """

    def watch(self, changed: Changed, over: threading.Event) -> None:
        """Call ``changed(run_id, at, tasks)`` for every start, end or disappearance of a task,
        until ``over`` is set.

        ``tasks`` are the index and the attempt of each task that changed; ``None``: perhaps any
        task of the run. The change happened at ``at`` or before. A poll that observed at ``at`` or
        later has seen it. Changes that may have happened before the watch are reported first; some
        of these reports may be needless. Raises nothing: an observer that cannot watch reports this
        by ``health`` and tries again. May be called again afterwards. ``changed`` must return at
        once.
        """

    def health(self) -> ObserverHealth:
        """Return the state of the observer: whether it can watch now, and the reason if it
        cannot.
        """

    def counted(self) -> Sequence[LiveCounters]:
        """Return the counters of executing crawlers that can be read in a few seconds.

        If there are very many crawlers, each call reads some of them in turn. A crawler without
        counters is left out. Raises an error only when the cluster gives no answer.
        """


class TaskLogs(Protocol):
    """The output of tasks that can be read here.

    Raises ``ClusterUnavailable`` when it gets no answer.

    The output of a crawler is never trusted: it is bytes of any kind and number.
    """

    def read(self, run: RunRef, task: TaskRef, after: int | None, limit: int) -> LogPart | None:
        """Return at most ``limit`` bytes of a task's log, from the position ``after`` on.

        ``None`` as ``after`` reads the end of the log.

        If the position is beyond the end, the log was cut since the last call, and reading
        continues at its beginning. Returns ``None`` when there is no log here: the task has not
        begun, executes on another machine, or was removed.
        """


class LiveFiles(Protocol):
    """Supporting files of ended and executing tasks that can be read from here.

    Raises ``ClusterUnavailable``. The crawler chooses the names and the contents, which may be
    bytes of any kind. A call never returns more than its limit.
    """

    def list(self, run: RunRef, task: TaskRef, most: int) -> TaskFileList | None:
        """Return at most ``most`` files of a task; ``None`` when its folder is not here."""

    def read(
        self, run: RunRef, task: TaskRef, path: str, place: int, limit: int
    ) -> FilePart | None:
        """Return at most ``limit`` bytes of a file from the offset ``place`` on; ``None`` when
        there is no regular file at ``path``.
        """
