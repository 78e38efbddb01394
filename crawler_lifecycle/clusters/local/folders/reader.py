"""Reads the files in a task's folder, and finds the task's processes.

A file whose content we did not write is ignored. The observation's reason, or the message of the
end, reports the problem.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
from crawler_lifecycle.domain.blocked import BlockReport, read_blocked
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports.runs import TaskRef
from crawler_lifecycle.runner.safe_directory import NotOurs, SafeDirectory

from . import folder as files

_NAME = re.compile(r"crawl-(.+)-(0|[1-9][0-9]{0,9})-([1-9][0-9]{0,9})", re.ASCII)


def task_name(run: RunRef, index: int, attempt: int) -> str:
    """Return the name of a task on this cluster.

    The name is unique, even among runs of other databases.
    """
    return f"crawl-{run}-{index}-{attempt}"


def task_of(name: str) -> tuple[RunRef, int, int] | None:
    """Return the run, index and attempt from a task's name; ``None`` for any other name."""
    found = _NAME.fullmatch(name)
    run = RunRef.named(found[1]) if found else None
    return (run, int(found[2]), int(found[3])) if found and run else None


def task_path(state: Path, run: RunRef, index: int, attempt: int) -> Path:
    """Return the path of a task's folder."""
    return state / "tasks" / str(run) / str(index) / str(attempt)


@dataclass(frozen=True, slots=True)
class FileReport:
    """The object in one of the files; empty without the file. ``note`` gets each invalid value."""

    source: str
    """The name of the file, for messages about problems."""
    data: files.Record
    note: Callable[[str], None]

    def typed(self, name: str, kind: type) -> object | None:
        """Return the value if it has exactly this type, otherwise ``None``.

        A different type is noted as an incident.
        """
        value = self.data.get(name)
        if value is None or type(value) is kind:
            return value
        self.note(f"{self.source}: {name} is {type(value).__name__}, not {kind.__name__}")
        return None

    def text(self, name: str) -> str | None:
        return bounds.words(self.typed(name, str))

    def count(
        self, name: str, bounded: Callable[[object], int | None] = bounds.count
    ) -> int | None:
        """Return an integer that ``bounded`` accepts, otherwise ``None``.

        Any other number is noted as an incident.
        """
        value = self.typed(name, int)
        number = bounded(value)
        if number is None and value:
            self.note(f"{self.source}: {name} is out of range")
        return number

    def time(self, name: str) -> datetime | None:
        text = self.text(name)
        at = bounds.moment(text)
        if at is None and text is not None:
            self.note(f"{self.source}: {name} is not a valid time")
        return at


