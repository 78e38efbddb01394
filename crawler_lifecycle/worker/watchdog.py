"""Ends a process after SIGTERM or SIGINT, even if its threads hang.

Python cannot end a hanging thread, such as a call without a time limit or a workflow whose code
never yields, and the interpreter waits for it. Without the watchdog, SIGTERM would not end the
process, and a new process could not replace it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable

log = logging.getLogger(__name__)

#: Seconds after the grace time for the rest of the shutdown, such as closing connections and
#: writing the last log lines.
MORE_S = 4.0
#: The time limit for the last log line in seconds, because a hanging thread may hold the lock of
#: the log.
LAST_LINE_S = 0.5
EXIT_HUNG = 70


class Watchdog:
    """Kills this process ``seconds`` after one of the signals, unless it has ended by then."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._read, self._write = os.pipe()
        self._known: frozenset[int] = frozenset()

    def watch(self, signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> None:
        """Begin watching.

        Call this in the main thread, after an event loop has set its own handlers.

        The event loop still receives the signals. The handler here only writes a byte, because it
        can interrupt the main thread anywhere and must not wait for a lock.
        """
        threading.Thread(target=self._wait, name="watchdog", daemon=True).start()
        self._known = frozenset(
            t.ident or 0 for t in threading.enumerate() if t is not threading.main_thread()
        )
        for number in signals:
            signal.signal(number, lambda *_: os.write(self._write, b"x"))

    def _wait(self) -> None:
        os.read(self._read, 1)
        threading.Event().wait(self._seconds)
        last = threading.Thread(target=self._say, daemon=True)
        last.start()
        last.join(LAST_LINE_S)
        os._exit(EXIT_HUNG)

    def _say(self) -> None:
        log.critical(
            "the process did not end within %g s and is now ended by force; still busy: %s",
            self._seconds,
            "; ".join(busy(self._known)) or "no Python thread",
        )
        logging.shutdown()


def busy(known: Iterable[int] = ()) -> list[str]:
    """Return each running thread with its current line of code.

    Threads in ``known`` and the calling thread are left out.
    """
    frames = sys._current_frames()
    mine = {threading.get_ident(), *known}
    found = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None and thread.ident not in mine:
            code = frame.f_code
            found.append(
                f"{thread.name} in {code.co_name} "
                f"({os.path.basename(code.co_filename)}:{frame.f_lineno})"
            )
    return found
