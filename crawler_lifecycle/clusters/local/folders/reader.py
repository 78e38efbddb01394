"""Reads the files of a task's folder and finds the processes of the task.

A file with contents that we did not write is ignored: the observation's reason (or the end's message) reports the
problem.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from crawler_lifecycle.clusters.local.processes.cgroup import Group
from crawler_lifecycle.clusters.local.processes.identity import (
    Identity,
    Stat,
    below,
    carries,
    is_of,
    members,
    memory_of,
    named,
    read_stat,
    started_with,
)
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports.runs import TaskRef
from crawler_lifecycle.runner.held import Held, NotOurs

from . import folder as files

_NAME = re.compile(r"crawl-(.+)-(0|[1-9][0-9]{0,9})-([1-9][0-9]{0,9})", re.ASCII)


def task_name(run: RunRef, index: int, attempt: int) -> str:
    """The name of a task here: no other run has it, of this or any other database."""
    return f"crawl-{run}-{index}-{attempt}"


def task_of(name: str) -> tuple[RunRef, int, int] | None:
    """Run, index and attempt of a task's name; ``None`` for any other name."""
    found = _NAME.fullmatch(name)
    run = RunRef.named(found[1]) if found else None
    return (run, int(found[2]), int(found[3])) if found and run else None


def task_path(state: Path, run: RunRef, index: int, attempt: int) -> Path:
    """The folder of a task."""
    return state / "tasks" / str(run) / str(index) / str(attempt)


