"""The crawler as a child process: the runner starts it, sends it one stop signal, and reaps it and
all its orphans.
"""

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
#: Seconds to wait for the killed processes of the crawler to end.
_REAP_S = 2.0
_STOPS = (signal.SIGTERM, signal.SIGINT)
_WATCHED = (*_STOPS, signal.SIGCHLD)


class ChildEnd(NamedTuple):
    """The end of the child."""

    exit_code: int | None
    signal: int | None
    peak_memory: int
    """The peak resident size in bytes: that of the child, or of one of the child's own children,
    whichever is larger.
    """


def block_signals() -> None:
    """Block signals, so that they wait until we read them.

    No handler runs, so a signal interrupts no call.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)


def become_subreaper() -> bool:
    """Become the parent of all orphans among our descendants, like process 1 of a pod.

    Return whether this worked.
    """
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_environment() -> bool:
    """Hide our environment and memory in /proc from processes of the same user.

    Return whether this worked.

    Environment and memory contain secrets, and a crawler may run as the same user. Root can still
    read them, and the processes of programs that we execute are not hidden.
    """
    return _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> bool:
    # This system or C library does not have the call ``prctl``.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    return False


class Child:
    """One child process, and the loop that waits for it."""

    def __init__(self, stop_signal: int) -> None:
        self._stop_signal = stop_signal
        self._pid = 0
        self.stopped_at: float | None = None
        """The time of the first stop request, by the monotonic clock."""

    @property
    def stop_asked(self) -> bool:
        return self.stopped_at is not None

    def pending_stop(self) -> bool:
        """Return whether a stop was requested. This consumes pending signals."""
        while signal.sigtimedwait(_STOPS, 0) is not None:
            self._note_stop()
        return self.stop_asked

    def _note_stop(self) -> None:
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()

    def start(self, argv: list[str], env: Mapping[str, str], output: int | None = None) -> None:
        """Start the crawler with default signal handlers and no blocked signals.

        The crawler prints to the descriptor ``output``, or to our own output if it is not given. It
        inherits all inheritable descriptors. Raises ``OSError`` when the crawler cannot be
        executed.
        """
        defaults = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}
        printed = (
            [] if output is None else [(os.POSIX_SPAWN_DUP2, output, number) for number in (1, 2)]
        )
        self._pid = os.posix_spawnp(
            argv[0], argv, dict(env), file_actions=printed, setsigmask=[], setsigdef=defaults
        )

    def wait(self, tick: Callable[[], None], seconds: float) -> ChildEnd:
        """Wait until the child has ended, and return its end.

        ``tick`` is called about every ``seconds``.
        """
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
        """After the crawler has ended, record stop requests and reap orphans until ``over`` returns
        true.

        ``over`` is called at least every ``seconds``.
        """
        while not over():
            info = signal.sigtimedwait(_WATCHED, seconds)
            if info is not None and info.si_signo in _STOPS:
                self._note_stop()
            self._reap()

    def end_leftovers(self) -> None:
        """Kill the crawler's remaining processes if we are process 1.

        These processes would end together with us anyway, but until then they could still write
        files.
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
        """Send the crawler SIGKILL."""
        # We have not reaped it, so no other process has its number.
        os.kill(self._pid, signal.SIGKILL)

    def stop(self) -> None:
        """Send the crawler its stop signal, but never more than once: after a second signal, Scrapy
        ends without writing its stats.
        """
        if not self.stop_asked:
            self._note_stop()
            # We have not reaped it, so no other process has its number.
            os.kill(self._pid, self._stop_signal)

    def _reap(self) -> ChildEnd | None:
        """Reap all ended processes. Return the child's end if the child was among them."""
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
                found = ChildEnd(
                    code if code >= 0 else None, -code if code < 0 else None, usage.ru_maxrss * 1024
                )
