"""The queue for slots: file locks represent the slots, another lock keeps the order, and signals
wake a waiting supervisor.

This module uses only the standard library and imports little, because the supervisor loads it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Sequence

#: The signals that wake a supervisor. The signals have no other effect.
WAKERS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1}
#: The signal that also means a stop. There is also a stop file, but a crawler can remove it.
STOP_SIGNAL = signal.SIGUSR1


class QueueSignal(Exception):
    """A signal that arrived while the supervisor waited in the queue."""


def try_lock(handle: int, seconds: float = 0.0) -> bool:
    """Acquire an exclusive lock within ``seconds``, and return whether this succeeded.

    A poll may hold the lock briefly.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)


def open_lock(path: str) -> int:
    """Open a file for locks, and create it if necessary. Raises ``OSError``."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def open_turnstiles(slots_dir: str, priority: int) -> list[int]:
    """Open the locks of the queues from priority 1 to this priority.

    The first waiter of a queue holds its lock.
    """
    return [
        open_lock(os.path.join(slots_dir, f"turnstile-{n}")) for n in range(1, min(priority, 5) + 1)
    ]


def free_slot(slots_dir: str, count: int, before: Sequence[int]) -> int | None:
    """Lock a free slot, and return the descriptor of its file; ``None`` if all slots are in use.

    Also return ``None`` while another supervisor waits in one of the queues ``before``, because
    that supervisor gets the next slot.
    """
    for turnstile in before:
        try:
            fcntl.flock(turnstile, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        fcntl.flock(turnstile, fcntl.LOCK_UN)
    for number in range(count):
        handle = open_lock(os.path.join(slots_dir, str(number)))
        if try_lock(handle):
            return handle
        os.close(handle)
    return None


class Alarm:
    """The signal handler, which records a stop and wakes the supervisor from a wait in the
    queue.
    """

    def __init__(self) -> None:
        self._set = False
        self.stop_asked = False
        """True if the stop signal has arrived."""

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` for a signal.

        The signals are blocked, so no handler runs.
        """
        came = signal.sigtimedwait(WAKERS, seconds)
        self.stop_asked = self.stop_asked or (came is not None and came.si_signo == STOP_SIGNAL)

    def __call__(self, number: int, frame: object) -> None:
        self.stop_asked = self.stop_asked or number == STOP_SIGNAL
        if self._set:
            self._set = False  # further signals must not interrupt the clean-up after the first one
            raise QueueSignal

    def sleep_in_queue(self, turnstile: int) -> None:
        """Wait for the lock of the turnstile. Raises ``QueueSignal`` if a signal arrives first.

        Signals are blocked at all other times, so none is lost between a check and this wait.
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
    """Block the signals, and set a handler so that they only wake the supervisor.

    Only the stop file or ``STOP_SIGNAL`` means a stop, never a SIGTERM.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKERS)
    for number in WAKERS - {signal.SIGCHLD}:
        signal.signal(number, alarm)
