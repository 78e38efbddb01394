"""The local cluster as the port ``Cluster``: looks, and stops (docs/crawlers.md).

No daemon and no memory: everything is read from the task folders and /proc at each call, so any number of processes
may use one state folder at the same time, and any of them may die at any moment.
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
from datetime import UTC, datetime
from pathlib import Path

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
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Observation, Phase, log_tail
from crawler_lifecycle.ports.looks import Details, Look
from crawler_lifecycle.ports.runs import Deployed, Deployment, QueuedTask, TaskRecord, TaskRef

from .folders import folder as files
from .launch import Launcher
from .observation import Reading
from .processes import cgroup, liveness_marks

logger = logging.getLogger(__name__)

#: Kill: seconds that a living supervisor has to reap and write the end, before it is killed too.
SUPERVISOR_SECONDS = 3.0
#: Audit: a supervisor that lives for so many seconds after the end of its task hangs.
HANGING_SECONDS = 60.0
#: Kill: the time after which we say that we could not.
KILL_SECONDS = 10.0


def _group_parent(setting: str) -> cgroup.Parent | None:
    """Find out where control groups can be made, and log it: at the first deployment."""
    try:
        parent = cgroup.find(setting)
    except cgroup.Unavailable as why:
        level = logging.INFO if setting in ("auto", "off") else logging.WARNING
        logger.log(level, "memory of tasks is watched, their processors are not limited: no cgroups, %s", why)
        return None
    logger.info("tasks are limited by %s", parent.describe())
    return parent


def _check_place(place: str | None) -> None:
    """Raise for a task that was created on a cluster with namespaces, or is to be searched there."""
    if place is not None:
        text = f"this is the local cluster, and the place of the task is {place}: set LIFECYCLE_CLUSTER__KIND back"
        raise OtherPlace(text)


class LocalCluster:
    """Child processes of this machine, at most ``slots`` at a time. Implements ``Cluster`` and ``Deployer``.

    ``state_dir`` belongs to one machine and one process namespace; it is created here only, so that a missing state
    folder is an outage and not an empty cluster. ``base_dir``: the folder to which relative project folders and
    commands refer. ``task_environment`` may add variables (address and token of the gateway) to a task; they pass
    through memory only, never through a file. ``cgroup_setting`` says where the kernel limits tasks: ``auto``, ``off``,
    or the folder of a control group; without one, memory is watched, processors are not limited. ``run_as`` names the
    user of crawlers, if it is not our own: then this process must be root.
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
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        environment: Mapping[str, str] | None = None,
        task_environment: Callable[[Deployment, QueuedTask], Mapping[str, str]] | None = None,
        cgroup_setting: str = "auto",
        run_as: str | None = None,
    ) -> None:
        """Raises ``InvalidRequest`` for a user that cannot be had."""
        user = None if run_as is None else RunAs.of(run_as)
        self._state = Path(state_dir).absolute()
        self._clock = clock
        self._node = socket.gethostname()
        ours, marks = ("state", "slots"), (liveness_marks.LIVE, liveness_marks.ENDED, files.STARTED)
        # The folder of tasks is made only together with folders that nobody else makes: alone, its absence means an
        # unmounted disk. An observer also makes the folders of marks, perhaps before us.
        used = any((self._state / name).exists() for name in ours)
        made = [self._state, *(place for place in self._state.parents if not place.exists())]
        for name in (*ours, *marks) if used else ("tasks", *ours, *marks):
            (self._state / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        if user is not None:
            let_pass(*made, *(self._state / name for name in ("tasks", "state") if (self._state / name).exists()))
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

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[Deployed]:
        """Start the tasks, each at most once per (run, attempt, index), also with concurrent calls."""
        _check_place(deployment.place)
        return [self._launcher.deploy(deployment, crawler, task) for task in deployment.tasks]

    # --- Cluster

    def place(self, beside: Collection[str] = ()) -> None:
        """There is only one. Raises ``ClusterUnavailable`` when any task of ``beside`` is on a cluster of another
        kind.
        """
        for other in beside:
            _check_place(other)

    def look(self, run: RunRef, tasks: Sequence[TaskRef]) -> Look:
        """Read folders and /proc completely. Raises ``ClusterUnavailable`` when a part cannot be read."""
        began = time.monotonic()
        now = self._clock()
        for task in tasks:
            _check_place(task.place)
        with reading(self._state):
            self._wake_supervisors()
            seen = [self._observe(run, task, now) for task in tasks]
            self._look_again_at_forged_ends(run, tasks, seen, now)
        return Look(now, time.monotonic() - began, seen)

    def _look_again_at_forged_ends(
        self, run: RunRef, tasks: Sequence[TaskRef], seen: list[Observation], now: datetime
    ) -> None:
        """A crawler may forge an end and dead processes in its files: an end counts only when no process of the task
        lives.

        All processes are read once for all tasks, after the ends: a process that lives now has not ended before.
        """
        folders = {place: self._folder(run, tasks[place]) for place, one in enumerate(seen) if one.phase is Phase.ENDED}
        alive = still_alive({str(one.path): one.marks() for one in folders.values()}) if folders else ()
        for place, folder in folders.items():
            if str(folder.path) in alive:
                seen[place] = self._observe(run, tasks[place], now, doubted=True)

    def details(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[Details]:
        """Log tail (at most 16 KiB), counters, peak memory, statistics of the crawler's own.

        Tasks about which nothing can be read are left out.
        """
        found = []
        for task in tasks:
            folder = self._folder(run, task)
            try:
                if not folder.exists():
                    continue
                counters, _ = folder.counters(final=True)
                said = (folder.read(files.STATS) or {}).get("scrapystats")
                statistics = None if said is None else bounds.statistics(said)
                found.append(Details(task.task_id, _log_tail(folder), counters, folder.memory(), statistics))
            except OSError:
                continue
        return found

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Ask the task to end. One stop signal reaches the crawler, however often this is called.

        It is found by its folder, or else by the environment of its processes.
        """
        _check_place(task.place)
        folder = self._folder(run, task)
        try:
            check_readable(self._state)  # a stop that found no disk must be repeated
            self._wake_supervisors()
            if self._by_file(folder, task, self._stop) or task.uid is None:
                return
            supervisors, crawlers = folder.named(_known_uid(folder, task))
            heard = [one.send(STOP_SIGNAL) for one in supervisors]
            if not any(heard):
                _terminate(crawlers)
        except OSError as error:
            raise ClusterUnavailable(f"the task cannot be stopped: {error}") from error

    def _by_file(self, folder: TaskFolder, task: TaskRef, act: Callable[[TaskFolder, TaskRef], bool]) -> bool:
        """Act by the content of the folder. Returns whether that was enough."""
        try:
            if not folder.has(files.SPEC):
                return False
            if _is_foreign(folder, task):
                logger.warning("left alone: %s is of another object, the call was for %s", folder.path, task.uid)
                return False
            return act(folder, task)
        except OSError as error:
            if task.uid is None:
                raise
            logger.warning("the folder of a task cannot be used, its processes are found by its name: %s", error)
            return False

    def _stop(self, folder: TaskFolder, task: TaskRef) -> bool:
        if folder.has(files.END) and not folder.processes(folder.identity(files.PROCESS)):
            return True
        folder.create(files.STOP, {"at": files.utc(time.time())})
        supervisor = folder.identity(files.SUPERVISOR)
        if supervisor is not None and supervisor.send(STOP_SIGNAL):
            return True
        if folder.has(files.PROCESS) and not folder.supervisor_alive():
            self._signal_orphan(folder)
        return folder.has(files.STOP) and folder.has(files.SUPERVISOR)

    def _signal_orphan(self, folder: TaskFolder) -> None:
        """The supervisor is dead: send the stop signal ourselves, to the runner or else to the rest of its group.

        The mark is made before the signal: after a crash in between no signal is sent (force is still possible), never
        two.
        """
        leader = folder.identity(files.PROCESS)
        processes = folder.processes(leader)
        if not processes or not folder.create(files.SIGNALLED, {"by": "cluster", "at": files.utc(time.time())}):
            return
        if leader is not None and leader.send(signal.SIGTERM):
            leader.send(signal.SIGCONT)  # stopped, it would not hear it
            return
        _terminate(processes)

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """SIGKILL all processes of the task, including forks, and make sure that its end is recorded.

        Raises ``ClusterUnavailable`` when one of them still runs after ten seconds.
        """
        _check_place(task.place)
        folder = self._folder(run, task)
        try:
            self._wake_supervisors()
            if not self._by_file(folder, task, self._kill) and task.uid is not None:
                self._kill_by_name(folder, _known_uid(folder, task))
        except OSError as error:
            raise ClusterUnavailable(f"the task cannot be killed: {error}") from error

    def _kill(self, folder: TaskFolder, task: TaskRef) -> bool:
        if not folder.has(files.END):
            # First the mark that no stop signal is due any more: a polite end must not overtake the kill.
            folder.create(files.SIGNALLED, {"by": "kill", "at": files.utc(time.time())})
            folder.create(files.STOP, {"at": files.utc(time.time()), "force": True})
        killed = 0
        for late in _rounds(folder):
            leader = folder.identity(files.PROCESS)
            victims = folder.processes(leader)
            killed += kill_all(_in_order(victims, leader, folder))
            if not victims:
                supervisors, _ = folder.named(task.uid)  # also when its end is on file: who hangs after it holds a slot
                if not supervisors:
                    _write_missing_end(folder, leader, killed)
                    folder.settle_group()
                    break
                for one in supervisors:  # SIGTERM wakes one that waits for a slot
                    one.send(signal.SIGKILL if late else signal.SIGTERM)
        return True

    def _kill_by_name(self, folder: TaskFolder, uid: str | None) -> None:
        """Without a usable folder its processes are found by their environment."""
        for late in _rounds(folder):
            supervisors, crawlers = folder.named(uid)
            if not supervisors and not crawlers:
                return
            # The crawlers first: a supervisor that is asked to stop passes the signal on to a living one.
            kill_all(crawlers)
            for one in supervisors:  # it need not start anything more, and gets the time to write the end
                one.send(signal.SIGKILL if late else STOP_SIGNAL)

    def inventory(
        self, *, run_id: int | None = None, after: tuple[int, int, int] | None = None, limit: int = 500
    ) -> list[ClusterTask]:
        """All our waiting and executing tasks on this machine. Raises ``ClusterUnavailable``."""
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
        """Return the records of the run's tasks in its folders. Raises ``ClusterUnavailable``."""
        with reading(self._state):
            return task_records(self._state, run)

    def remove_old(self, keep_s: float) -> list[int]:
        """Remove the folders of runs whose last task ended more than ``keep_s`` seconds ago.

        Returns their ids. Raises ``ClusterUnavailable``.
        """
        with reading(self._state, checked=False):
            liveness_marks.forget(str(self._state), liveness_marks.KEEP_UNSEEN_S)
            liveness_marks.forget(str(self._state), keep_s, files.STARTED)
            return remove_old(self._state, keep_s)

    # --- inside

    def _folder(self, run: RunRef, task: TaskRef, *, doubted: bool = False) -> TaskFolder:
        return TaskFolder(self._state, run, task, doubted=doubted)

    def _observe(self, run: RunRef, task: TaskRef, now: datetime, *, doubted: bool = False) -> Observation:
        folder = self._folder(run, task, doubted=doubted)
        folder.settle_group()
        seen = Reading(folder, now, self._node).observe()
        # The other phases were true at some time since the look began; an end was read only now, after it happened.
        return replace(seen, observed_at=self._clock()) if seen.phase is Phase.ENDED else seen

    def _wake_supervisors(self) -> None:
        wake_supervisors(str(self._state / "tasks"))

    def _end_hanging(self, run: RunRef, task: TaskRef, now: datetime) -> Observation:
        """See the task, and kill a supervisor that has not written the end long after it: it would keep its slot."""
        seen = self._observe(run, task, now)
        if seen.phase is Phase.ENDED and not 0 <= (now - (seen.changed_at or now)).total_seconds() <= HANGING_SECONDS:
            for one in self._folder(run, task).named()[0]:
                one.send(signal.SIGKILL)
        return seen


def _is_foreign(folder: TaskFolder, task: TaskRef) -> bool:
    """Return whether another object has the task's name: the intended one is gone, or is elsewhere."""
    there = folder.uid()
    return task.uid is not None and there is not None and there != task.uid


def _known_uid(folder: TaskFolder, task: TaskRef) -> str | None:
    """The uid that a process must have, if the spec under the task's name is of another object."""
    with contextlib.suppress(OSError):
        return task.uid if _is_foreign(folder, task) else None
    return None


def _rounds(folder: TaskFolder) -> Iterator[bool]:
    """Rounds of a kill. Yields whether it is time to kill the supervisor too. Raises ``ClusterUnavailable`` after the
    last round.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) < KILL_SECONDS:
        yield waited > SUPERVISOR_SECONDS
        time.sleep(0.02)
    raise ClusterUnavailable(f"something of the task still runs after {KILL_SECONDS:g} s of SIGKILL: {folder.path}")


def _in_order(victims: list[Stat], leader: Identity | None, folder: TaskFolder) -> list[Stat]:
    """Return the processes to kill now. Without a supervisor the runner adopts orphans: it is suspended, and killed
    last.
    """
    others = [victim for victim in victims if leader is None or victim.pid != leader.pid]
    if leader is None or not others or folder.supervisor_alive():
        return victims
    leader.send(signal.SIGSTOP)
    return others


def _terminate(processes: Sequence[Stat]) -> None:
    """Send the stop signal to the rest of a task: to the runner if it lives, which forwards the first signal."""
    known = {stat.pid for stat in processes}
    for stat in processes:
        if stat.parent not in known:
            stat.send(signal.SIGTERM)


def _write_missing_end(folder: TaskFolder, leader: Identity | None, killed: int) -> None:
    """Write the end that a dead supervisor cannot write, if it was us who ended the crawler (or it never ran)."""
    ran = folder.has(files.PROCESS)
    if folder.has(files.END) or (ran and (not killed or folder.has(files.SUMMARY))):
        return  # its own evidence counts, or there is none and it is gone
    if leader is None and ran and not killed:
        return
    end: dict[str, object] = {"finished_at": files.utc(time.time())}
    if ran:
        end |= {"exit_code": 137, "signal": 9, "reason": "Error", "message": "Killed by force; its supervisor was dead"}
    elif folder.has(files.SUPERVISOR):
        end |= {"reason": "Cancelled", "message": "It was stopped while it waited and never executed"}
    else:
        return  # never started: the stop file keeps it from ever executing
    folder.create(files.END, end)
    mark = (folder.read(files.SPEC) or {}).get("live_mark")
    if isinstance(mark, str):
        liveness_marks.end(mark)


def _log_tail(folder: TaskFolder) -> str | None:
    """The last 16 KiB of the log, over the border of a log that was just moved aside."""
    tail = b""
    for name in (files.LOG, f"{files.LOG}.1"):
        missing = LOG_TAIL_BYTES - len(tail)
        handle = folder.open(name)
        if handle is None:
            continue
        with open(handle, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - missing))
            tail = file.read(missing) + tail
        if len(tail) >= LOG_TAIL_BYTES:
            break
    return log_tail(tail) if tail else None
