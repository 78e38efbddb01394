"""Logs of tasks, in memory."""

from __future__ import annotations

import threading

from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import LogPart
from crawler_lifecycle.ports.runs import TaskRef


class FakeLogs:
    """Implements ``TaskLogs``.

    A task has a log from the first ``write``, and ends with ``end``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[tuple[int, int, int], bytes] = {}
        self._ended: set[tuple[int, int, int]] = set()
        self.error: Exception | None = None
        """Raised by every reading, as long as it is set."""

    def write(self, data: bytes, run_id: int, index: int = 0, attempt: int = 1) -> None:
        """Let the task print."""
        with self._lock:
            key = (run_id, index, attempt)
            self._logs[key] = self._logs.get(key, b"") + data

    def cut(self, run_id: int, index: int = 0, attempt: int = 1) -> None:
        """Move the log aside, and begin a new one."""
        with self._lock:
            self._logs[run_id, index, attempt] = b""

    def end(self, run_id: int, index: int = 0, attempt: int = 1) -> None:
        """Let the task end."""
        with self._lock:
            self._ended.add((run_id, index, attempt))

    def read(self, run: RunRef, task: TaskRef, after: int | None, limit: int) -> LogPart | None:
        with self._lock:
            if self.error is not None:
                raise self.error
            key = (run.run_id, task.index, task.attempt)
            log, ended = self._logs.get(key), key in self._ended
            if log is None:
                return LogPart(b"", 0, True) if ended else None
            place = max(0, len(log) - limit) if after is None else after if after <= len(log) else 0
            data = log[place : place + limit]
            end = place + len(data)
            return LogPart(data, end, ended and end >= len(log))
