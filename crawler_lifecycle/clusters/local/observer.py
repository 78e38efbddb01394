"""The observer of local tasks: it reports starts, ends, killed supervisors and removed folders at once.

Two things are watched, both cheap however many runs there ever were. The marks in ``live/``, ``waiting/`` and
``ended/`` are listed when their folder's time changed, every ``SCAN_S``. And each supervisor is held by a file
descriptor of its process (the crawler's, where the supervisor is dead), which the kernel makes readable the moment it
ends. The tree of all tasks is read once, at the beginning: for what ended while nobody watched, and for tasks whose
mark is missing.

Nothing here is evidence. What is told leads to a look, and the look decides.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import resource
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crawler_lifecycle.background import Loop
from crawler_lifecycle.clusters.local.folders.reader import TaskFolder
from crawler_lifecycle.clusters.local.processes.identity import Identity, still_alive
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.looks import Counted, ObserverHealth
from crawler_lifecycle.ports.runs import TaskRef
from crawler_lifecycle.runner.held import NotOurs

from .folders import folder as files
from .listing import Listing, TaskFolderKey, numbers_in, task_of
from .live_counters import counted
from .observation import END_SECONDS
from .processes import liveness_marks

logger = logging.getLogger(__name__)

#: Seconds between two readings of the marks; ends of processes are noticed at once.
SCAN_S = 0.1
#: Seconds between two checks of a task whose process is held, and of one whose process cannot be.
HELD_S, UNHELD_S = 1.0, 0.5
#: A task that waits longer than this has appeared; one that starts sooner is told once, as started.
APPEARED_S = 1.0
#: A mark without a supervisor is a deployment on its way, or one that died; after this time it is dropped.
STALE_S = 60.0
#: What ended while nobody watched is told when it is not longer ago than this, in seconds.
CATCH_UP_S = 3600.0
#: Folders of runs that are read at a time while catching up, so that nothing new waits behind them.
CATCH_UP_RUNS = 20
#: Seconds until the watch begins anew after an error, and the most of them.
RETRY_S = (0.5, 10.0)
#: The end's file gets its name a moment after its time.
SLACK_S = 1.0
#: No task's fault: the watch begins anew once there is room again.
_OURS_TO_MEND = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

Changed = Callable[[int, datetime], None]


class LocalObserver:
    """Implements ``Observer`` for the local cluster in one state folder. No daemon; as many at a time as one likes."""

    def __init__(self, state_dir: Path) -> None:
        self._state = Path(state_dir).absolute()
        self._health = ObserverHealth(False, "it does not watch")

    def health(self) -> ObserverHealth:
        return self._health

    def counted(self) -> Sequence[Counted]:
        """See the port."""
        return list(counted(self._state))

    def watch(self, changed: Changed, over: threading.Event) -> None:
        """Watch until ``over`` is set; see the port."""
        session: _Watch | None = None
        held = contextlib.ExitStack()

        def turn() -> None:
            nonlocal session
            try:
                if session is None:
                    session = held.enter_context(_Watch(self._state, changed))
                session.turn()
            except Exception as error:
                session = None
                self._health = ObserverHealth(False, f"the local cluster cannot be watched: {error}")
                held.close()
                raise
            self._health = ObserverHealth(True, None, session.watched, session.place)

        loop = Loop("watching the local cluster", 0.0, meanwhile="the looks that are due find changes", retry_s=RETRY_S)
        try:
            with held:
                loop.run_in_thread(turn, over)
        finally:
            self._health = ObserverHealth(False, "it does not watch")


@dataclass(slots=True, eq=False)
class _Task:
    """One task that is not over, as far as this observer knows."""

    name: str
    run_id: int
    index: int
    attempt: int
    path: Path
    since: float
    check_at: float = 0.0
    waiting: bool = False
    appeared: bool = False
    """Whether a look was asked for since it appeared."""
    pin: int | None = None
    held: str = ""
    """The process whose end is awaited: ``supervisor``, ``crawler``, ``rest``; empty while there is none yet."""
    ahead: int | None = None
    """The crawler's process, while the supervisor's is held: its end comes a moment before it is on file."""
    told_at: float = -math.inf
    """When the end of the crawler was told, before the end of the task."""
    folder_gone: bool = False


class _Watch:
    """One time of watching, from a fresh reading until it ends or fails. Raises ``OSError``."""

    def __init__(self, state: Path, changed: Changed) -> None:
        self._state = state
        self._changed = changed
        self._tasks: dict[str, _Task] = {}
        self._over: dict[str, _Task] = {}
        """Tasks that seem to be over, since the beginning of this turn."""
        self._told: dict[str, float] = {}
        """Tasks whose end was told, and when: their marks may come to light later."""
        self._listings = {
            name: Listing(str(state / name)) for name in (liveness_marks.LIVE, "waiting", liveness_marks.ENDED)
        }
        self._pins_max = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._odd: set[str] = set()
        """Tasks whose folder could not be read, which was told once."""
        self._scan_at = self._tidy_at = 0.0

    def __enter__(self) -> _Watch:
        for name in self._listings:
            (self._state / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._selector = selectors.DefaultSelector()
        self._place = TaskFolderKey(self._state / "observers")
        self._past = self._catch_up()
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._tasks.values():
            for pin in (task.pin, task.ahead):
                if pin is not None:
                    os.close(pin)
        self._selector.close()
        self._place.close()

    @property
    def watched(self) -> int:
        return len(self._tasks)

    @property
    def place(self) -> int:
        return self._place.number

    def turn(self) -> None:
        """Wait for the end of a process, at most until the next reading is due, then see to what is due."""
        for key, _ in self._selector.select(max(0.0, self._scan_at - time.monotonic())):
            if key.fd == key.data.ahead:
                self._crawler_ended(key.data)
            elif key.fd == key.data.pin:  # not so when this very turn has let it go
                self._alone(key.data.name, self._process_ended, key.data)
        now = time.monotonic()
        if now >= self._scan_at:
            self._see_to_what_is_due(now)
        self._settle_ends()

    def _see_to_what_is_due(self, now: float) -> None:
        self._scan_at = now + SCAN_S
        self._scan(now)
        for task in [task for task in self._tasks.values() if task.check_at <= now]:
            self._alone(task.name, self._check, task, now)
        for _ in range(CATCH_UP_RUNS):
            if next(self._past, True):
                break
        if now >= self._tidy_at:
            self._tidy_at = now + 5.0
            self._tidy(now)

    # --- the marks

    def _scan(self, now: float) -> None:
        ended, alive, waiting = (
            self._listings[name] for name in (liveness_marks.ENDED, liveness_marks.LIVE, "waiting")
        )
        # The ended are listed last of all, so that what moves meanwhile is in both or comes next time, never in none.
        alive.read()
        waiting.read()
        ended.read()
        for name in ended.added:
            self._mark_ended(name, now)
        for name in alive.added | waiting.added:
            if name not in self._tasks and name not in self._told and name not in ended.names:
                self._alone(name, self._adopt, name, now)
        for name in waiting.removed:
            task = self._tasks.get(name)
            if task is not None and task.waiting:
                task.waiting, task.appeared = False, True
                self._alone(name, self._look_ahead, task, self._folder(task))
                self._tell(task.run_id)

    def _alone(self, name: str, act: Callable[..., object], *given: Any) -> None:
        """Do it. What is wrong with the folder of one task is that task's alone: all others are watched on."""
        try:
            act(*given)
        except OSError as error:
            if error.errno in _OURS_TO_MEND:
                raise
            if name not in self._odd:
                logger.warning("the folder of %s cannot be watched, the looks that are due see to it: %s", name, error)
            self._odd.add(name)

    def _mark_ended(self, name: str, now: float) -> None:
        task = self._tasks.get(name)
        if task is not None:
            self._seems_over(task)
        elif name not in self._told and (parts := task_of(name)) is not None:
            self._told[name] = now
            self._tell(parts[0], self._time_of(self._state / liveness_marks.ENDED / name))

    def _adopt(self, name: str, now: float) -> _Task | None:
        """Begin to watch a task. What it did before somebody watched is told as of the time its folder shows."""
        parts = task_of(name)
        if parts is None:
            return None
        run_id, index, attempt = parts
        path = self._state / "tasks" / str(run_id) / str(index) / str(attempt)
        task = _Task(name, run_id, index, attempt, path, since=now)
        task.waiting = name in self._listings["waiting"].names
        self._tasks[name] = task
        self._hold(task)
        if self._is_watched(task) and not task.waiting:
            task.appeared = True
            self._tell(run_id, self._time_of(path / files.PROCESS))
        return task

    # --- the processes

    def _folder(self, task: _Task) -> TaskFolder:
        return TaskFolder(task.path, self._run_of(task), TaskRef(0, task.index, task.attempt))

    @staticmethod
    def _run_of(task: _Task) -> RunRef:
        """Whoever's it is: an observer tells of everything, and what a look makes of it is its own business."""
        return RunRef(task.run_id, files.owner(str(task.path.parents[2]), task.run_id))

    def _look_ahead(self, task: _Task, folder: TaskFolder) -> None:
        """Hold the crawler beside its living supervisor. A look that comes meanwhile waits until the end is on file."""
        crawler = folder.identity(files.PROCESS)
        if task.held == "supervisor" and task.ahead is None and crawler is not None:
            task.ahead = self._open(crawler)
            if task.ahead is not None:
                self._selector.register(task.ahead, selectors.EVENT_READ, task)

    def _crawler_ended(self, task: _Task) -> None:
        self._forget_ahead(task)
        task.told_at = time.monotonic()
        self._tell(task.run_id)

    def _forget_ahead(self, task: _Task) -> None:
        if task.ahead is not None:
            self._selector.unregister(task.ahead)
            os.close(task.ahead)
            task.ahead = None

    def _process_ended(self, task: _Task) -> None:
        held = task.held
        self._let_go(task)
        self._hold(task)
        if self._is_watched(task) and task.held != held:
            self._tell(task.run_id)  # the supervisor was killed and the crawler lives, or only what it left behind does

    def _check(self, task: _Task, now: float) -> None:
        """What no file descriptor tells: a folder taken away, an end without a supervisor, a long wait for a slot."""
        task.check_at = now + (HELD_S if task.pin is not None else UNHELD_S if task.held else SCAN_S)
        folder = self._folder(task)
        folder_gone = not folder.exists()
        if folder_gone != task.folder_gone:
            task.folder_gone = folder_gone
            self._tell(task.run_id)
        if task.pin is None or folder.has_ended():
            self._hold(task)
        if self._is_watched(task) and not task.appeared and now - task.since >= APPEARED_S:
            task.appeared = True
            self._tell(task.run_id)

    def _hold(self, task: _Task) -> None:
        """Find the process whose end is the task's next change and hold it; without any, the task is over."""
        folder = self._folder(task)
        if folder.has_ended():
            return self._seems_over(task)
        if task.pin is not None:
            return None
        # Asked before anybody is looked for: what begins meanwhile is not over.
        began = bool(task.held) or folder.has(files.SUPERVISOR) or folder.has(files.PROCESS)
        supervisor = folder.identity(files.SUPERVISOR)
        if supervisor is not None and self._pin(task, supervisor, "supervisor"):
            return self._look_ahead(task, folder)
        crawler = folder.identity(files.PROCESS)
        if crawler is not None and self._pin(task, crawler, "crawler"):
            return None
        if folder.supervisor_alive():  # its identity is hidden by garbage
            task.held = "supervisor"
        elif folder.has(files.PROCESS) and self._rest(task, folder, crawler):
            task.held = "rest"
        elif began or folder.has(files.END):
            self._seems_over(task)
        elif time.monotonic() - task.since >= STALE_S:
            self._drop(task)
        return None

    def _rest(self, task: _Task, folder: TaskFolder, crawler: Identity | None) -> bool:
        """Whether something that the crawler left behind still runs."""
        contract = (folder.read(files.SPEC) or {}).get("contract")
        told = contract.get("CRAWL_TASK_ID") if isinstance(contract, dict) else None
        if not (isinstance(told, str) and told.isascii() and told.isdecimal()):
            return False
        named = TaskFolder(task.path, self._run_of(task), TaskRef(int(told), task.index, task.attempt))
        return bool(named.processes(crawler))

    def _pin(self, task: _Task, process: Identity, what: str) -> bool:
        """Hold this process; ``False`` when it has ended. Without a file descriptor it is asked after instead."""
        pin = self._open(process)
        if pin is None and not process.alive():
            return False
        task.pin, task.held = pin, what
        if pin is not None:
            self._selector.register(pin, selectors.EVENT_READ, task)
        return True

    def _open(self, process: Identity) -> int | None:
        """A descriptor of this process, if it lives and there is one to spare.

        It is opened before the start time is compared, so no reuse of the number can slip in between.
        """
        pin = None
        if len(self._selector.get_map()) < self._pins_max:
            with contextlib.suppress(OSError):
                pin = os.pidfd_open(process.pid)
        if pin is not None and not process.alive():
            os.close(pin)
            return None
        return pin

    def _let_go(self, task: _Task) -> None:
        self._forget_ahead(task)
        if task.pin is not None:
            self._selector.unregister(task.pin)
            os.close(task.pin)
            task.pin = None

    def _settle_ends(self) -> None:
        """End the tasks that are over: those of which no process lives. One that forged its end is watched on.

        All processes are read once for all tasks.
        """
        over, self._over = self._over, {}
        # By their folder alone: whose a task is would be read from files that may be forged, or not readable at all.
        marks = {str(task.path): files.marks("", "", "", str(task.path / files.FILES))[-1:] for task in over.values()}
        alive = still_alive(marks) if over else ()
        for name, task in over.items():
            if str(task.path) in alive:
                task.held = task.held or "rest"
            elif name in self._tasks:
                self._alone(name, self._end, task)

    def _is_watched(self, task: _Task) -> bool:
        return task.name in self._tasks and task.name not in self._over

    def _seems_over(self, task: _Task) -> None:
        self._over[task.name] = task

    def _end(self, task: _Task) -> None:
        """The task is over: tell it once, and see that its mark says so too."""
        self._let_go(task)
        del self._tasks[task.name]
        now = self._told[task.name] = time.monotonic()
        if now - task.told_at >= END_SECONDS or not self._folder(task).has(files.END):
            self._tell(task.run_id)  # no look has waited so long for the end's file
        liveness_marks.end(str(self._state / liveness_marks.LIVE / task.name))

    def _drop(self, task: _Task) -> None:
        """It never began. Nothing of it is kept, not even that it was told: its deployment may come again."""
        del self._tasks[task.name]
        self._tell(task.run_id)
        liveness_marks.drop(str(self._state / liveness_marks.LIVE / task.name))

    # --- the past

    def _catch_up(self) -> Iterator[bool]:
        """Once, a run at a time: ends of the last hour, and tasks without a mark that are not over."""
        since = time.time() - CATCH_UP_S
        for run in numbers_in(self._state / "tasks"):
            for index in numbers_in(self._state / "tasks" / str(run)):
                for attempt in numbers_in(self._state / "tasks" / str(run) / str(index)):
                    name = cluster_name(run, index, attempt)
                    if name not in self._tasks and name not in self._told:
                        self._alone(name, self._past_task, name, since)
            yield False

    def _past_task(self, name: str, since: float) -> None:
        run_id, index, attempt = task_of(name) or (0, 0, 0)
        try:
            folder = files.open_task(str(self._state / "tasks"), run_id, index, attempt)
        except (FileNotFoundError, NotOurs):
            return
        end = folder.stat(files.END)
        if end is None:
            if folder.has(files.SUPERVISOR):
                self._adopt(name, time.monotonic())
            return
        self._told[name] = time.monotonic()
        if end.st_ctime >= since:
            self._tell(run_id, datetime.fromtimestamp(end.st_ctime + SLACK_S, UTC))

    # --- telling

    def _tell(self, run_id: int, at: datetime | None = None) -> None:
        now = datetime.now(UTC)
        self._changed(run_id, min(at, now) if at is not None else now)

    def _time_of(self, path: Path) -> datetime | None:
        try:
            return datetime.fromtimestamp(os.lstat(path).st_ctime + SLACK_S, UTC)
        except (OSError, OverflowError, ValueError):
            return None

    def _tidy(self, now: float) -> None:
        liveness_marks.forget(str(self._state))
        self._odd &= self._tasks.keys()
        shown = self._listings[liveness_marks.ENDED].names
        self._told = {n: t for n, t in self._told.items() if n in shown or now - t < 2 * liveness_marks.KEEP_ENDED_S}
        self._place.improve()
