"""The crawler as our child: started, signalled once, reaped, and with it every orphan it leaves to us."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER = 36
_STOPS = (signal.SIGTERM, signal.SIGINT)
_WATCHED = (*_STOPS, signal.SIGCHLD)


class Ended(NamedTuple):
    """How the child ended."""

    exit_code: int | None
    signal: int | None
    peak_memory: int
    """Bytes: the largest resident size of the child or one of its waited-for children."""


def block_signals() -> None:
    """From now on signals wait until they are asked for; no handler runs, so nothing is interrupted half-way."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)


def become_subreaper() -> None:
    """Orphans of the crawler become our children, as they do for process 1 of a pod."""
    with contextlib.suppress(OSError, AttributeError):  # a libc without it: then orphans go to process 1
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Child:
    """One child process and the loop around it."""

    def __init__(self, stop_signal: int) -> None:
        self._stop_signal = stop_signal
        self._pid = 0
        self.stop_asked = False

    def pending_stop(self) -> bool:
        """Whether a stop came already (it is consumed)."""
        while signal.sigtimedwait(_STOPS, 0) is not None:
            self.stop_asked = True
        return self.stop_asked

    def start(self, argv: list[str], env: Mapping[str, str]) -> None:
        """Start the crawler with a clean signal state. Raises ``OSError`` when it cannot be executed.

        Inheritable files stay open: the local cluster's slot lock must last as long as anything of the crawler.
        """
        defaults = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}
        self._pid = os.posix_spawnp(argv[0], argv, dict(env), setsigmask=[], setsigdef=defaults)

    def wait(self, tick: Callable[[], None], seconds: float) -> Ended:
        """Until the child has ended; ``tick`` is called about every ``seconds``."""
        due = time.monotonic() + seconds
        while True:
            info = signal.sigtimedwait(_WATCHED, max(0.0, due - time.monotonic()))
            if info is not None and info.si_signo in _STOPS:
                self._pass_on()
            ended = self._reap()
            if ended is not None:
                return ended
            if time.monotonic() >= due:
                tick()
                due = time.monotonic() + seconds

    def stop(self) -> None:
        """Send the stop signal ourselves, unless it was sent already."""
        self._pass_on()

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self._pid, signal.SIGKILL)  # our unreaped child, as below

    def _pass_on(self) -> None:
        """The first stop goes to the crawler, as its own stop signal; a second would cost Scrapy its stats."""
        if self.stop_asked:
            return
        self.stop_asked = True
        os.kill(self._pid, self._stop_signal)  # it is our unreaped child, so the number is its own

    def _reap(self) -> Ended | None:
        """Reap whatever has ended; the child's end if it was among them."""
        found = None
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == self._pid:
                found = Ended(*_split(status), usage.ru_maxrss * 1024)


def _split(status: int) -> tuple[int | None, int | None]:
    code = os.waitstatus_to_exitcode(status)
    return (None, -code) if code < 0 else (code, None)
