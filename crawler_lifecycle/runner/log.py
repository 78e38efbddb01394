"""The crawler's log: the runner reads the crawler's output from a pipe and writes it to a file of
limited size.

A crawler that writes the file itself could fill the disk. If the output is a pipe, the crawler has
to wait for the runner. The runner keeps reading even if the file cannot be written, because a full
pipe would block the crawler.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from .safe_directory import SafeDirectory

#: After this many bytes, the log is renamed to ``log.1`` and a new one begins. So at most twice as
#: many bytes are kept.
LOG_MAX = 50 * 1024 * 1024
_CHUNK = 64 * 1024
#: Limits for reading after the crawler has ended, when all its output is already in the pipe. Other
#: processes may keep the pipe open and print to it forever.
_DRAIN_S = 2.0
_DRAIN_BYTES = 4 * 1024 * 1024


class CappedLog:
    """A thread that copies the crawler's output to the file of our standard output and error."""

    def __init__(self, path: str) -> None:
        """Start copying to the log at ``path``.

        Raises ``OSError``, and ``RuntimeError`` if no thread can start.
        """
        self._folder = SafeDirectory(os.path.dirname(path))
        self._name = os.path.basename(path)
        self._out, self.inlet = os.pipe()
        os.set_blocking(self._out, False)
        self._over_out, self._over_in = os.pipe()
        self._thread = threading.Thread(target=self._copy, name="crawl-log", daemon=True)
        self._thread.start()

    def handed_over(self) -> None:
        """Close our writing end of the pipe, once the crawler has inherited it."""
        os.close(self.inlet)

    def finish(self) -> None:
        """Write the output that remains after the crawler has ended.

        Do not wait for other processes that keep the pipe open.
        """
        os.write(self._over_in, b"x")
        self._thread.join(_DRAIN_S + 1.0)

    # --- in the thread

    def _copy(self) -> None:
        while True:
            ready, _, _ = select.select([self._out, self._over_out], [], [])
            if self._over_out in ready:
                return self._drain()
            if not self._pass_on():
                return None

    def _drain(self) -> None:
        due = time.monotonic() + _DRAIN_S
        left = _DRAIN_BYTES
        while left > 0 and time.monotonic() < due and self._pass_on():
            left -= _CHUNK

    def _pass_on(self) -> bool:
        """Copy one piece of output.

        Return false if the pipe is empty, or if no process can write to it any more.
        """
        try:
            data = os.read(self._out, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            # On a full disk this output is lost, but the crawl continues.
            with contextlib.suppress(OSError):
                self._limit_size()
                _write(data)
        return bool(data)

    def _limit_size(self) -> None:
        if os.fstat(1).st_size < LOG_MAX:
            return
        try:
            fresh = self._folder.rotate(self._name, f"{self._name}.1")
        # The folder was removed. No reader can open the file any more, but the limit still applies.
        except OSError:
            os.ftruncate(1, 0)
            return
        os.dup2(fresh, 1)
        os.dup2(fresh, 2)
        os.close(fresh)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
