"""Polling of the gateway, which continues after a restart of the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from crawler_lifecycle.cli.problems import CommandFailed, Exit

T = TypeVar("T")

#: The first and the longest pause between polls in seconds, and the factor by which the pause
#: grows. Short runs need short pauses.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
GROWTH = 1.3
#: Seconds without a response after which polling ends. A restart of the gateway takes less time
#: than this.
OUTAGE_S = 60.0


class Polling:
    """A sequence of calls to the gateway, with pauses between them."""

    def __init__(self, *, timeout_s: float | None = None, longest_s: float | None = None) -> None:
        self._until = None if timeout_s is None else time.monotonic() + timeout_s
        self._longest_s = min(longest_s or LONGEST_PAUSE_S, LONGEST_PAUSE_S)
        self._pause_s = FIRST_PAUSE_S

    def hurry(self) -> None:
        """Use short pauses again, because something has changed."""
        self._pause_s = FIRST_PAUSE_S

    def answers(
        self,
        ask: Callable[[], T],
        silence: Callable[[CommandFailed], None] = lambda failure: None,
        *,
        answered: bool = False,
    ) -> Iterator[T]:
        """Yield each response until the caller stops or the time limit is reached.

        Raises ``CommandFailed`` if the first call fails (unless the gateway has ``answered`` other
        calls), if the gateway refuses a call, or if it is unreachable for ``OUTAGE_S``. ``silence``
        is called once with the first error of an outage.
        """
        silent_since: float | None = None
        reported = False
        while True:
            try:
                answer = ask()
            except CommandFailed as failure:
                now = time.monotonic()
                silent_since = silent_since or now
                if (
                    failure.code is not Exit.UNREACHABLE
                    or not answered
                    or now - silent_since > OUTAGE_S
                ):
                    raise
                if not reported:
                    silence(failure)
                reported = True
            else:
                silent_since = None
                answered = True
                yield answer
            if self._until is not None and time.monotonic() + self._pause_s > self._until:
                time.sleep(max(0.0, self._until - time.monotonic()))
                return
            time.sleep(self._pause_s)
            self._pause_s = min(self._longest_s, self._pause_s * GROWTH)
