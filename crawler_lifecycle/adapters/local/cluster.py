"""The local cluster: what runs, what waits, how it ended, and how to stop it. See design section 5.11 in docs.

No daemon and no memory: everything is read from the task folders and /proc at each call, so any number of processes
may use one state folder at the same time, and any of them may die at any moment.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from crawler_lifecycle.domain.audit import ClusterTask
from crawler_lifecycle.domain.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import ClusterUnavailable, NotInThisState, OtherPlace
from crawler_lifecycle.domain.names import files_prefix
from crawler_lifecycle.domain.run import RunRef
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Observation, Phase
from crawler_lifecycle.ports import Deployed, Deployment, Details, FileSource, Look, QueuedTask, TaskRecord, TaskRef

from . import cgroup, live
from . import folder as files
from .evidence import TaskFolder
from .identity import Identity, boot_id, kill_all, members
from .inventory import highest_run, inventory
from .launch import Launcher, default_python
from .records import task_records
from .retention import REMOVED, exclusive, remove_old

logger = logging.getLogger(__name__)

#: Kill: the time a living supervisor gets to reap and write the end, before it is killed too.
SUPERVISOR_SECONDS = 3.0
#: Kill: the time after which we say that we could not.
KILL_SECONDS = 10.0


class _Groups:
    """Where control groups can be made: found out at the first deployment, told once, and kept."""

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self._lock = threading.Lock()
        self._known = False
        self._parents: cgroup.Parents | None = None

    def __call__(self) -> cgroup.Parents | None:
        with self._lock:
            if not self._known:
                self._known = True
                try:
                    self._parents = cgroup.find(self._setting)
                    logger.info("tasks are limited by %s", self._parents.describe())
                except cgroup.Unavailable as why:
                    level = logging.INFO if self._setting in ("auto", "off") else logging.WARNING
                    logger.log(
                        level, "memory of tasks is watched, their processors are not limited: no cgroups, %s", why
                    )
            return self._parents


def _now() -> datetime:
    return datetime.now(UTC)


def _check_place(place: str | None) -> None:
    """Raise for a task that was put, or is to be looked for, on a cluster that has places."""
    if place is not None:
        text = f"this is the local cluster, and the place of the task is {place}: set LIFECYCLE_CLUSTER__KIND back"
        raise OtherPlace(text)


class LocalCluster:
    """Child processes of this machine, at most ``slots`` at a time. Implements ``Cluster`` and ``Deployer``.

    ``state_dir`` belongs to one machine and one process namespace; it is created here and never again later, so that
    a state folder that disappears is an outage and not an empty cluster. ``base_dir`` is where relative project
    folders and commands begin. ``task_environment`` may add variables (address and token of the gateway) to a task;
    they pass through memory only, never through a file. ``cgroup_setting`` says where the kernel limits tasks:
    ``auto``, ``off``, or the folder of a control group; without one, memory is watched, processors are not limited.
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
        max_waiting: int = 32,
        clock: Callable[[], datetime] = _now,
        environment: Mapping[str, str] | None = None,
        task_environment: Callable[[Deployment, QueuedTask], Mapping[str, str]] | None = None,
        cgroup_setting: str = "auto",
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots: {slots} is not allowed; give 1 or more")
        self._state = Path(state_dir).absolute()
        self._clock = clock
        self._node = socket.gethostname()
        ours, marks = ("state", "slots"), ("waiting", live.LIVE, live.ENDED)
        # Beside those that nobody else makes, a missing folder of tasks is a disk that is not mounted, and must not
        # become an empty one. An observer makes those of the marks, too, and may be there before us.
        used = any((self._state / name).exists() for name in ours)
        for name in (*ours, *marks) if used else ("tasks", *ours, *marks):
            (self._state / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._launcher = Launcher(
            state=self._state,
            slots=slots,
            base_dir=Path(base_dir or Path.cwd()).absolute(),
            python=python or default_python(),
            max_waiting=max_waiting,
            clock=clock,
            environment=dict(os.environ if environment is None else environment),
            task_environment=task_environment,
            groups=_Groups(cgroup_setting),
        )

    # --- Deployer

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[Deployed]:
        """Start the tasks, each at most once per (run, attempt, index), whoever else calls at the same time."""
        _check_place(deployment.place)
        return [self._launcher.deploy(deployment, crawler, task) for task in deployment.tasks]

    # --- Cluster

    def place(self, beside: Collection[str] = ()) -> None:
        """There is but one. Raises ``ClusterUnavailable`` when any is ``beside``: on a cluster of another kind."""
        for other in beside:
            _check_place(other)

    def look(self, run: RunRef, tasks: Sequence[TaskRef]) -> Look:
        """Read folders and /proc completely. Raises ``ClusterUnavailable`` when any of it cannot be read."""
        began = time.monotonic()
        now = self._clock()
        for task in tasks:
            _check_place(task.place)
        try:
            self._check_readable(run.run_id)
            seen = [self._observe(run, task, now) for task in tasks]
        except OSError as error:
            raise ClusterUnavailable(f"the local cluster cannot be read: {error}") from error
        return Look(now, time.monotonic() - began, seen)

    def details(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[Details]:
        """Log tail (at most 16 KiB), counters, peak memory; tasks about which nothing can be read are left out."""
        found = []
        for task in tasks:
            folder = self._folder(run, task)
            try:
                if not folder.exists() or folder.foreign() is not None:
                    continue
                counters, _ = folder.counters(final=True)
                found.append(Details(task.task_id, _log_tail(folder), counters, folder.memory()))
            except OSError:
                continue
        return found

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Ask the task to end. One stop signal reaches the crawler, however often this is called."""
        _check_place(task.place)
        folder = self._folder(run, task)
        try:
            if not folder.has(files.SPEC):
                self._check_readable(run.run_id)  # a stop that found no disk must come again
                return
            if folder.has(files.END) or self._is_foreign(folder, task):
                return
            files.create(folder.file(files.STOP), {"at": files.utc(time.time())})
            supervisor = folder.identity(files.SUPERVISOR)
            if supervisor is not None and supervisor.send(signal.SIGTERM):
                return  # it is only woken: the file is the stop
            if folder.has(files.END) or not folder.has(files.PROCESS) or folder.supervisor_alive():
                return
            self._signal_orphan(folder)
        except OSError as error:
            raise ClusterUnavailable(f"the task cannot be stopped: {error}") from error

    @staticmethod
    def _is_foreign(folder: TaskFolder, task: TaskRef) -> bool:
        """Whether another object is under the task's name: the call was meant for one that is gone, or is elsewhere."""
        if (foreign := folder.foreign()) is not None:
            logger.warning("left alone: %s", foreign)
            return True
        there = folder.uid()
        if task.uid is None or there is None or there == task.uid:
            return False
        logger.warning("left alone: %s is of object %s, the call was for %s", folder.path, there, task.uid)
        return True

    def _signal_orphan(self, folder: TaskFolder) -> None:
        """The supervisor is dead: send the stop signal ourselves, to the runner or else to what is left of its group.

        The mark is made before the signal: a crash in between costs the signal (force remains), never sends a second.
        """
        leader = folder.identity(files.PROCESS)
        processes = folder.processes(leader)
        if not processes or not files.create(
            folder.file(files.SIGNALLED), {"by": "cluster", "at": files.utc(time.time())}
        ):
            return
        if leader is not None and leader.send(signal.SIGTERM):
            return
        boot = boot_id()
        for stat in processes:
            Identity(stat.pid, stat.start, boot).send(signal.SIGTERM)

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """SIGKILL everything of the task, wherever it forked to, and see that its end is on file.

        Raises ``ClusterUnavailable`` when something of it still runs after ten seconds.
        """
        _check_place(task.place)
        folder = self._folder(run, task)
        try:
            if folder.has(files.SPEC):
                if not self._is_foreign(folder, task):
                    self._kill(folder)
                elif folder.foreign() is not None and task.uid is not None:
                    self._kill_without_folder(folder)
            elif task.uid is not None and not folder.exists():
                self._kill_without_folder(folder)
        except OSError as error:
            raise ClusterUnavailable(f"the task cannot be killed: {error}") from error

    def _kill(self, folder: TaskFolder) -> None:
        if not folder.has(files.END):
            # First the mark that no stop signal is due any more: a polite end must not overtake the kill.
            files.create(folder.file(files.SIGNALLED), {"by": "kill", "at": files.utc(time.time())})
            files.create(folder.file(files.STOP), {"at": files.utc(time.time()), "force": True})
        began, killed = time.monotonic(), 0
        supervisor = folder.identity(files.SUPERVISOR)
        if supervisor is not None and not folder.has(files.END):
            supervisor.send(signal.SIGTERM)  # wakes one that waits for a slot
        while (waited := time.monotonic() - began) < KILL_SECONDS:
            leader = folder.identity(files.PROCESS)
            victims = folder.processes(leader)
            killed += kill_all(victims, boot_id())
            if not victims:
                if folder.has(files.END):
                    folder.settle_group()
                    return
                if not folder.supervisor_alive():
                    _write_missing_end(folder, leader, killed)
                    folder.settle_group()
                    return
                if supervisor is not None and waited > SUPERVISOR_SECONDS:
                    supervisor.send(signal.SIGKILL)
            time.sleep(0.02)
        raise ClusterUnavailable(f"something of the task still runs after {KILL_SECONDS:g} s of SIGKILL: {folder.path}")

    def _kill_without_folder(self, folder: TaskFolder) -> None:
        """Somebody took the folder of a deployed task away: its processes are known by their environment alone."""
        began = time.monotonic()
        while time.monotonic() - began < KILL_SECONDS:
            if not kill_all(members(None, folder.marks()), boot_id()):
                return
            time.sleep(0.02)
        raise ClusterUnavailable(f"something of the task still runs after {KILL_SECONDS:g} s of SIGKILL: {folder.path}")

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """Nothing is kept for evidence alone: the end of a task is a file, which goes with the run's folder."""

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        """The folders with supporting files of these tasks, those that exist; a prefix for each index and attempt.

        Raises ``NotInThisState`` when they were all removed because the run is old, and ``ClusterUnavailable``.
        """
        found = []
        try:
            self._check_readable(run.run_id)
            with exclusive(self._state):  # all of them or none: they are not taken away one by one while we ask
                for task in tasks:
                    folder, prefix = self._folder(run, task), files_prefix(task.index, task.attempt)
                    path = folder.path / files.FILES
                    if not path.is_dir() or path.is_symlink():
                        continue
                    foreign = folder.foreign()
                    found.append(FileSource(prefix, path) if foreign is None else FileSource(prefix, missing=foreign))
            top = self._state / "tasks" / str(run.run_id)
            removed = not found and tasks and (top / REMOVED).exists() and run.owns(files.owner(str(top)))
        except OSError as error:
            raise ClusterUnavailable(f"the local cluster cannot be read: {error}") from error
        if removed:
            raise NotInThisState(
                f"the files of run {run.run_id} were removed from the cluster, because its last task ended longer ago "
                "than they are kept (LIFECYCLE_CLUSTER__KEEP_DAYS)"
            )
        return found

    def inventory(
        self, *, run_id: int | None = None, after: tuple[int, int, int] | None = None, limit: int = 500
    ) -> list[ClusterTask]:
        """Everything of ours that waits or executes here. Raises ``ClusterUnavailable``."""
        now, tasks = self._clock(), self._state / "tasks"
        try:
            self._check_readable(run_id or 0)
            return inventory(
                tasks,
                lambda run, task: self._observe(run, task, now),
                self._node,
                run_id=run_id,
                after=after,
                limit=limit,
            )
        except OSError as error:
            raise ClusterUnavailable(f"the local cluster cannot be read: {error}") from error

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        """What the run's folders know of its tasks. Raises ``ClusterUnavailable``."""
        try:
            self._check_readable(run.run_id)
            return task_records(self._state / "tasks", run)
        except OSError as error:
            raise ClusterUnavailable(f"the local cluster cannot be read: {error}") from error

    def highest_run(self, above: int = 0) -> int:
        """The highest number of a run that anything here bears. Raises ``ClusterUnavailable``."""
        return LocalRuns(self._state).highest_run(above)

    def remove_old(self, keep_s: float) -> list[int]:
        """Remove what is left of runs whose last task ended more than ``keep_s`` seconds ago; their ids.

        Raises ``ClusterUnavailable``.
        """
        try:
            live.forget(str(self._state))
            return remove_old(self._state, keep_s)
        except OSError as error:
            raise ClusterUnavailable(f"the local cluster cannot be read: {error}") from error

    # --- inside

    def _folder(self, run: RunRef, task: TaskRef) -> TaskFolder:
        return TaskFolder(self._launcher.folder(run.run_id, task.index, task.attempt), run, task)

    def _observe(self, run: RunRef, task: TaskRef, now: datetime) -> Observation:
        folder = self._folder(run, task)
        folder.settle_group()
        seen = folder.observe(now, self._node)
        # The other phases held at some time since the look began; an end was read only now, after it happened.
        return replace(seen, observed_at=self._clock()) if seen.phase is Phase.ENDED else seen

    def _check_readable(self, run_id: int) -> None:
        """A missing or unreadable state folder is an outage; only a missing run folder inside it is an answer.

        Raises ``OSError``.
        """
        tasks = self._state / "tasks"
        try:
            with os.scandir(tasks):
                pass
        except FileNotFoundError:
            cure = "the folder of tasks is missing: mount its disk, or make it anew if they are lost for good"
            raise FileNotFoundError(errno.ENOENT, cure, str(tasks)) from None
        try:
            with os.scandir(tasks / str(run_id)):
                pass
        except FileNotFoundError:
            pass


class LocalRuns:
    """``KnowsRuns`` over a state folder, which is not made for it."""

    def __init__(self, state_dir: Path) -> None:
        self._state = Path(state_dir).absolute()

    def highest_run(self, above: int = 0) -> int:
        """The highest number of a run that anything there bears. Raises ``ClusterUnavailable``."""
        try:
            return highest_run(self._state, above)
        except OSError as error:
            raise ClusterUnavailable(f"the local cluster cannot be read: {error}") from error


def _write_missing_end(folder: TaskFolder, leader: Identity | None, killed: int) -> None:
    """Write the end that a dead supervisor cannot write, if it was us who ended the crawler (or it never ran)."""
    ran = folder.has(files.PROCESS)
    if folder.has(files.END) or (ran and (not killed or folder.has(files.SUMMARY))):
        return  # its own evidence stands, or there is none and it is gone
    if leader is None and ran and not killed:
        return
    end: dict[str, object] = {"finished_at": files.utc(time.time())}
    if ran:
        end |= {"exit_code": 137, "signal": 9, "reason": "Error", "message": "Killed by force; its supervisor was dead"}
    elif folder.has(files.SUPERVISOR):
        end |= {"reason": "Cancelled", "message": "It was stopped while it waited and never executed"}
    else:
        return  # never started: the stop file keeps it from ever executing
    files.create(folder.file(files.END), end)
    mark = (folder.read(files.SPEC) or {}).get("live_mark")
    if isinstance(mark, str):
        live.end(mark)


def _log_tail(folder: TaskFolder) -> str | None:
    """The last 16 KiB of the log, over the border of a log that was just moved aside."""
    tail = b""
    for name in (files.LOG, f"{files.LOG}.1"):
        missing = LOG_TAIL_BYTES - len(tail)
        try:
            handle = files.open_foreign(folder.file(name))
            if handle is None:
                continue
            with open(handle, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - missing))
                tail = file.read(missing) + tail
        except FileNotFoundError:
            continue
        if len(tail) >= LOG_TAIL_BYTES:
            break
    text = tail.decode("utf-8", "replace").replace("\0", "")
    return text.encode()[-LOG_TAIL_BYTES:].decode("utf-8", "ignore") if tail else None