class TaskFolder:
    """The folder of a task, as read by one poll."""

    def __init__(self, state: Path, run: RunRef, task: TaskRef, *, doubted: bool = False) -> None:
        """Initialize without opening anything.

        If ``doubted`` is true, the files that name the task's processes may be forged, so an end
        counts only if a search finds no process.
        """
        self.path = task_path(state, run, task.index, task.attempt)
        self.name = task_name(run, task.index, task.attempt)
        self._doubted = doubted
        self.run = run
        self.task = task
        self._held: SafeDirectory | None = None
        self.incidents: list[str] = []

    # --- files

    def exists(self) -> bool:
        """Return whether the folder exists. Raises ``OSError`` if this is unknown.

        If the folder or a folder above it was replaced by something else, the folder counts as
        missing, and an incident is noted.
        """
        return self._open() is not None

    def _open(self) -> SafeDirectory | None:
        tasks, *names = str(self.path).rsplit(os.sep, 3)
        # Raises an error if the folder of all tasks is missing, because then nothing is known about
        # any task.
        root = SafeDirectory(tasks)
        try:
            return root.below(*names)
        except FileNotFoundError:
            return None
        except NotOurs as error:
            self._note(f"its folder was replaced: {error}")
            return None

    @property
    def held(self) -> SafeDirectory | None:
        """The folder, which is opened once; ``None`` while it does not exist. Raises
        ``OSError``.
        """
        if self._held is None:
            self._held = self._open()
        return self._held

    def _here(self) -> SafeDirectory:
        """Return the open folder for writing. Raises ``OSError`` if it does not exist."""
        if self.held is None:
            raise FileNotFoundError(
                errno.ENOENT, "the folder of the task does not exist", str(self.path)
            )
        return self.held

    def create(self, name: str, data: object) -> bool:
        """Write the file unless its name exists.

        Return whether it was written. Raises ``OSError``.
        """
        return files.create(self._here(), name, data)

    def has(self, name: str) -> bool:
        return self.held is not None and self.held.has(name)

    def open(self, name: str) -> int | None:
        """Return a descriptor of the regular file; ``None`` if it is missing or not a regular file.

        Raises ``OSError``.
        """
        try:
            return self.held.open(name) if self.held is not None else None
        except NotOurs:
            return None

    def has_ended(self) -> bool:
        """Return whether the task's end is recorded and none of its processes is running.

        Raises ``OSError``.

        The supervisor writes the end after the crawler's last process has ended. If a crawler
        forges an end, the crawler is still running.
        """
        if not self.has(files.END):
            return False
        leader = self.identity(files.PROCESS)
        if leader is not None and leader.alive():
            return False
        if self.supervisor_alive() or self._doubted:
            return not self.processes(leader)
        # Garbage may hide the identities. In this case, the task has ended only if no process has
        # its name.
        hidden = (leader is None and self.has(files.PROCESS)) or self.identity(
            files.SUPERVISOR
        ) is None
        return not (hidden and self.named()[1])

    def read(self, name: str) -> FileReport:
        """Return the object in the file, which is empty without a file and for garbage, which is
        noted.

        Raises ``OSError`` if the file cannot be read, which proves nothing about the task.
        """
        return self.report(name, self._data(name) or {})

    def report(self, name: str, data: files.Record) -> FileReport:
        """Return data that stands for the object in the file."""
        return FileReport(name, data, self._note)

    def _data(self, name: str) -> files.Record | None:
        try:
            return files.read(self.held, name) if self.held is not None else None
        except files.Garbage as error:
            self._note(str(error))
            return {}

    def _note(self, incident: str) -> None:
        if incident not in self.incidents:
            self.incidents.append(incident)

    def modified(self, name: str) -> datetime | None:
        try:
            found = self.held.stat(name) if self.held is not None else None
            return (
                None
                if found is None
                else bounds.believable(datetime.fromtimestamp(found.st_mtime, UTC))
            )
        except (OSError, ValueError, OverflowError):
            return None

    # --- processes

    def identity(self, name: str) -> Identity | None:
        """Return the process that the file names; ``None`` if there is no file, or if it is
        invalid, which is noted.
        """
        data = self._data(name)
        if data is None:
            return None
        try:
            process = Identity.from_json(data)
            ours = not process.alive() or is_of(str(self.path), self.marks(), process.pid)
            # Check this last, because a process that ends meanwhile loses its arguments before its
            # number.
            if not ours and process.can_be_asked():
                raise ValueError("it names a process that does not belong to the task")
        except ValueError as error:
            if not any(known.startswith(name) for known in self.incidents):
                self._note(f"{name}: {error}")
            return None
        return process

    def named(self, uid: str | None = None) -> tuple[list[Identity], list[Stat]]:
        """Return the task's supervisors and crawler processes, found by their arguments and
        environment.

        This works without the folder. If ``uid`` is given, only processes of the task with this uid
        are returned.
        """
        return named(str(self.path), self.marks(), uid)

    def marks(self) -> list[bytes]:
        return files.marks(
            self.run.run_id, self.run.uid, self.task.task_id, str(self.path / files.FILES)
        )

    def processes(self, leader: Identity | None) -> list[Stat]:
        """Return the living processes of the crawler, including those that left its group."""
        found = {stat.pid: stat for stat in members(leader, self.marks())}
        for stat in self._tree(leader):
            found.setdefault(stat.pid, stat)
        group = self.group()
        if group is not None:
            more = [read_stat(pid) for pid in group.pids() if pid not in found]
            # Check again, because another process may have got the number before it was read.
            there = set(group.pids()) if more else ()
            found |= {
                stat.pid: stat
                for stat in more
                if stat is not None and not stat.ended and stat.pid in there
            }
        return list(found.values())

    def _tree(self, leader: Identity | None) -> list[Stat]:
        """Return the descendants of the supervisor and the runner, which adopt all orphans of the
        crawler.

        This finds processes that hide their environment. A crawler can forge the files that name
        the supervisor and the runner, so both are checked.
        """
        found = []
        supervisor = self.identity(files.SUPERVISOR)
        if (
            supervisor is not None
            and supervisor.alive()
            and started_with(supervisor.pid, str(self.path))
        ):
            found += below(supervisor.pid)
        if leader is not None and leader.alive() and carries(leader.pid, self.marks()):
            found += below(leader.pid)
        return found

    # --- the control group

    def group(self) -> Group | None:
        """Return the task's control group if it may exist, otherwise ``None``."""
        if not self.has(files.CGROUP):
            return None
        try:
            return Group.of(self.read(files.SPEC).data)
        except ValueError as error:
            self._note(str(error))
            return None

    def settle_group(self) -> None:
        """Record the counters of the control group and remove it, if there is no supervisor to do
        this.

        Raises ``OSError``.
        """
        if (
            self.has(files.CGROUP)
            and not self.supervisor_alive()
            and (group := self.group()) is not None
        ):
            with suppress(FileNotFoundError):  # another poll removed the group
                kills = group.oom_kills()
                if kills:
                    self.create(files.OOM, {"kills": kills, "peak_memory": group.peak()})
            if group.remove(0):
                self._here().unlink(files.CGROUP)

    def uid(self) -> str | None:
        """Return the uid in the spec; ``None`` without a valid spec."""
        return self.read(files.SPEC).text("uid")

    def supervisor_alive(self) -> bool:
        """Return whether a supervisor is alive, according to its identity or, if that is garbage,
        its lock.
        """
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

    # --- measurements

    def memory(self) -> int | None:
        """Return the peak memory in bytes; for an executing task, the current memory."""
        leader = self.identity(files.PROCESS)
        if leader is not None and leader.alive():
            return memory_of(leader.pid, None) or None
        return self.peak_memory()

    def peak_memory(self) -> int | None:
        """Return the largest recorded peak in bytes; ``None`` without a record."""
        sources = (files.END, files.SUMMARY, files.OOM)
        measured = [self.read(name).count("peak_memory") for name in sources]
        return max((value for value in measured if value is not None), default=None)

    def counters(self, *, final: bool = False) -> tuple[Counters, datetime | None]:
        """Return the counters, and the time when the crawler last wrote them.

        If ``final`` is true, the task has ended, so the counters of the summary take precedence.
        """
        stats = self.read(files.STATS)
        progress = stats.time("updated_at")
        if progress is None and stats.data:
            progress = self.modified(files.STATS)
        summary = self.read(files.SUMMARY) if final else None
        values = {}
        for name in ("pages", "items", "errors", "bytes"):
            last = None if summary is None else summary.count(name)
            values[name] = last if last is not None else stats.count(name)
        return Counters(**values), progress

    def blocked(self) -> tuple[BlockReport, ...] | None:
        """Return the refused requests that the crawler reports."""
        return read_blocked(self.read(files.STATS).data.get("blocked"))


def check_readable(state: Path) -> None:
    """Raise ``OSError`` if the folder of all tasks is missing or unreadable, which is an outage.

    A missing task proves something only if this folder is readable.
    """
    tasks = state / "tasks"
    try:
        with os.scandir(tasks):
            pass
    except FileNotFoundError:
        fix = (
            "the folder of tasks is missing; mount its disk, or create the folder if the tasks "
            "are lost permanently"
        )
        raise FileNotFoundError(errno.ENOENT, fix, str(tasks)) from None


@contextmanager
def reading(state: Path, *, checked: bool = True) -> Iterator[None]:
    """Check the folder of all tasks, and convert each ``OSError`` inside the block to
    ``ClusterUnavailable``.

    ``checked=False`` skips the check, for callers that treat a missing state folder as empty.
    """
    try:
        if checked:
            check_readable(state)
        yield
    except OSError as error:
        raise ClusterUnavailable(f"the local cluster cannot be read: {error}") from error
