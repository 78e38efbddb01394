"""The output of users' code: read at once, so that no full pipe ever blocks it; logged within limits; its end is
kept.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.managers.manager import OUTPUT_BYTES

log = logging.getLogger(__name__)

#: Characters of the newest output that an error message shows.
SHOWN = 1000
#: Lines a second that are logged, and characters of each.
LINES_A_SECOND, LINE_MAX = 50, 2000
#: Bytes a second that are read; a process that prints more has to wait, and costs the worker no processor time.
BYTES_A_SECOND = 8 * 1024 * 1024
_CHUNK = 65_536
#: The most bytes that a pipe of Linux holds without extra rights.
_PIPE = 1024 * 1024
_TURN_S = 0.5


class Output:
    """Reads one pipe in a thread until it is closed, or its process is gone."""

    def __init__(self, label: str, handle: int) -> None:
        self._label, self._handle = label, handle
        self._kept = bytearray()
        self._fresh = 0
        """Bytes of it that nobody has read yet."""
        self._line = bytearray()
        self._over = threading.Event()
        self._reading = threading.Lock()
        self._second, self._bytes, self._lines, self._left_out = 0.0, 0, 0, 0
        os.set_blocking(handle, False)
        self._thread = threading.Thread(target=self._read, name=f"output of {label}", daemon=True)
        self._thread.start()

    def take(self, *, whole: bool = False) -> str:
        """Return what was printed since this was asked last, for people: its end where that is too much, without
        secrets.

        A line that goes on is left for the next time, while the process lives, unless ``whole``: the next one who asks
        is somebody else.
        """
        with self._reading:
            lives = self._thread.is_alive()
            if lives:
                self._drain()
            fresh = bytes(self._kept[len(self._kept) - self._fresh :])
            end = fresh.rfind(b"\n") + 1 if lives and not whole and len(fresh) < OUTPUT_BYTES else len(fresh)
            self._fresh -= end
        return _shown(fresh, end)

    def said(self) -> str:
        """The end of the unread output, as a sentence after an error; empty when there is none."""
        with self._reading:
            fresh = bytes(self._kept[len(self._kept) - self._fresh :])
        text = _shown(fresh, len(fresh))[-SHOWN:].strip()
        return f"; it printed at last: {text}" if text else ""

    def close(self) -> None:
        """The process has ended: read the rest, and end."""
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        while True:
            leaving = self._over.is_set()
            ready, _, _ = select.select([self._handle], [], [], 0 if leaving else _TURN_S)
            if not ready:
                if leaving:  # another holder of the pipe has left the group of the process
                    break
                continue
            with self._reading:
                try:
                    part = os.read(self._handle, _CHUNK)
                except BlockingIOError:
                    continue
                self._take(part)
            if not part:
                break
            self._pace(leaving)
            if leaving and self._bytes > BYTES_A_SECOND:
                break
        self._flush()

    def _drain(self) -> None:
        """Read the present content of the pipe, at most its capacity: the thread may not have had its turn."""
        for _ in range(_PIPE // _CHUNK):
            if not select.select([self._handle], [], [], 0)[0]:
                return
            try:
                self._take(os.read(self._handle, _CHUNK))
            except BlockingIOError:
                return

    def _pace(self, leaving: bool) -> None:
        now = time.monotonic()
        if now - self._second >= 1.0:
            if self._left_out:
                log.warning("%s: %d lines of its output were not logged", self._label, self._left_out)
            self._second, self._bytes, self._lines, self._left_out = now, 0, 0, 0
        elif self._bytes > BYTES_A_SECOND and not leaving:
            self._over.wait(1.0 - (now - self._second))

    def _take(self, part: bytes) -> None:
        self._bytes += len(part)
        self._kept += part
        del self._kept[:-OUTPUT_BYTES]
        self._fresh = min(self._fresh + len(part), OUTPUT_BYTES)
        first, *more = part.split(b"\n")
        self._line += first[: LINE_MAX - len(self._line)] if len(self._line) < LINE_MAX else b""
        for line in more:
            self._flush()
            self._line += line[:LINE_MAX]

    def _flush(self) -> None:
        text = bytes(self._line).decode("utf-8", "replace").rstrip()
        self._line.clear()
        if not text:
            return
        self._lines += 1
        if self._lines > LINES_A_SECOND:
            self._left_out += 1
        else:
            log.info("%s: %s", self._label, text)


def for_people(text: str, most: int) -> str:
    """Return a text of users' code without secrets, in a form that every database and terminal accepts."""
    return redaction.printable(redaction.current().text(text, most), lines=True)


def _shown(fresh: bytes, end: int) -> str:
    # A line that has lost its beginning may contain the end of a secret; if it is the only line, it is kept.
    begin = fresh.find(b"\n", 0, end - 1) + 1 if len(fresh) == OUTPUT_BYTES else 0
    text = fresh[begin:end].decode("utf-8", "replace")
    return for_people(text, len(text))
