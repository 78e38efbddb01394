"""A log-line writer that never waits for a slow reader."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

#: The maximum number of characters of all lines in the queue.
WAITING_MAX = 8 * 1024 * 1024
#: The number of characters after which a batch of lines is written; a pipe can hold 64 KiB.
_BATCH = 32 * 1024


class LineWriter:
    """Writes lines to a stream in a separate thread.

    Otherwise a full pipe or a stopped terminal would block the event loop, and with it heartbeats
    and stops. If the queue is full, lines are dropped and counted. When the queue has capacity
    again, a line from ``report`` with the number of dropped lines is added.
    """

    def __init__(self, stream: TextIO, report: Callable[[int], str]) -> None:
        self._stream = stream
        self._report = report
        self._waiting: deque[str] = deque()
        self._size = 0
        self._dropped = 0
        self._writing = False
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Add a line, including its line break, to the queue. This call never waits."""
        with self._change:
            if self._size + len(line) > WAITING_MAX:
                self._dropped += 1
                return
            if self._dropped:
                self._put(self._report(self._dropped))
                self._dropped = 0
            self._put(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def _put(self, line: str) -> None:
        self._waiting.append(line)
        self._size += len(line)

    def flush(self, seconds: float) -> bool:
        """Wait at most this number of seconds until all lines are written. Return whether all lines
        are written.
        """
        with self._change:
            done = self._change.wait_for(lambda: not self._waiting and not self._writing, seconds)
            if done and self._dropped:
                self._put(self._report(self._dropped))
                self._dropped = 0
                self._change.notify_all()
                done = self._change.wait_for(
                    lambda: not self._waiting and not self._writing, seconds
                )
            return done

    def _run(self) -> None:
        while True:
            with self._change:
                self._writing = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._waiting)
                batch = [self._waiting.popleft()]
                taken = len(batch[0])
                while self._waiting and taken < _BATCH:
                    batch.append(self._waiting.popleft())
                    taken += len(batch[-1])
                self._size -= taken
                self._writing = True
            if not self._out("".join(batch)):
                with self._change:
                    self._dropped += len(batch)

    def _out(self, text: str) -> bool:
        """Write the whole string; return ``False`` if the stream accepts no more data.

        The stream may be closed, its reader may have ended, or the disk may be full.
        """
        try:
            # The descriptor is used without the stream's buffer, because a write that never ends
            # would keep the buffer's lock.
            number = self._stream.fileno()
        except (OSError, ValueError):
            number = -1
        try:
            if number < 0:
                self._stream.write(text)
                return True
            rest = memoryview(text.encode("utf-8", "backslashreplace"))
            while rest:
                rest = rest[os.write(number, rest) :]
        except (OSError, ValueError):
            return False
        return True
