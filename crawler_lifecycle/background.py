"""Loops that repeat work in the background, with jitter and back-off, and one log line for a series
of failures.

A failure never ends a loop. A loop in a thread ends when its event is set. A loop in an event loop
ends when it is cancelled. Both end at once, even during a pause.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any

from crawler_lifecycle.domain.errors import LifecycleError

log = logging.getLogger(__name__)

#: Random numbers for all threads. Other code, such as property tests, can seed the generator of
#: ``random`` itself.
CHANCE = random.SystemRandom()
#: The value that a turn returns to end its loop.
DONE = math.inf
#: The shortest pause, as a fraction of the requested pause. The pauses vary, so that processes that
#: start at the same time do not stay synchronised.
JITTER = 0.8
#: Seconds to wait after the first failure of a series, unless a loop has its own value.
RETRY_S = 1.0


class Failures:
    """A counter that also logs the failures of one kind of work.

    In each series, it logs the first failure with each error class, and the end of the series.
    """

    def __init__(
        self, what: str, meanwhile: str = "", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Set the wording for the log. ``what`` is the subject of the sentences, such as "the
        release".

        ``meanwhile`` describes the effect on users until the work succeeds again.
        """
        self._what = what
        self._meanwhile = f"; {meanwhile}" if meanwhile else ""
        self._clock = clock
        self._kinds: set[type[Exception]] = set()
        self._since = 0.0
        self.count = 0
        """The number of failures since the last success."""
        self.problem: str | None = None
        """The text of the newest failure; ``None`` after a success."""

    def failed(self, error: Exception) -> None:
        """Record a failure.

        An error that is neither a ``LifecycleError`` nor an ``OSError`` is logged with its
        traceback.
        """
        if not self.count:
            self._since = self._clock()
        self.count += 1
        self.problem = str(error) or type(error).__name__
        if type(error) not in self._kinds:
            self._kinds.add(type(error))
            unexpected = None if isinstance(error, LifecycleError | OSError) else error
            log.warning(
                "%s failed and is retried%s: %s",
                self._what,
                self._meanwhile,
                self.problem,
                exc_info=unexpected,
            )

    def worked(self) -> None:
        """Record a success, which ends a series of failures."""
        if not self.count:
            return
        log.info(
            "%s works again after %d failures in %.1f s; the last one: %s",
            *(self._what, self.count, self._clock() - self._since, self.problem),
        )
        self.count = 0
        self.problem = None
        self._kinds.clear()


class Loop:
    """A loop that executes one turn after another, in a thread (``run_in_thread``) or in an event
    loop (``run``).

    A turn returns the seconds until the next turn: ``None`` means ``every_s``, and ``DONE`` ends
    the loop. ``first_s`` is the pause before the first turn.

    After a turn that raised an error, the pause is the first number in ``retry_s``. Each further
    failure doubles the pause, up to the second number. If the error has a ``retry_after_s`` that
    exceeds this pause, the pause is ``retry_after_s``. If ``retry_s`` is not given, the back-off
    never exceeds ``every_s``. An error that costs the called system little has ``retry_within_s``:
    an upper limit for the pause after this error, and for the pause that the next failure doubles.
    """

    def __init__(
        self,
        what: str,
        every_s: float,
        *,
        meanwhile: str = "",
        first_s: float = 0.0,
        retry_s: tuple[float, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_s = every_s
        self._first_s = first_s
        self._retry_s, self._retry_max_s = retry_s or (min(RETRY_S, every_s), every_s)
        self._pause = 0.0
        self.failures = Failures(what, meanwhile, clock=clock)

    async def run(self, turn: Callable[[], Awaitable[float | None]]) -> None:
        """Execute turns until the task is cancelled or a turn returns ``DONE``."""
        pause = self._first_s
        while pause != DONE:
            await asyncio.sleep(_jittered(pause))
            try:
                pause = self._worked(await turn())
            except Exception as error:
                pause = self._failed(error)

    def run_in_thread(self, turn: Callable[[], float | None], over: threading.Event) -> None:
        """Execute turns in the caller's thread until ``over`` is set or a turn returns ``DONE``."""
        pause = self._first_s
        while pause != DONE and not over.wait(_jittered(pause)):
            try:
                pause = self._worked(turn())
            except Exception as error:
                pause = self._failed(error)

    def _worked(self, pause: float | None) -> float:
        self.failures.worked()
        return self._every_s if pause is None else pause

    def _failed(self, error: Exception) -> float:
        most = min(self._retry_max_s, getattr(error, "retry_within_s", math.inf))
        self._pause = (
            min(2 * self._pause, most) if self.failures.count else min(self._retry_s, most)
        )
        self.failures.failed(error)
        asked = getattr(error, "retry_after_s", None) or 0.0
        return max(self._pause, asked / JITTER)


def _jittered(pause: float) -> float:
    return pause * CHANCE.uniform(JITTER, 1.0)


class Beside:
    """Background tasks that belong to an ``async with`` block and end with it."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._asked: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that does this work. If an error ends the task, log the error."""
        task = asyncio.create_task(work)
        task.add_done_callback(_log_failure)
        self._tasks.append(task)

    def leave(self) -> None:
        """Cancel each task, but never twice, because a second cancellation would interrupt the
        task's cleanup.

        ``cancelling()`` cannot show which tasks were cancelled here, because it counts timeouts
        within a task, too.
        """
        for task in self._tasks:
            if task not in self._asked:
                self._asked.add(task)
                task.cancel()

    async def __aenter__(self) -> Beside:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel all tasks and wait until they have ended."""
        self.leave()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("a background task ended with an error", exc_info=error)
