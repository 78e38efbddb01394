"""The observer of local tasks, which promptly reports starts, ends, killed supervisors and removed
folders.

A supervisor creates a file in ``started`` when its crawler executes, and moves a mark to ``ended``
when the end is recorded. The kernel reports both immediately, and a poll then sees them. All other
changes, such as a killed supervisor, are found every ``CHECK_S`` seconds by the marks, and by the
processes and the folder of each task with a mark. A task that ended while no observer ran still has
a mark, so the folders of old tasks are never read. A report is not evidence. It leads to a poll,
and only the poll decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from crawler_lifecycle.background import Loop
from crawler_lifecycle.clusters.local.folders.arrivals import Arrivals
from crawler_lifecycle.clusters.local.folders.reader import TaskFolder, task_of, task_path
from crawler_lifecycle.clusters.local.processes.identity import Identity, still_alive
from crawler_lifecycle.clusters.local.processes.slot_queue import open_lock
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports.cluster import Changed
from crawler_lifecycle.ports.polls import LiveCounters, ObserverHealth
from crawler_lifecycle.ports.runs import TaskRef

from .folders import folder as files
from .processes import liveness_marks

logger = logging.getLogger(__name__)

#: Seconds between two reads of the marks, and between two checks of a task, if the kernel
#: reports no change.
CHECK_S = 1.0
#: The longest wait for the kernel, so that a watch ends soon after ``over`` is set. If the kernel
#: cannot report changes, the marks are read at this interval.
WAIT_S = 0.2
#: Seconds for which a mark without a supervisor counts as a deployment in progress. After this
#: time, the mark is removed.
STALE_S = 60.0
#: Seconds until watching starts again after an error: the first pause and the longest pause.
RETRY_S = (0.5, 10.0)
#: Seconds that are added to a file's timestamp, because the file is renamed slightly after its last
#: write.
SLACK_S = 1.0
#: Seconds between two removals of old marks of ended tasks.
TIDY_S = 5.0
#: The results of a check if no supervisor is alive.
NEW = "not supervised yet"
ALONE = "alone"
OVER = "over"


class LocalObserver:
    """The observer of the local cluster in a state folder.

    Any number of observers can run at the same time.

    This class implements ``Observer``.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state = Path(state_dir).absolute()
        self._health = ObserverHealth(False, "the observer is not watching at the moment")

    def health(self) -> ObserverHealth:
        return self._health

    def watch(self, changed: Changed, over: threading.Event) -> None:
        """Watch until ``over`` is set; see the port."""
        watch: _Watch | None = None
        held = contextlib.ExitStack()

        def turn() -> None:
            nonlocal watch
            try:
                if watch is None:
                    watch = held.enter_context(contextlib.closing(_Watch(self._state, changed)))
                if not watch.turn():
                    return
            except Exception as error:
                watch = None
                self._health = ObserverHealth(
                    False, f"the local cluster cannot be watched: {error}"
                )
                held.close()
                raise
            self._health = ObserverHealth(True, None, len(watch.tasks), watch.place())

        why = "only the regular polls find changes"
        loop = Loop("watching the local cluster", 0.0, meanwhile=why, retry_s=RETRY_S)
        try:
            with held:
                loop.run_in_thread(turn, over)
        finally:
            self._health = ObserverHealth(False, "the observer is not watching at the moment")

    def counted(self) -> Sequence[LiveCounters]:
        """Return the counters of living tasks (see the port).

        Unreadable folders are left out.
        """
        found = []
        for name in os.listdir(self._state / liveness_marks.LIVE):
            with contextlib.suppress(OSError):  # the next poll reports the problem
                if (key := task_of(name)) is not None:
                    run, index, attempt = key
                    folder = TaskFolder(self._state, run, TaskRef(0, index, attempt))
                    counters, at = folder.counters()
                    blocked = folder.blocked()
                    if blocked or counters != Counters():
                        found.append(LiveCounters(run, attempt, index, counters, at, blocked))
        return found


@dataclass(slots=True, eq=False)
class _Task:
    """A task that has not ended, as far as this observer knows."""

    key: tuple[RunRef, int, int]
    path: str
    since: float
    check_at: float
    seen: str = NEW
    waiting: bool = True
    supervisor: Identity | None = None
    crawler: Identity | None = None


