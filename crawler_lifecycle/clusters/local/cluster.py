"""The port ``Cluster`` on this machine: polls and stops (docs/clusters.md#the-local-cluster).

There is no daemon and no state in memory; each call reads the task folders and /proc. Any number of
processes can therefore use one state folder at the same time, and any of them may die at any
moment.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.clusters.local.folders.inventory import inventory, task_records
from crawler_lifecycle.clusters.local.folders.reader import TaskFolder, check_readable, reading
from crawler_lifecycle.clusters.local.folders.retention import remove_old
from crawler_lifecycle.clusters.local.processes.crawl_user import RunAs, let_pass
from crawler_lifecycle.clusters.local.processes.identity import (
    Identity,
    Stat,
    kill_all,
    still_alive,
    wake_supervisors,
)
from crawler_lifecycle.clusters.local.processes.slot_queue import STOP_SIGNAL
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.audits.audit import ClusterTask
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import ClusterUnavailable, OtherPlace
from crawler_lifecycle.domain.last_words import kept_log
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Observation, Phase, log_tail
from crawler_lifecycle.ports.polls import Details, Poll
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, QueuedTask, TaskRecord, TaskRef
from crawler_lifecycle.runner import contract

from .folders import folder as files
from .folders.logs import open_log
from .launch import CODES, Launcher
from .observation import Reading
from .processes import cgroup, liveness_marks

logger = logging.getLogger(__name__)

#: Seconds after a kill in which a living supervisor can reap the crawler and write the end before
#: it is killed too.
SUPERVISOR_SECONDS = 3.0
#: Seconds after the end of a task after which an inventory treats a living supervisor as hanging.
HANGING_SECONDS = 60.0
#: Seconds after which a kill is reported as failed.
KILL_SECONDS = 10.0


def _group_parent(setting: str) -> cgroup.Parent | None:
    """Return and log the parent of control groups; ``None`` if none can be created."""
    try:
        parent = cgroup.find(setting)
    except cgroup.Unavailable as why:
        level = logging.INFO if setting in ("auto", "off") else logging.WARNING
        logger.log(
            level,
            "no cgroups (%s): supervisors check the memory of tasks; processors have no limit",
            why,
        )
        return None
    logger.info("tasks are limited by %s", parent.describe())
    return parent


def _check_place(place: str | None) -> None:
    """Raise ``OtherPlace`` for a task that belongs to a cluster with namespaces, such as
    Kubernetes.
    """
    if place is not None:
        text = f"the task belongs to the namespace {place}, but this is the local cluster; "
        raise OtherPlace(f"{text}set LIFECYCLE_CLUSTER__KIND to its previous value")


class LocalCluster:
    """Processes on this machine, of which at most ``slots`` execute at the same time.

    This class implements ``Cluster`` and ``Deployer``.

    - ``state_dir`` belongs to one machine and one process namespace. Only this class creates it, so
      that a missing folder is an outage, not an empty cluster.
    - ``base_dir`` is the folder to which relative paths of projects and commands refer.
    - ``task_environment`` may add variables to a task, such as the gateway's address and a token.
      They are only in memory, never in a file.
    - ``cgroup_setting`` names the parent of control groups: ``auto``, ``off``, or its folder.
      Without control groups, supervisors check the memory, and processors have no limit.
    - ``run_as`` names the user that runs crawlers, if this is not our own user. In that case, this
      process must run as root.
    """

    kind = "local"
    log_fades = False

    def __init__(
        self,
        state_dir: Path,
        slots: int,
        *,
        base_dir: Path | None = None,
        python: str | None = None,
        max_waiting: int = 64,
        clock: Clock = utc_now,
        environment: Mapping[str, str] | None = None,
        task_environment: Callable[[Deployment, QueuedTask], Mapping[str, str]] | None = None,
        cgroup_setting: str = "auto",
        run_as: str | None = None,
    ) -> None:
        """Create the folders. Raises ``InvalidRequest`` if the user cannot be used."""
        user = None if run_as is None else RunAs.of(run_as)
        self._state = Path(state_dir).absolute()
        self._clock = clock
        self._node = socket.gethostname()
        ours = ("state", "slots", CODES)
        marks = (liveness_marks.LIVE, liveness_marks.ENDED, files.STARTED)
        # Create the folder of tasks only if the folders ``ours`` are also missing. If only the
        # folder of tasks is missing, its disk is not mounted. The folders of marks do not count,
        # because an observer may have created them first.
        used = any((self._state / name).exists() for name in ours)
        made = [self._state, *(parent for parent in self._state.parents if not parent.exists())]
        for name in (*ours, *marks) if used else ("tasks", *ours, *marks):
            (self._state / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        if user is not None:
            let_pass(
                *made,
                *(
                    self._state / name
                    for name in ("tasks", "state")
                    if (self._state / name).exists()
                ),
            )
            user.check_way(self._state / "tasks")
        self._launcher = Launcher(
            state=self._state,
            slots=slots,
            base_dir=Path(base_dir or Path.cwd()).absolute(),
            python=python or sys.executable,
            max_waiting=max_waiting,
            clock=clock,
            environment=dict(os.environ if environment is None else environment),
            task_environment=task_environment,
            groups=functools.cache(lambda: _group_parent(cgroup_setting)),
            run_as=user,
        )

    # --- Deployer

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[DeployedTask]:
        """Start each task at most once per (run, attempt, index), even with concurrent calls.

        Raises ``ClusterUnavailable`` and ``DeploymentExpired``.
        """
        _check_place(deployment.place)
        return [self._launcher.deploy(deployment, crawler, task) for task in deployment.tasks]

    # --- Cluster

    def place(self, beside: Collection[str] = ()) -> None:
        """Return ``None``, because the local cluster has no namespaces.

        Raises ``OtherPlace`` if ``beside`` contains a namespace, because then a task is on a
        cluster of another kind.
        """
        for other in beside:
            _check_place(other)

    def poll(self, run: RunRef, tasks: Sequence[TaskRef]) -> Poll:
        """Read the tasks' folders and /proc completely.

        Raises ``ClusterUnavailable`` if a part cannot be read.
        """
        began = time.monotonic()
        now = self._clock()
        for task in tasks:
            _check_place(task.place)
        with reading(self._state):
            self._wake_supervisors()
            seen = [self._observe(run, task, now) for task in tasks]
            self._correct_forged_ends(run, tasks, seen, now)
        return Poll(now, time.monotonic() - began, seen)

    def _correct_forged_ends(
        self, run: RunRef, tasks: Sequence[TaskRef], seen: list[Observation], now: datetime
    ) -> None:
        """Observe a task again if its end is recorded but one of its processes is still alive.

        A crawler can forge an end in its files, so an end counts only without a living process. All
        processes are read once for all tasks, after the ends, so a process that is found alive
        cannot have ended before.
        """
        folders = {
            n: TaskFolder(self._state, run, tasks[n])
            for n, observation in enumerate(seen)
            if observation.phase is Phase.ENDED
        }
        alive = (
            still_alive({str(folder.path): folder.marks() for folder in folders.values()})
            if folders
            else ()
        )
        for n, folder in folders.items():
            if str(folder.path) in alive:
                seen[n] = self._observe(run, tasks[n], now, doubted=True)

    def details(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[Details]:
        """Return the log tail (at most 16 KiB), the counters, the memory and the statistics of each
        task.

        A task whose folder is missing or unreadable is left out.
        """
        found = []
        for task in tasks:
            folder = TaskFolder(self._state, run, task)
            try:
                if not folder.exists():
                    continue
                counters, _ = folder.counters(final=True)
                said = folder.read(files.STATS).data.get("scrapystats")
                statistics = None if said is None else bounds.statistics(said)
                found.append(
                    Details(task.task_id, _log_tail(folder), counters, folder.memory(), statistics)
                )
            except OSError:
                continue
        return found

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Request the task's end. The crawler gets only one stop signal, even after several calls.

        The task is found by its folder or, without one, by the environment of its processes. Raises
        ``ClusterUnavailable``.
        """
        _check_place(task.place)
        folder = TaskFolder(self._state, run, task)
        try:
            # Raise an error if the disk is not mounted, so that the stop is repeated.
            check_readable(self._state)
            self._wake_supervisors()
            if self._by_file(folder, task, self._stop) or task.uid is None:
                return
            supervisors, crawlers = folder.named(_known_uid(folder, task))
            heard = [supervisor.send(STOP_SIGNAL) for supervisor in supervisors]
            if not any(heard):
                _terminate(crawlers)
        except OSError as error:
            raise ClusterUnavailable(f"the task cannot be stopped: {error}") from error

    def _by_file(
        self, folder: TaskFolder, task: TaskRef, act: Callable[[TaskFolder, TaskRef], bool]
    ) -> bool:
        """Call ``act`` if the folder belongs to the task.

        Return true if nothing else must be done.
        """
        try:
            if not folder.has(files.SPEC):
                return False
            if _is_foreign(folder, task):
                logger.warning(
                    "not changed: %s belongs to a task with a uid other than %s",
                    folder.path,
                    task.uid,
                )
                return False
            return act(folder, task)
        except OSError as error:
            if task.uid is None:
                raise
            logger.warning(
                "the task's folder cannot be used, so its processes are searched for by name: %s",
                error,
            )
            return False

    def _stop(self, folder: TaskFolder, task: TaskRef) -> bool:
        if folder.has(files.END) and not folder.processes(folder.identity(files.PROCESS)):
            return True
        folder.create(files.STOP, {"at": contract.now()})
        supervisor = folder.identity(files.SUPERVISOR)
        if supervisor is not None and supervisor.send(STOP_SIGNAL):
            return True
        if folder.has(files.PROCESS) and not folder.supervisor_alive():
            self._signal_orphan(folder)
        return folder.has(files.STOP) and folder.has(files.SUPERVISOR)

    def _signal_orphan(self, folder: TaskFolder) -> None:
        """Send the stop signal if the supervisor is dead, either to the runner or to the rest of
        its group.

        The mark is written before the signal, so a crash between the two can lose the signal but
        never duplicate it. A forced stop is still possible afterwards.
        """
        leader = folder.identity(files.PROCESS)
        processes = folder.processes(leader)
        if not processes or not folder.create(
            files.SIGNALLED, {"by": "cluster", "at": contract.now()}
        ):
            return
        if leader is not None and leader.send(signal.SIGTERM):
            leader.send(signal.SIGCONT)  # a suspended process would not react to the signal
            return
        _terminate(processes)

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """Send SIGKILL to all processes of the task, including forks, and ensure that its end is
        recorded.

        Raises ``ClusterUnavailable`` if a process still runs after ``KILL_SECONDS``.
        """
        _check_place(task.place)
        folder = TaskFolder(self._state, run, task)
        try:
            self._wake_supervisors()
            if not self._by_file(folder, task, self._kill) and task.uid is not None:
                self._kill_by_name(folder, _known_uid(folder, task))
        except OSError as error:
            raise ClusterUnavailable(f"the task cannot be killed: {error}") from error

    def _kill(self, folder: TaskFolder, task: TaskRef) -> bool:
        if not folder.has(files.END):
            # First write the mark that the stop signal was sent, because a clean end must not
            # precede the kill.
            folder.create(files.SIGNALLED, {"by": "kill", "at": contract.now()})
            folder.create(files.STOP, {"at": contract.now(), "force": True})
        killed = 0
        for late in _rounds(folder):
            leader = folder.identity(files.PROCESS)
            victims = folder.processes(leader)
            killed += kill_all(_in_order(victims, leader, folder))
            if not victims:
                # This applies even after the end, because a hanging supervisor keeps its slot.
                supervisors, _ = folder.named(task.uid)
                if not supervisors:
                    _write_missing_end(folder, leader, killed)
                    folder.settle_group()
                    break
                # SIGTERM wakes a supervisor that is waiting for a slot
                for supervisor in supervisors:
                    supervisor.send(signal.SIGKILL if late else signal.SIGTERM)
        return True

    def _kill_by_name(self, folder: TaskFolder, uid: str | None) -> None:
        """Kill the task's processes, found by their environment, if its folder cannot be used."""
        for late in _rounds(folder):
            supervisors, crawlers = folder.named(uid)
            if not supervisors and not crawlers:
                return
            # Kill the crawlers first, because a supervisor forwards the stop signal to a running
            # crawler.
            kill_all(crawlers)
            # After the stop signal, the supervisor starts nothing more and writes the end.
            for supervisor in supervisors:
                supervisor.send(signal.SIGKILL if late else STOP_SIGNAL)

    def inventory(
        self,
        *,
        run_id: int | None = None,
        after: tuple[int, int, int] | None = None,
        limit: int = 500,
    ) -> list[ClusterTask]:
        """Return one page of our waiting and executing tasks on this machine.

        Raises ``ClusterUnavailable``.
        """
        now = self._clock()
        with reading(self._state):
            self._wake_supervisors()
            return inventory(
                self._state,
                lambda run, task: self._end_hanging(run, task, now),
                self._node,
                run_id=run_id,
                after=after,
                limit=limit,
            )

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        """Return the records of the run's tasks from its folders. Raises ``ClusterUnavailable``."""
        with reading(self._state):
            return task_records(self._state, run)

    def remove_old(self, keep_s: float) -> list[int]:
        """Remove the folders of runs whose last task ended more than ``keep_s`` seconds ago, and
        return their ids.

        Raises ``ClusterUnavailable``.
        """
        with reading(self._state, checked=False):
            liveness_marks.forget(str(self._state), liveness_marks.KEEP_UNSEEN_S)
            liveness_marks.forget(str(self._state), keep_s, files.STARTED)
            return remove_old(self._state, keep_s)

    # --- inside

    def _observe(
        self, run: RunRef, task: TaskRef, now: datetime, *, doubted: bool = False
    ) -> Observation:
        folder = TaskFolder(self._state, run, task, doubted=doubted)
        folder.settle_group()
        seen = Reading(folder, now, self._node).observe()
        # The end may have happened after the poll began, so its time of observation is now.
        return replace(seen, observed_at=self._clock()) if seen.phase is Phase.ENDED else seen

    def _wake_supervisors(self) -> None:
        wake_supervisors(str(self._state / "tasks"))

    def _end_hanging(self, run: RunRef, task: TaskRef, now: datetime) -> Observation:
        """Observe the task, and kill its supervisor if the supervisor is still alive long after the
        end and keeps a slot.
        """
        seen = self._observe(run, task, now)
        if (
            seen.phase is Phase.ENDED
            and not 0 <= (now - (seen.changed_at or now)).total_seconds() <= HANGING_SECONDS
        ):
            for path in TaskFolder(self._state, run, task).named()[0]:
                path.send(signal.SIGKILL)
        return seen