class TaskFolder:
    """One task's folder at the moment of a look."""

    def __init__(self, state: Path, run: RunRef, task: TaskRef, *, doubted: bool = False) -> None:
        """``doubted``: the files that name its processes may be forged; an end counts only where no process is
        found.
        """
        self.path = task_path(state, run, task.index, task.attempt)
        self.name = task_name(run, task.index, task.attempt)
        self._doubted = doubted
        self.run = run
        self.task = task
        self._held: Held | None = None
        self.incidents: list[str] = []

    # --- files

    def exists(self) -> bool:
        """Return whether the folder exists.

        Raises ``OSError`` when this is unknown. A file, a link or a pipe in place of it, or of a folder above it, is
        noted: the folder does not exist.
        """
        return self._open() is not None

    def _open(self) -> Held | None:
        tasks, *names = str(self.path).rsplit(os.sep, 3)
        root = Held(tasks)  # without the folder of all tasks nothing is known about any
        try:
            return root.below(*names)
        except FileNotFoundError:
            return None
        except NotOurs as trouble:
            self._note(f"its folder was replaced: {trouble}")
            return None

    @property
    def held(self) -> Held | None:
        """The folder, opened once; ``None`` while it does not exist. Raises ``OSError``."""
        if self._held is None:
            self._held = self._open()
        return self._held

    def _here(self) -> Held:
        """To write in it. Raises ``OSError``."""
        if self.held is None:
            raise FileNotFoundError(errno.ENOENT, "the folder of the task is not there", str(self.path))
        return self.held

    def create(self, name: str, data: object) -> bool:
        """Write the file if nothing has its name; whether it was us. Raises ``OSError``."""
        return files.create(self._here(), name, data)

    def has(self, name: str) -> bool:
        return self.held is not None and self.held.has(name)

    def open(self, name: str) -> int | None:
        """A descriptor of the file; ``None`` for a missing file, or one that a crawler replaced. Raises ``OSError``."""
        try:
            return self.held.open(name) if self.held is not None else None
        except NotOurs:
            return None

    def has_ended(self) -> bool:
        """Return whether its end is recorded, and no process of it runs any more.

        Raises ``OSError``. Only the supervisor writes the end, after the crawler's last process; a crawler that forges
        one still runs.
        """
        if not self.has(files.END):
            return False
        leader = self.identity(files.PROCESS)
        if leader is not None and leader.alive():
            return False
        if self.supervisor_alive() or self._doubted:
            return not self.processes(leader)
        # Who they were may be hidden by garbage: then nothing that is named like them may run.
        hidden = (leader is None and self.has(files.PROCESS)) or self.identity(files.SUPERVISOR) is None
        return not (hidden and self.named()[1])

    def read(self, name: str) -> dict[str, object] | None:
        """The object in the file; empty when the file holds garbage (which is noted), ``None`` without a file.

        Raises ``OSError`` when the file cannot be read: that says nothing about the task.
        """
        try:
            return files.read(self.held, name) if self.held is not None else None
        except files.Garbage as trouble:
            self._note(str(trouble))
            return {}

    def _note(self, trouble: str) -> None:
        if trouble not in self.incidents:
            self.incidents.append(trouble)

    def typed(self, data: Mapping[str, object], name: str, kind: type, source: str) -> object | None:
        """A value of exactly this type, or ``None``; a value of another type is noted as garbage."""
        value = data.get(name)
        if value is None or type(value) is kind:
            return value
        self._note(f"{source}: {name} is {type(value).__name__}, not {kind.__name__}")
        return None

    def text(self, data: Mapping[str, object], name: str, source: str) -> str | None:
        value = self.typed(data, name, str, source)
        return bounds.words(value)

    def count(
        self,
        data: Mapping[str, object],
        name: str,
        source: str,
        bounded: Callable[[object], int | None] = bounds.count,
    ) -> int | None:
        """A whole number as ``bounded`` takes it; one that cannot be is noted as garbage."""
        value = self.typed(data, name, int, source)
        number = bounded(value)
        if number is None and value:
            self._note(f"{source}: {name} is out of range")
        return number

    def time(self, data: Mapping[str, object], name: str, source: str) -> datetime | None:
        text = self.text(data, name, source)
        at = bounds.moment(text)
        if at is None and text is not None:
            self._note(f"{source}: {name} is no time")
        return at

    def modified(self, name: str) -> datetime | None:
        try:
            found = self.held.stat(name) if self.held is not None else None
            return None if found is None else bounds.believable(datetime.fromtimestamp(found.st_mtime, UTC))
        except (OSError, ValueError, OverflowError):
            return None

    # --- processes

    def identity(self, name: str) -> Identity | None:
        """The process in the file; ``None`` when there is no file or garbage in it."""
        data = self.read(name)
        if data is None:
            return None
        try:
            process = Identity.from_json(data)
            ours = not process.alive() or is_of(str(self.path), self.marks(), process.pid)
            # Checked last: a process that ends meanwhile loses its arguments before its number, and is still ours.
            if not ours and process.can_be_asked():
                raise ValueError("it names a process of something else")
        except ValueError as trouble:
            if not any(known.startswith(name) for known in self.incidents):
                self._note(f"{name}: {trouble}")
            return None
        return process

    def named(self, uid: str | None = None) -> tuple[list[Identity], list[Stat]]:
        """Supervisors and crawler processes of this task, found by their environment, also without its folder.

        With ``uid`` only those of that object.
        """
        return named(str(self.path), self.marks(), uid)

    def marks(self) -> list[bytes]:
        return files.marks(self.run.run_id, self.run.uid, self.task.task_id, str(self.path / files.FILES))

    def processes(self, leader: Identity | None) -> list[Stat]:
        """The living processes of the crawler, including those that left its group."""
        found = {stat.pid: stat for stat in members(leader, self.marks())}
        for stat in self._tree(leader):
            found.setdefault(stat.pid, stat)
        group = self.group()
        if group is not None:
            more = [read_stat(pid) for pid in group.pids() if pid not in found]
            # Checked again: another process may have got the number before it was read.
            there = set(group.pids()) if more else ()
            found |= {stat.pid: stat for stat in more if stat is not None and not stat.ended and stat.pid in there}
        return list(found.values())

    def _tree(self, leader: Identity | None) -> list[Stat]:
        """Return the processes below supervisor and runner, which adopt orphans, even if they hide their environment.

        The crawler may forge the files that name the two, so each process is checked.
        """
        found = []
        supervisor = self.identity(files.SUPERVISOR)
        if supervisor is not None and supervisor.alive() and started_with(supervisor.pid, str(self.path)):
            found += below(supervisor.pid)
        if leader is not None and leader.alive() and carries(leader.pid, self.marks()):
            found += below(leader.pid)
        return found

    # --- the control group

    def group(self) -> Group | None:
        """The control group, if a file names one."""
        if not self.has(files.CGROUP):
            return None
        try:
            return Group.of(self.read(files.SPEC) or {})
        except ValueError as trouble:
            self._note(str(trouble))
            return None

    def settle_group(self) -> None:
        """Keep the figures of the control group and remove it, if no supervisor does so. Raises ``OSError``."""
        if self.has(files.CGROUP) and not self.supervisor_alive() and (group := self.group()) is not None:
            with suppress(FileNotFoundError):  # removed by another look
                kills = group.oom_kills()
                if kills:
                    self.create(files.OOM, {"kills": kills, "peak_memory": group.peak()})
            if group.remove(0):
                self._here().unlink(files.CGROUP)

    def uid(self) -> str | None:
        """The identity of the object of this name; ``None`` when there is none, or garbage hides it."""
        return self.text(self.read(files.SPEC) or {}, "uid", files.SPEC)

    def supervisor_alive(self) -> bool:
        """Return whether a supervisor lives: by its identity, or by its lock when garbage hides the identity."""
        supervisor = self.identity(files.SUPERVISOR)
        if supervisor is not None:
            return supervisor.alive()
        return self.has(files.SUPERVISOR) and self._locked()

    def _locked(self) -> bool:
        handle = self.open(files.LOCK)
        if handle is None:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    # --- what was measured

    def memory(self) -> int | None:
        """Bytes at the peak; for an executing task, the present use."""
        leader = self.identity(files.PROCESS)
        if leader is not None and leader.alive():
            return memory_of(leader.pid, None) or None
        return self.peak_memory()

    def peak_memory(self) -> int | None:
        """Bytes, if somebody measured them."""
        sources = (files.END, files.SUMMARY, files.OOM)
        measured = [self.count(self.read(name) or {}, "peak_memory", name) for name in sources]
        return max((value for value in measured if value is not None), default=None)

    def counters(self, *, final: bool = False) -> tuple[Counters, datetime | None]:
        """The counters and when the crawler last wrote them; after the end the summary's where it has any."""
        stats = self.read(files.STATS) or {}
        progress = self.time(stats, "updated_at", files.STATS)
        if progress is None and stats:
            progress = self.modified(files.STATS)
        summary = (self.read(files.SUMMARY) or {}) if final else {}
        values = {}
        for name in ("pages", "items", "errors", "bytes"):
            last = self.count(summary, name, files.SUMMARY)
            values[name] = last if last is not None else self.count(stats, name, files.STATS)
        return Counters(**values), progress


def check_readable(state: Path) -> None:
    """Check the folder of all tasks: if it is missing or unreadable, this is an outage; a missing task inside of it is
    an answer.

    Raises ``OSError``.
    """
    tasks = state / "tasks"
    try:
        with os.scandir(tasks):
            pass
    except FileNotFoundError:
        cure = "the folder of tasks is missing: mount its disk, or make it anew if they are lost for good"
        raise FileNotFoundError(errno.ENOENT, cure, str(tasks)) from None


@contextmanager
def reading(state: Path, *, checked: bool = True) -> Iterator[None]:
    """Raises ``ClusterUnavailable`` for any ``OSError`` within, and first of all when the folder is not readable.

    ``checked``: False skips this check; a state folder that was never made is empty.
    """
    try:
        if checked:
            check_readable(state)
        yield
    except OSError as error:
        raise ClusterUnavailable(f"the local cluster cannot be read: {error}") from error