class _Watch:
    """A period of watching, which ends with an error. The methods raise ``OSError``."""

    def __init__(self, state: Path, changed: Changed) -> None:
        self._state = state
        self._changed = changed
        self.tasks: dict[str, _Task] = {}
        self._ended: set[str] = set()
        """The marks of ended tasks at the last read."""
        self._odd: set[str] = set()
        """The names of tasks whose folder could not be read, so that this is logged only once."""
        self._read_at = self._tidy_at = 0.0
        for name in (liveness_marks.LIVE, files.STARTED, liveness_marks.ENDED):
            (state / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = open_lock(str(state / "observer.lock"))
        self._arrivals = Arrivals(state / files.STARTED, state / liveness_marks.ENDED)

    def close(self) -> None:
        self._arrivals.close()
        os.close(self._lock)

    def place(self) -> int:
        """Return 0 for one of the observers of this state folder, and 1 for all others.

        That observer holds a lock, which the kernel releases when its process ends.
        """
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return 0
        return 1

    def turn(self) -> bool:
        """Wait briefly.

        If something has changed or a check is due, read the marks, check the due tasks, and return
        true.
        """
        left = max(0.0, self._read_at - time.monotonic())
        if not self._arrivals.wait(min(left, WAIT_S)) and left > WAIT_S:
            return False
        self._arrivals.renew()
        now = time.monotonic()
        self._read_at = now + CHECK_S
        # Read the folder ``ended`` last, so that a mark that moves there meanwhile is not missed.
        live, started, ended = (
            set(os.listdir(self._state / name))
            for name in (liveness_marks.LIVE, files.STARTED, liveness_marks.ENDED)
        )
        for name in live - self.tasks.keys() - ended:
            if (key := task_of(name)) is not None:
                # Most tasks start within this time. Only longer waits are reported.
                self.tasks[name] = _Task(key, str(task_path(self._state, *key)), now, now + CHECK_S)
        for name in ended - self._ended:
            if (key := task_of(name)) is not None:
                self._notify(key, self._time_of(str(self._state / liveness_marks.ENDED / name)))
            if name in self.tasks:
                # The task's next check shows whether one of its processes is still alive.
                self.tasks[name].seen = OVER
        self._ended = ended
        due = {}
        for name, task in self.tasks.items():
            starts = task.waiting and name in started
            if starts or now >= task.check_at:
                task.waiting = task.waiting and not starts  # a started task never waits again
                task.check_at = now + CHECK_S
                due[name] = task
        self._check(due, live, now)
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_S
            liveness_marks.forget(str(self._state))
            self._odd &= self.tasks.keys()
        return True

    def _check(self, due: dict[str, _Task], live: set[str], now: float) -> None:
        """Report changed tasks, and forget tasks without living processes, whatever their files
        show.
        """
        found = {}
        for name, task in due.items():
            try:
                found[name] = self._found(task) if name in live else OVER
            # The error concerns only this task. The others are still watched.
            except OSError as error:
                if name not in self._odd:
                    logger.warning(
                        "the folder of %s cannot be read; the next poll reports this: %s",
                        name,
                        error,
                    )
                self._odd.add(name)
        over = {due[name].path: name for name, seen in found.items() if seen == OVER}
        # Search for processes only by their folder, because the other marks come from files that a
        # crawler can forge.
        marks = {
            path: files.marks("", "", "", os.path.join(path, files.FILES))[-1:] for path in over
        }
        for path in still_alive(marks) if over else ():
            found[over[path]] = ALONE
        for name, seen in found.items():
            self._note(name, due[name], seen, now)

    def _found(self, task: _Task) -> str:
        """Return a string that describes the state of the task.

        A task is reported only if this string changes. Raises ``OSError``.
        """
        run, index, attempt = task.key
        folder = TaskFolder(self._state, run, TaskRef(0, index, attempt))
        gone = "" if folder.held is not None else ", without its folder"
        # Read this before searching for processes, because a task that begins meanwhile must not
        # count as ended.
        began = (
            task.supervisor is not None or folder.has(files.SUPERVISOR) or folder.has(files.PROCESS)
        )
        task.supervisor = task.supervisor or folder.identity(files.SUPERVISOR)
        if task.supervisor.alive() if task.supervisor is not None else folder.supervisor_alive():
            return ("waiting" if task.waiting else "executing") + gone
        task.crawler = task.crawler or folder.identity(files.PROCESS)
        if task.crawler is not None and task.crawler.alive():
            return ALONE + gone
        return OVER if began else NEW

    def _note(self, name: str, task: _Task, seen: str, now: float) -> None:
        before, task.seen = task.seen, seen
        mark = str(self._state / liveness_marks.LIVE / name)
        if seen == OVER:
            del self.tasks[name]
            if before != OVER:
                self._notify(task.key)
                self._ended.add(name)
            liveness_marks.end(mark)
        elif seen == NEW and now - task.since >= STALE_S:
            del self.tasks[name]  # the task never started; a later deployment marks it again
            self._notify(task.key)
            liveness_marks.drop(mark)
        elif seen != before:
            began = before == NEW and seen == "executing"
            self._notify(
                task.key, self._time_of(os.path.join(task.path, files.PROCESS)) if began else None
            )

    def _notify(self, key: tuple[RunRef, int, int], at: datetime | None = None) -> None:
        run, index, attempt = key
        now = datetime.now(UTC)
        self._changed(
            run.run_id, min(at, now) if at is not None else now, frozenset({(index, attempt)})
        )

    @staticmethod
    def _time_of(path: str) -> datetime | None:
        try:
            return datetime.fromtimestamp(os.lstat(path).st_ctime + SLACK_S, UTC)
        except (OSError, OverflowError, ValueError):
            return None
