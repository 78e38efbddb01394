"""Logs of local tasks: the file ``log`` in a task's folder.

The crawler owns that folder and may put any file there under any name. No link below our own state folder is followed,
and only a regular file is read.
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
    """Implements ``TaskLogs`` for processes of this machine. It creates nothing.

    A log that grew too large was moved aside by its runner; reading goes on in the new one.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state = Path(state_dir).absolute()

    def read(self, run: RunRef, task: TaskRef, after: int | None, limit: int) -> LogPart | None:
        """At most ``limit`` bytes from ``after`` on, or the last ones. Raises ``ClusterUnavailable``."""
        try:
            folder = TaskFolder(self._state, run, task, doubted=True)
            if not folder.exists():
                return None
            # Checked first: output between the two checks is then still read. The check is expensive, and not needed
            # where more follows.
            ended = not self._more_follows(folder, after, limit) and self._ended(folder)
            handle = folder.open(files.LOG)
            if handle is None:
                return LogPart(b"", 0, True) if ended else None
            with open(handle, "rb", buffering=0) as file:
                size = os.fstat(handle).st_size
                place = max(0, size - limit) if after is None else after if after <= size else 0
                data = os.pread(file.fileno(), limit, place)
        except FileNotFoundError:  # nothing was ever deployed here, or its disk is away
            return None
        except OSError as error:
            raise ClusterUnavailable(f"the log of task {task.task_id} cannot be read: {error.strerror}") from error
        end = place + len(data)
        return LogPart(data, end, ended and end >= size)

    @staticmethod
    def _more_follows(folder: TaskFolder, after: int | None, limit: int) -> bool:
        """Return whether the log is longer than the part that is read now."""
        there = folder.held.stat(files.LOG) if folder.held is not None else None
        if after is None or there is None or not stat.S_ISREG(there.st_mode):
            return False
        return after + limit < there.st_size

    @staticmethod
    def _ended(folder: TaskFolder) -> bool:
        """Return whether no process of the task can print any more."""
        if folder.has_ended():
            return True
        began = folder.has(files.SUPERVISOR) or folder.has(files.PROCESS)
        # A scan of all processes is expensive; it is needed only when the supervisor died before its crawler.
        return began and not folder.supervisor_alive() and not folder.processes(folder.identity(files.PROCESS))
