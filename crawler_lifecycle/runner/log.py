"""The crawler's log: read from a pipe and written to a file of limited size.

A crawler that writes to the file itself could fill a disk before anybody notices. With the pipe it has to wait for us.
We continue to read even if the file cannot be written: a pipe that nobody reads would block the crawler.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from .held import Held

#: Bytes after which the log is renamed to ``log.1`` and begun again, so that at most twice as many are kept.
LOG_MAX = 50 * 1024 * 1024
_CHUNK = 64 * 1024
#: After the crawler's end: its output is already in the pipe. Other processes may keep the pipe open, and print for
#: ever.
_DRAIN_S = 2.0
_DRAIN_BYTES = 4 * 1024 * 1024


class CappedLog:
    """Copies the crawler's output to the file of our standard output and error."""

    def __init__(self, path: str) -> None:
        """``path`` of the log. Raises ``OSError``, and ``RuntimeError`` when there is no thread to be had."""
        self._folder = Held(os.path.dirname(path))
        self._name = os.path.basename(path)
        self._out, self.inlet = os.pipe()
        os.set_blocking(self._out, False)
        self._over_out, self._over_in = os.pipe()
        self._thread = threading.Thread(target=self._copy, name="crawl-log", daemon=True)
        self._thread.start()

    def handed_over(self) -> None:
        """The crawler has its end of the pipe: close ours."""
        os.close(self.inlet)

    def finish(self) -> None:
        """The crawler has ended: write its remaining output, without waiting for other processes that hold the pipe."""
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
        due, left = time.monotonic() + _DRAIN_S, _DRAIN_BYTES
        while left > 0 and time.monotonic() < due and self._pass_on():
            left -= _CHUNK

    def _pass_on(self) -> bool:
        """Write one piece. Returns whether more may come. Without a writer at the other end nothing comes."""
        try:
            data = os.read(self._out, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            with contextlib.suppress(OSError):  # a full disk: this output is lost, and the crawl continues
                self._make_room()
                _write(data)
        return bool(data)

    def _make_room(self) -> None:
        if os.fstat(1).st_size < LOG_MAX:
            return
        try:
            fresh = self._folder.rotate(self._name, f"{self._name}.1")
        except OSError:  # somebody removed the folder: nobody reads the file any more, but the cap still applies
            os.ftruncate(1, 0)
            return
        os.dup2(fresh, 1)
        os.dup2(fresh, 2)
        os.close(fresh)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
