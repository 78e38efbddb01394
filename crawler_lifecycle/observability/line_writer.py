"""Writes log lines without ever waiting for a reader that does not read."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

#: The most characters of all lines that wait for their reader.
WAITING_MAX = 8 * 1024 * 1024
#: Written in one go; a pipe holds 64 KiB.
_BATCH = 32 * 1024


class LineWriter:
    """Writes to a stream from a thread of its own.

    A full pipe or a stopped terminal would otherwise hold up the event loop, and with it heartbeats and stops. Lines
    beyond the capacity are dropped and counted; ``told`` makes the line that reports their number, as soon as there is
    capacity again.
    """

    def __init__(self, stream: TextIO, told: Callable[[int], str], *, waiting_max: int = WAITING_MAX) -> None:
        self._stream = stream
        self._told = told
        self._max = waiting_max
        self._waiting: deque[str] = deque()
        self._size = 0
        self._dropped = 0
        self._writing = False
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Put a line, with its line break, into the queue; never waits."""
        with self._change:
            if self._size + len(line) > self._max:
                self._dropped += 1
                return
            if self._dropped:
                self._put(self._told(self._dropped))
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
        """Wait until everything is written, for a limited time. Returns whether it is."""
        with self._change:
            done = self._change.wait_for(lambda: not self._waiting and not self._writing, seconds)
            if done and self._dropped:
                self._put(self._told(self._dropped))
                self._dropped = 0
                self._change.notify_all()
                done = self._change.wait_for(lambda: not self._waiting and not self._writing, seconds)
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
        """Write it all; ``False`` when the stream accepts nothing any more (closed, its reader gone, the disk full)."""
        try:
            # Bypasses the stream's own buffer, whose lock would be held by a write that does not end.
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
