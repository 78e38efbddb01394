"""Reads the output of users' code at once, so that no full pipe blocks it, logs it within limits,
and stores the end of this output.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time

from crawler_lifecycle import redaction
from crawler_lifecycle.features.managers.domain.manager import OUTPUT_BYTES

log = logging.getLogger(__name__)

#: The number of characters of the newest output that an error message shows.
SHOWN = 1000
#: The maximum number of lines to log per second, and of characters in each line.
LINES_A_SECOND = 50
LINE_MAX = 2000
#: The maximum number of bytes to read per second. A process that prints more must wait, so that it
#: cannot use up the worker's CPU.
BYTES_A_SECOND = 8 * 1024 * 1024
_CHUNK = 65_536
#: The maximum number of bytes in a Linux pipe without special privileges.
_PIPE = 1024 * 1024
_TURN_S = 0.5


class Output:
    """Reads one pipe in a thread until the pipe is closed or its process has ended."""

    def __init__(self, label: str, handle: int) -> None:
        self._label = label
        self._handle = handle
        self._kept = bytearray()
        self._fresh = 0
        """The number of bytes at the end of ``_kept`` that ``take`` has not returned yet."""
        self._line = bytearray()
        self._over = threading.Event()
        self._reading = threading.Lock()
        self._second = 0.0
        self._bytes = 0
        self._lines = 0
        self._left_out = 0
        os.set_blocking(handle, False)
        self._thread = threading.Thread(target=self._read, name=f"output of {label}", daemon=True)
        self._thread.start()

    def take(self, *, whole: bool = False) -> str:
        """Return the output since the last call in a form for people: secrets are removed, and if
        the output is too long, only its end is returned. While the process lives, an incomplete
        last line is kept for the next call. If ``whole`` is true, this line is returned now,
        because the next call has a different owner.
        """
        with self._reading:
            lives = self._thread.is_alive()
            if lives:
                self._drain()
            fresh = bytes(self._kept[len(self._kept) - self._fresh :])
            end = (
                fresh.rfind(b"\n") + 1
                if lives and not whole and len(fresh) < OUTPUT_BYTES
                else len(fresh)
            )
            self._fresh -= end
        return _shown(fresh, end)

    def newest(self) -> str:
        """Return the end of the new output as a sentence for an error message, or an empty string
        if there is none.
        """
        with self._reading:
            fresh = bytes(self._kept[len(self._kept) - self._fresh :])
        text = _shown(fresh, len(fresh))[-SHOWN:].strip()
        return f"; its last output: {text}" if text else ""

    def close(self) -> None:
        """Read the rest of the output after the end of the process, and end the thread."""
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        while True:
            leaving = self._over.is_set()
            ready, _, _ = select.select([self._handle], [], [], 0 if leaving else _TURN_S)
            if not ready:
                if leaving:  # a process that left the group may still have the pipe open
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
        """Read the current content of the pipe, at most its capacity, because the thread may be
        late.
        """
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
                log.warning(
                    "%s: %d lines of output were not logged; print less",
                    self._label,
                    self._left_out,
                )
            self._second = now
            self._bytes = 0
            self._lines = 0
            self._left_out = 0
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
    """Return text from users' code, with secrets and control characters removed, cut to about
    ``most`` characters.
    """
    return redaction.printable(redaction.current().text(text, most), lines=True)


def _shown(fresh: bytes, end: int) -> str:
    # The first line may have lost its beginning and show the end of a secret, so drop it unless it
    # is the only line.
    begin = fresh.find(b"\n", 0, end - 1) + 1 if len(fresh) == OUTPUT_BYTES else 0
    text = fresh[begin:end].decode("utf-8", "replace")
    return for_people(text, len(text))
