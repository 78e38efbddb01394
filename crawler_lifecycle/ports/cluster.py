"""Ports for the cluster where tasks execute. Each port contains only what its users need. All
methods raise ``ClusterUnavailable`` when they get no response from the cluster, unless they state
otherwise. An object that has the number of a run but a different uid is foreign
(``RunRef.foreign``). A foreign object is reported, but never used, changed or ended for the run.
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

#: Called with a run's number, a time, and the index and attempt of each changed task; see
#: ``Observer.watch``.
Changed = Callable[[int, datetime, frozenset[tuple[int, int]] | None], None]


class TaskDetails(Protocol):
    """The part of a cluster that returns debugging information about tasks."""

    def details(self, run: RunRef, tasks: Sequence[TaskRef]) -> Iterable[Details]:
        """Return debugging information about the tasks. It may be read only while the result is
        being iterated over. A task is left out if nothing can be read about the task.
        """


class TaskPolls(TaskDetails, Protocol):
    """The part of a cluster that reads the states of a run's tasks."""

    def poll(self, run: RunRef, tasks: Sequence[TaskRef]) -> Poll:
        """Return a complete reading of these tasks: exactly one observation for each task.
        ``tasks`` can contain only some of the run's tasks. The poll then reads only data about
        these tasks, and makes the same observations as a poll of all tasks. A task that is missing
        here may exist in another namespace (``TaskRef.place``). Its absence then proves nothing,
        and the poll raises ``ClusterUnavailable``.
        """


class TaskPlaces(TaskPolls, Protocol):
    """The namespace in which tasks are created, and polls of tasks that a deployment may have
    created.
    """

    kind: str

    def place(self, beside: Collection[str] = ()) -> str | None:
        """Return the namespace in which tasks are created and read, or ``None`` if there is only
        one.

        The string has at most 200 characters, and only the cluster interprets it. It is recorded
        with a task before the task is requested. ``beside`` contains the namespaces of the run's
        earlier tasks. Raises ``ClusterUnavailable`` if the cluster does not respond, or if a poll
        here could not find tasks in these namespaces.
        """


class TaskStops(TaskDetails, Protocol):
    """The part of a cluster that stops tasks."""

    log_fades: bool
    """True if a task's output can disappear soon after the task is stopped. The output must then be
    read before the stop.
    """

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Ask the task to end.

        A second call sends no second signal. A missing task is not an error unless it may be in
        another namespace. An object with the same name is not touched if its uid differs from
        ``task.uid``.
        """

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """Kill the task and everything that it started, without a stop signal. An object with the
        same name but a different uid is not touched.
        """


class TaskInventory(Protocol):
    """The tasks that exist on the cluster, even if the database does not have them."""

    kind: str

    def inventory(
        self,
        *,
        run_id: int | None = None,
        after: tuple[int, int, int] | None = None,
        limit: int = 500,
    ) -> list[ClusterTask]:
        """Return all our waiting and executing tasks, with any owner or none, sorted by run, index
        and attempt.

        ``run_id`` limits the list to one run. ``after`` is the last task of the previous page.
        """

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        """Return records of all tasks of exactly this run that left data on the cluster, sorted by
        index. Ended tasks are included. If an index was deployed in several attempts, only the
        record of the latest attempt is returned. The list has at most 100,000 records.
        """


class RunPolls(TaskInventory, TaskPolls, Protocol):
    """The parts of a cluster that a poll of a run needs."""


class AuditedCluster(TaskInventory, TaskPolls, TaskStops, Protocol):
    """The parts of a cluster that an audit needs to find, poll and end tasks."""


class Cluster(AuditedCluster, TaskPlaces, Protocol):
    """All parts of a cluster that polls, deployments, stops and audits need."""


class TaskFiles(Protocol):
    """The tasks' supporting files for the archive. The methods need no connection to the cluster
    itself.
    """

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        """Return the files that these tasks left.

        A task without files can be left out. If files that should exist are missing, the source
        reports this.
        """


class EvidenceKeeper(Protocol):
    """The evidence of ended tasks that a cluster keeps until their outcomes are recorded."""

    def kept(self) -> list[SavedOutcome]:
        """Return all our ended tasks that are not released yet, with any owner or none."""

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """Allow the cluster to remove the evidence of these tasks, because their outcomes were
        committed. Later polls need not find the tasks. Logs and files remain for as long as the
        cluster keeps them. It is not an error if a task was already released, is gone, or has a
        name that another object now uses.
        """


class Deployer(Protocol):
    """The part of a cluster that the reference scheduler service needs."""

    kind: str

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[DeployedTask]:
        """Start the tasks.

        Each (run, attempt, index) is started at most once, even by concurrent calls. Raises
        ``DeploymentExpired`` if ``expires_at`` passes before all tasks are created; the tasks
        created before then remain.
        """


class Observer(Protocol):
    """A watcher that notices changes on a cluster at once. An observer only saves time: polls
    decide what is true, and find every change even without an observer. Any number of observers can
    watch one cluster, and each observer notices every change.
    """

    def watch(self, changed: Changed, over: threading.Event) -> None:
        """Call ``changed(run_id, at, tasks)`` for every start, end or disappearance of a task,
        until ``over`` is set.

        ``tasks`` contains the index and the attempt of each changed task, or is ``None`` if any
        task of the run may have changed. The change happened at ``at`` or before, so a poll that
        observed at ``at`` or later has seen the change. Possible changes from before the watch are
        reported first, perhaps needlessly. Never raises: an observer that cannot watch reports this
        through ``health`` and tries again. After the method has returned, it can be called again.
        ``changed`` must return at once.
        """

    def health(self) -> ObserverHealth:
        """Return whether the observer can currently watch and, if it cannot, the reason."""

    def counted(self) -> Sequence[LiveCounters]:
        """Return the counters of executing crawlers that can be read in a few seconds.

        If there are a great many crawlers, each call reads the next group of crawlers. Crawlers
        without counters are left out. Raises an error only if the cluster does not respond.
        """


class TaskLogs(Protocol):
    """The output of tasks that can be read here. Raises ``ClusterUnavailable`` if there is no
    answer. A crawler's output is never trusted: the output can have any length and contain any
    bytes.
    """

    def read(self, run: RunRef, task: TaskRef, after: int | None, limit: int) -> LogPart | None:
        """Return at most ``limit`` bytes of a task's log, starting at the position ``after``. If
        ``after`` is ``None``, return the end of the log. If the position is beyond the end, the log
        was truncated since the last call, and reading continues at the beginning of the log. Return
        ``None`` if there is no log here, because the task has not begun, is executing on another
        machine, or was removed.
        """


class LiveFiles(Protocol):
    """Supporting files of ended and executing tasks that can be read from this machine. Raises
    ``ClusterUnavailable``. The crawler chooses the names and the contents, which can be any bytes.
    A call never returns more than its limit allows.
    """

    def list(self, run: RunRef, task: TaskRef, most: int) -> TaskFileList | None:
        """Return at most ``most`` files of a task, or ``None`` if the task's folder is not on this
        machine."""

    def read(
        self, run: RunRef, task: TaskRef, path: str, place: int, limit: int
    ) -> FilePart | None:
        """Return at most ``limit`` bytes of a file, starting at the offset ``place``. Return
        ``None`` if there is no regular file at ``path``.
        """
