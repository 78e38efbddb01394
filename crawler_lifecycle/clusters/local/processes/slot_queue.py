"""The slot queue: file locks as slots, a turnstile that keeps the order, and signals that wake a sleeper.

Standard library only and light on imports: the supervisor loads it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Sequence

#: What wakes a supervisor, and never does anything else to it.
WAKERS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1}
#: The one that says something: stop. The file that says so, too, lies where a crawler can take it away.
STOP_SIGNAL = signal.SIGUSR1


class Woken(Exception):
    """A signal came while the supervisor stood in the queue."""


def try_lock(handle: int, seconds: float = 0.0) -> bool:
    """Take an exclusive lock within ``seconds`` (a look may hold it for a moment)."""
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)


def open_turnstiles(slots_dir: str, priority: int) -> list[int]:
    """Open the locks of the queues from priority 1 to this one; whoever waits at the head of a queue holds its lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    return [os.open(os.path.join(slots_dir, f"turnstile-{n}"), flags, 0o600) for n in range(1, min(priority, 5) + 1)]


def free_slot(slots_dir: str, count: int, before: Sequence[int] = ()) -> int | None:
    """Return the locked file of a free slot; ``None`` also while somebody waits in one of the queues ``before``."""
    for turnstile in before:
        try:
            fcntl.flock(turnstile, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        fcntl.flock(turnstile, fcntl.LOCK_UN)
    for number in range(count):
        handle = os.open(os.path.join(slots_dir, str(number)), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if try_lock(handle):
            return handle
        os.close(handle)
    return None


class Alarm:
    """The signal handler: wakes the sleeper in the queue once for each time it is set, and does nothing else."""

    def __init__(self) -> None:
        self._set = False
        self.stop_asked = False
        """True when the stop signal came."""

    def wait(self, seconds: float) -> None:
        """Until a signal comes, at most so long. They are blocked."""
        came = signal.sigtimedwait(WAKERS, seconds)
        self.stop_asked = self.stop_asked or (came is not None and came.si_signo == STOP_SIGNAL)

    def __call__(self, number: int, frame: object) -> None:
        self.stop_asked = self.stop_asked or number == STOP_SIGNAL
        if self._set:
            self._set = False  # a burst of signals must not interrupt the clean-up after the first
            raise Woken

    def sleep_in_queue(self, turnstile: int) -> None:
        """Wait for the turnstile. Raises ``Woken`` when a signal comes first.

        Signals are blocked everywhere else, so none is lost between a check and the sleep.
        """
        self._set = True
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WAKERS)
            fcntl.flock(turnstile, fcntl.LOCK_EX)
        finally:
            self._set = False
            signal.pthread_sigmask(signal.SIG_BLOCK, WAKERS)


alarm = Alarm()


def prepare_signals() -> None:
    """Signals only wake us: a stop is what the stop file or ``STOP_SIGNAL`` says, never a SIGTERM from somewhere."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKERS)
    for number in WAKERS - {signal.SIGCHLD}:
        signal.signal(number, alarm)
