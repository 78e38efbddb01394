"""Polling of the gateway, which waits while the gateway restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from crawler_lifecycle.cli.problems import CommandFailed, Exit

T = TypeVar("T")

#: Asking begins quickly, for short runs, and then becomes rarer.
FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWTH = 0.1, 2.0, 1.3
#: A gateway that restarts ends neither waiting nor watching.
OUTAGE_S = 60.0


class Polling:
    """Repeats one question."""

    def __init__(self, *, timeout_s: float | None = None, longest_s: float | None = None) -> None:
        self._until = None if timeout_s is None else time.monotonic() + timeout_s
        self._longest_s = min(longest_s or LONGEST_PAUSE_S, LONGEST_PAUSE_S)
        self._pause_s = FIRST_PAUSE_S

    def hurry(self) -> None:
        """Ask quickly again: something is happening."""
        self._pause_s = FIRST_PAUSE_S

    def answers(
        self,
        ask: Callable[[], T],
        silence: Callable[[CommandFailed], None] = lambda failure: None,
        *,
        answered: bool = False,
    ) -> Iterator[T]:
        """Each answer, until the caller has enough or the time is over.

        Raises ``CommandFailed`` when the first question cannot be asked (unless the gateway has ``answered`` others),
        when a later one is refused, and when there was no answer for ``OUTAGE_S``. ``silence`` is told of the first try
        in vain before that.
        """
        silent_since: float | None = None
        told = False
        while True:
            try:
                answer = ask()
            except CommandFailed as failure:
                now = time.monotonic()
                silent_since = silent_since or now
                if failure.code is not Exit.UNREACHABLE or not answered or now - silent_since > OUTAGE_S:
                    raise
                if not told:
                    silence(failure)
                told = True
            else:
                silent_since, answered = None, True
                yield answer
            if self._until is not None and time.monotonic() + self._pause_s > self._until:
                time.sleep(max(0.0, self._until - time.monotonic()))
                return
            time.sleep(self._pause_s)
            self._pause_s = min(self._longest_s, self._pause_s * GROWTH)
