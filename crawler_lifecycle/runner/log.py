"""The crawler's log: read from a pipe and written to a file of limited size.

A crawler that writes to the file itself could fill a disk faster than anybody looks. The pipe makes it wait for us
instead. We read on whatever becomes of the file: a pipe that nobody reads would hold the crawler up.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from .held import Held

#: Bytes after which the log is moved to ``log.1`` and begun anew, so that twice as many are kept at the most.
LOG_MAX = 50 * 1024 * 1024
_CHUNK = 64 * 1024
#: After the crawler's end: what it printed is in the pipe already. Others may hold the pipe open, and print for ever.
_DRAIN_S = 2.0
_DRAIN_BYTES = 4 * 1024 * 1024


class CappedLog:
    """Between the crawler's output and the file that standard output and error of ours are."""

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
        """The crawler has its end of the pipe: give up ours."""
        os.close(self.inlet)

    def finish(self) -> None:
        """The crawler has ended: write what it printed before, and wait for nobody else who holds the pipe."""
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
        """Write one piece; whether there may be more. Nobody has the other end any more: nothing comes."""
        try:
            data = os.read(self._out, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            with contextlib.suppress(OSError):  # a full disk: what cannot be kept is lost, and the crawl goes on
                self._make_room()
                _write(data)
        return bool(data)

    def _make_room(self) -> None:
        if os.fstat(1).st_size < LOG_MAX:
            return
        try:
            fresh = self._folder.rotate(self._name, f"{self._name}.1")
        except OSError:  # somebody took the folder away: nobody reads it any more, and the cap holds all the same
            os.ftruncate(1, 0)
            return
        os.dup2(fresh, 1)
        os.dup2(fresh, 2)
        os.close(fresh)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
