"""The default event sink, which is a file with one JSON document per line."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crawler_lifecycle.cloudevents import bus_text
from crawler_lifecycle.domain.bounds import file_path
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.ports.runs import Event


class JsonLinesSink:
    """The port ``EventSink`` over a file.

    Each delivery appends one line of JSON, and counts only when the line is on disk.

    A delivery can be repeated, so readers must ignore repeated ``id`` values. Readers must also
    skip lines that are not JSON. A writer that dies while writing leaves such a line, and the next
    writer begins a new line.
    """

    name = "file"

    def __init__(self, url: str, *, lock_timeout_s: float = 10.0) -> None:
        self.path = Path(file_path("LIFECYCLE_EVENTS__URL", url, "file:///path/of/events.jsonl"))
        self._lock_timeout_s = lock_timeout_s

    def send(self, event: Event) -> None:
        """Append the event. After ``NotDelivered``, the event does not count as delivered."""
        try:
            line = bus_text(event).encode("ascii") + b"\n"
            with self._open() as fd:
                size = os.fstat(fd).st_size
                if size and os.pread(fd, 1, size - 1) != b"\n":
                    line = b"\n" + line
                self._write(fd, line, size)
        except (OSError, TypeError, ValueError) as error:
            raise NotDelivered(f"{self.path}: the event cannot be written: {error}") from error

    def check(self) -> str:
        """Check that events can be written, and return a description of their destination.

        Raises ``NotDelivered``.

        If there is no file, an empty file is created. This file is not removed afterwards, because
        another writer may have added an event.
        """
        try:
            with self._open():
                return f"appended to the file {self.path}"
        except OSError as error:
            raise NotDelivered(
                f"{self.path}: events cannot be written: {error}; "
                "let this account write there, or set LIFECYCLE_EVENTS__URL"
            ) from error

    @contextmanager
    def _open(self) -> Iterator[int]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            # With O_NONBLOCK, a FIFO with this name causes an error instead of hanging.
            fd = os.open(
                self.path,
                os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK,
                0o640,
            )
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.EINVAL, "not a regular file")
                self._lock(fd)
                if self._is_named(fd):
                    yield fd
                    return
            finally:
                os.close(fd)  # the close releases the lock

    def _is_named(self, fd: int) -> bool:
        """Return whether the open file still has its name.

        The file may have been moved while this process was waiting for the lock.
        """
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(fd))
        except FileNotFoundError:
            return False

    def _lock(self, fd: int) -> None:
        deadline = time.monotonic() + self._lock_timeout_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(errno.ETIMEDOUT, "another writer holds its lock") from None
                time.sleep(0.01)

    def _write(self, fd: int, line: bytes, size: int) -> None:
        try:
            if os.write(fd, line) != len(line):
                raise OSError(errno.ENOSPC, "only a part was written")
            os.fsync(fd)
        except OSError:
            # We hold the lock, so nothing was written after our line. Remove the partial line.
            os.ftruncate(fd, size)
            raise