def _is_foreign(folder: TaskFolder, task: TaskRef) -> bool:
    """Return whether the folder with the task's name belongs to another uid."""
    there = folder.uid()
    return task.uid is not None and there is not None and there != task.uid


def _known_uid(folder: TaskFolder, task: TaskRef) -> str | None:
    """Return the uid that a process must have, if the spec in the task's folder has another uid."""
    with contextlib.suppress(OSError):
        return task.uid if _is_foreign(folder, task) else None
    return None


def _rounds(folder: TaskFolder) -> Iterator[bool]:
    """Yield for each round of a kill whether the supervisor must now be killed too.

    Raises ``ClusterUnavailable`` after the last round.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) < KILL_SECONDS:
        yield waited > SUPERVISOR_SECONDS
        time.sleep(0.02)
    raise ClusterUnavailable(
        f"a process of the task is still running after {KILL_SECONDS:g} s of SIGKILL: {folder.path}"
    )


def _in_order(victims: list[Stat], leader: Identity | None, folder: TaskFolder) -> list[Stat]:
    """Return the processes to kill in this round.

    If the supervisor is dead, the runner adopts orphans, so the runner is suspended and killed
    last.
    """
    others = [victim for victim in victims if leader is None or victim.pid != leader.pid]
    if leader is None or not others or folder.supervisor_alive():
        return victims
    leader.send(signal.SIGSTOP)
    return others


def _terminate(processes: Sequence[Stat]) -> None:
    """Send the stop signal to the topmost of these processes. If the runner is alive, it is the
    topmost process, and forwards the signal.
    """
    known = {stat.pid for stat in processes}
    for stat in processes:
        if stat.parent not in known:
            stat.send(signal.SIGTERM)


def _write_missing_end(folder: TaskFolder, leader: Identity | None, killed: int) -> None:
    """Write the end in place of a dead supervisor if we killed the crawler or it never ran."""
    ran = folder.has(files.PROCESS)
    if folder.has(files.END) or (ran and (not killed or folder.has(files.SUMMARY))):
        # The task's own evidence takes precedence. If there is neither evidence nor a kill, the
        # task is gone.
        return
    if leader is None and ran and not killed:
        return
    end: files.Record = {"finished_at": contract.now()}
    if ran:
        end |= {
            "exit_code": 137,
            "signal": 9,
            "reason": "Error",
            "message": "Killed by force; its supervisor was dead",
        }
    elif folder.has(files.SUPERVISOR):
        end |= {
            "reason": "Cancelled",
            "message": "It was stopped while it waited and never executed",
        }
    else:
        return  # the task never started, and the stop file prevents a later start
    folder.create(files.END, end)
    mark = folder.read(files.SPEC).data.get("live_mark")
    if isinstance(mark, str):
        liveness_marks.end(mark)


def _log_tail(folder: TaskFolder) -> str | None:
    """Return the part of the log to keep: its last 16 KiB, and the lines around the error with
    which the crawler failed.
    """
    with open_log(folder) as log:
        failed = bool(folder.read(files.END).data.get("exit_code"))
        kept = kept_log(log.read, sum(log.sizes), failed=failed)
    return log_tail(kept) if kept else None
