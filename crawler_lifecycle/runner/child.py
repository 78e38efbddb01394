"""The crawler as a child process: started, signalled once, and reaped with all its orphans."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
#: Seconds to wait for remaining processes that were killed.
_REAP_S = 2.0
_STOPS = (signal.SIGTERM, signal.SIGINT)
_WATCHED = (*_STOPS, signal.SIGCHLD)


class Ended(NamedTuple):
    """The end of the child."""

    exit_code: int | None
    signal: int | None
    peak_memory: int
    """Bytes: the largest resident size of the child or one of its waited-for children."""


def block_signals() -> None:
    """From now on signals wait until we read them; no handler runs, so nothing is interrupted."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)


def become_subreaper() -> bool:
    """Become the parent of processes that leave the tree of our children, like process 1 of a pod. Returns whether this
    worked.
    """
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_environment() -> bool:
    """Keep our environment and memory in /proc from processes of the same user (not from root); returns whether this
    worked.

    They hold secrets, and crawlers may have the same user. Programs that we execute are readable again.
    """
    return _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> bool:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no such call here: another system, another libc
        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    return False


class Child:
    """One child process and the loop around it."""

    def __init__(self, stop_signal: int) -> None:
        self._stop_signal = stop_signal
        self._pid = 0
        self.stopped_at: float | None = None
        """The time of the request to stop, by the monotonic clock."""

    @property
    def stop_asked(self) -> bool:
        return self.stopped_at is not None

    def pending_stop(self) -> bool:
        """Return whether a stop has already come (the signal is consumed)."""
        while signal.sigtimedwait(_STOPS, 0) is not None:
            self._note_stop()
        return self.stop_asked

    def _note_stop(self) -> None:
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()

    def start(self, argv: list[str], env: Mapping[str, str], output: int | None = None) -> None:
        """Start the crawler with a clean signal state. Raises ``OSError`` when it cannot be executed.

        ``output`` is what it prints to, ours otherwise. Inheritable files stay open.
        """
        defaults = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}
        printed = [] if output is None else [(os.POSIX_SPAWN_DUP2, output, number) for number in (1, 2)]
        self._pid = os.posix_spawnp(argv[0], argv, dict(env), file_actions=printed, setsigmask=[], setsigdef=defaults)

    def wait(self, tick: Callable[[], None], seconds: float) -> Ended:
        """Until the child has ended; ``tick`` is called about every ``seconds``."""
        due = time.monotonic() + seconds
        while True:
            info = signal.sigtimedwait(_WATCHED, max(0.0, due - time.monotonic()))
            if info is not None and info.si_signo in _STOPS:
                self.stop()
            ended = self._reap()
            if ended is not None:
                self._pid = 0
                return ended
            if time.monotonic() >= due:
                tick()
                due = time.monotonic() + seconds

    def attend(self, over: Callable[[], bool], seconds: float) -> None:
        """The crawler has ended: note stops and reap orphans until ``over``, which is called every ``seconds``."""
        while not over():
            info = signal.sigtimedwait(_WATCHED, seconds)
            if info is not None and info.si_signo in _STOPS:
                self._note_stop()
            self._reap()

    def end_leftovers(self) -> None:
        """As process 1, end the crawler's remaining processes: they would end with us, and may still write until
        then.
        """
        if os.getpid() != 1:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        due = time.monotonic() + _REAP_S
        while time.monotonic() < due:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)
            except ChildProcessError:
                return

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self._pid, signal.SIGKILL)  # our unreaped child, as below

    def stop(self) -> None:
        """Send the crawler its stop signal, unless it was sent already: a second one would cost Scrapy its stats."""
        if not self.stop_asked:
            self._note_stop()
            os.kill(self._pid, self._stop_signal)  # it is our unreaped child, so the number is its own

    def _reap(self) -> Ended | None:
        """Reap all ended processes. Returns the child's end if it was among them."""
        found = None
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                found = Ended(code if code >= 0 else None, -code if code < 0 else None, usage.ru_maxrss * 1024)
