"""Logs of local tasks, from the files ``log.1`` and ``log`` in the folder of each task.

The runner moves a log that grows too large to ``log.1``, over an older one. Both are read as one
log, so a position still means the same byte after the first move.

The crawler owns that folder and can create any file there. No link below our state folder is
followed, and only regular files are read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import LogPart
from crawler_lifecycle.ports.runs import TaskRef

from . import folder as files
from .reader import TaskFolder

#: The older and the present part of a log.
PARTS = (f"{files.LOG}.1", files.LOG)


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The parts of a log that are open for reading, the present one last."""

    handles: Sequence[int]
    sizes: Sequence[int]

    def read(self, at: int, most: int) -> bytes:
        """Return at most ``most`` bytes from the offset ``at``. Raises ``OSError``."""
        found = b""
        for handle, size in zip(self.handles, self.sizes, strict=True):
            found += os.pread(handle, max(0, min(most - len(found), size - at)), at)
            at = max(0, at - size)
        return found


@contextmanager
def open_log(folder: TaskFolder) -> Iterator[StoredLog]:
    """Open the parts of a log that exist. Raises ``OSError``."""
    with ExitStack() as opened:

        def part(name: str) -> int | None:
            handle = folder.open(name)
            if handle is not None:
                opened.callback(os.close, handle)
            return handle

        before = part(files.LOG)
        older = part(PARTS[0])
        present = part(files.LOG)
        if before is not None and present is not None and not os.path.sameopenfile(before, present):
            older = before  # it was moved between these calls
        handles = [handle for handle in (older, present) if handle is not None]
        yield StoredLog(handles, [os.fstat(handle).st_size for handle in handles])


class LocalLogs:
    """The logs of processes on this machine.

    This class implements ``TaskLogs``, and creates no files.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state = Path(state_dir).absolute()

    def read(self, run: RunRef, task: TaskRef, after: int | None, limit: int) -> LogPart | None:
        """Return at most ``limit`` bytes after the position ``after``, or the last bytes if
        ``after`` is ``None``.

        Raises ``ClusterUnavailable``.
        """
        try:
            folder = TaskFolder(self._state, run, task, doubted=True)
            if not folder.exists():
                return None
            # Check the end before reading, so that no output can follow the part that is read. This
            # check is expensive, so it is skipped if more of the log follows.
            ended = not self._more_follows(folder, after, limit) and self._ended(folder)
            with open_log(folder) as log:
                if not log.handles:
                    return LogPart(b"", 0, True) if ended else None
                size = sum(log.sizes)
                position = max(0, size - limit) if after is None else after
                if position > size:  # an older part is gone
                    position = size - log.sizes[-1]
                data = log.read(position, limit)
        except FileNotFoundError:  # no task was ever deployed here, or the disk is not mounted
            return None
        except OSError as error:
            raise ClusterUnavailable(
                f"the log of task {task.task_id} cannot be read: {error.strerror}"
            ) from error
        end = position + len(data)
        return LogPart(data, end, ended and end >= size)

    @staticmethod
    def _more_follows(folder: TaskFolder, after: int | None, limit: int) -> bool:
        """Return whether the log continues after the part that is being read."""
        if after is None or folder.held is None:
            return False
        there = [folder.held.stat(name) for name in PARTS]
        size = sum(found.st_size for found in there if found and stat.S_ISREG(found.st_mode))
        return after + limit < size

    @staticmethod
    def _ended(folder: TaskFolder) -> bool:
        """Return whether no process of the task can produce further output."""
        if folder.has_ended():
            return True
        began = folder.has(files.SUPERVISOR) or folder.has(files.PROCESS)
        # Scanning all processes is expensive, and is needed only if the supervisor died before its
        # crawler.
        return (
            began
            and not folder.supervisor_alive()
            and not folder.processes(folder.identity(files.PROCESS))
        )
