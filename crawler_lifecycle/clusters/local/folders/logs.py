"""Logs of local tasks, from the file ``log`` in the folder of each task.

The crawler owns that folder and can create any file there. No link below our state folder is
followed, and only regular files are read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import LogPart
from crawler_lifecycle.ports.runs import TaskRef

from . import folder as files
from .reader import TaskFolder


class LocalLogs:
    """The logs of processes on this machine.

    This class implements ``TaskLogs``, and creates no files.

    If a log grows too large, its runner renames it, and reading continues in the new log.
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
            handle = folder.open(files.LOG)
            if handle is None:
                return LogPart(b"", 0, True) if ended else None
            with open(handle, "rb", buffering=0) as file:
                size = os.fstat(handle).st_size
                position = max(0, size - limit) if after is None else after if after <= size else 0
                data = os.pread(file.fileno(), limit, position)
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
        there = folder.held.stat(files.LOG) if folder.held is not None else None
        if after is None or there is None or not stat.S_ISREG(there.st_mode):
            return False
        return after + limit < there.st_size

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
