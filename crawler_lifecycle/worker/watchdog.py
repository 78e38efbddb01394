"""Ends a process that was asked to end, even when its threads hang.

A thread that hangs (a call without a time limit, a workflow whose code never yields) cannot be ended from outside, and
the interpreter waits for it: without this, SIGTERM would not end the process, and its successor would wait for it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

#: Seconds after the grace for the rest of the shutdown: closing connections, the last log lines.
MORE_S = 4.0
#: Seconds for the last line: a thread that hangs may hold the log.
LAST_LINE_S = 0.5
EXIT_HUNG = 70


class Watchdog:
    """Ends this process for good, ``seconds`` after one of the signals, unless it has ended by itself."""

    def __init__(self, seconds: float, *, leave: Callable[[int], object] = os._exit) -> None:
        self._seconds = seconds
        self._leave = leave
        self._read, self._write = os.pipe()
        self._known: frozenset[int] = frozenset()

    def watch(self, signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> None:
        """Begin, in the main thread and after whoever else handles these signals: a loop still hears of them itself.

        The handler only writes a byte: it may interrupt the main thread anywhere, and may wait for no lock.
        """
        threading.Thread(target=self._wait, name="watchdog", daemon=True).start()
        self._known = frozenset(t.ident or 0 for t in threading.enumerate() if t is not threading.main_thread())
        for number in signals:
            signal.signal(number, lambda *_: os.write(self._write, b"x"))

    def _wait(self) -> None:
        os.read(self._read, 1)
        threading.Event().wait(self._seconds)
        last = threading.Thread(target=self._say, daemon=True)
        last.start()
        last.join(LAST_LINE_S)
        self._leave(EXIT_HUNG)

    def _say(self) -> None:
        log.critical(
            "the process did not end within %g s and is ended now, tasks and all; still busy: %s",
            self._seconds,
            "; ".join(busy(self._known)) or "nothing that Python knows of",
        )
        logging.shutdown()


def busy(known: Iterable[int] = ()) -> list[str]:
    """The threads that still do something, and where in the code; not those that were ``known`` before the work."""
    frames, mine = sys._current_frames(), {threading.get_ident(), *known}
    told = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None and thread.ident not in mine:
            code = frame.f_code
            told.append(f"{thread.name} in {code.co_name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})")
    return told
