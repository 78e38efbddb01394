"""Work in the background, turn after turn: with jitter, with back-off, and with one log line for a row of failures.

Nothing that fails ends a loop. A loop of threads ends with its event, a loop of the event loop with its cancellation;
both end at once, whatever they wait for.
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

#: Random numbers for all threads. The module's own generator is seeded by others, such as property tests.
CHANCE = random.SystemRandom()
#: Returned by a turn after which the loop ends.
DONE = math.inf
#: The shortest pause, as a part of the requested one: processes that began together must not stay in step.
JITTER = 0.8
#: Seconds after the first failure of a row, unless a loop sets its own.
RETRY_S = 1.0


class Failures:
    """Rows of failures of one thing. Logs the first of a row, any of another kind, and how the row ended."""

    def __init__(self, what: str, meanwhile: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        """``what``: the subject of the log's sentence, which fails or works; ``meanwhile``: the effect for people."""
        self._what = what
        self._meanwhile = f"; {meanwhile}" if meanwhile else ""
        self._clock = clock
        self._kinds: set[type[Exception]] = set()
        self._since = 0.0
        self.count = 0
        """Failures in a row; 0 while all is well."""
        self.problem: str | None = None
        """The text of the newest failure of the row; ``None`` while all is well."""

    def failed(self, error: Exception) -> None:
        """Something failed. Unexpected errors are logged with their stack."""
        if not self.count:
            self._since = self._clock()
        self.count += 1
        self.problem = str(error) or type(error).__name__
        if type(error) not in self._kinds:
            self._kinds.add(type(error))
            unexpected = None if isinstance(error, LifecycleError | OSError) else error
            log.warning(
                "%s failed and is tried again%s: %s", self._what, self._meanwhile, self.problem, exc_info=unexpected
            )

    def worked(self) -> None:
        """Something worked, which ends the row."""
        if not self.count:
            return
        log.info(
            "%s works again after %d failures in %.1f s; the last one: %s",
            *(self._what, self.count, self._clock() - self._since, self.problem),
        )
        self.count, self.problem = 0, None
        self._kinds.clear()


class Loop:
    """One turn after another, in a thread (``run_in_thread``) or in an event loop (``run``).

    A turn returns the seconds to the next one; ``None`` for ``every_s``, ``DONE`` to end the loop. After a turn that
    raised the next one comes after ``retry_s``: the first figure, doubled with each further failure up to the second;
    not before the time that the other side asked for.
    Without ``retry_s`` failures never make a loop slower than it is. ``first_s`` is the pause before the first turn.
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
        self.failures = Failures(what, meanwhile, clock=clock)

    async def run(self, turn: Callable[[], Awaitable[float | None]]) -> None:
        """Until it is cancelled, or a turn returns ``DONE``."""
        pause = self._first_s
        while pause != DONE:
            await asyncio.sleep(_jittered(pause))
            try:
                pause = self._worked(await turn())
            except Exception as error:
                pause = self._failed(error)

    def run_in_thread(self, turn: Callable[[], float | None], over: threading.Event) -> None:
        """In the caller's thread until ``over`` is set, or a turn returns ``DONE``."""
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
        self.failures.failed(error)
        asked = getattr(error, "retry_after_s", None) or 0.0
        return max(min(self._retry_s * 2.0 ** min(self.failures.count - 1, 30), self._retry_max_s), asked / JITTER)


def _jittered(pause: float) -> float:
    return pause * CHANCE.uniform(JITTER, 1.0)


class Beside:
    """Tasks of the event loop that run in the background of another one, and end with it."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._asked: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin. An error that ends it is logged."""
        task = asyncio.create_task(work)
        task.add_done_callback(_log_failure)
        self._tasks.append(task)

    def leave(self) -> None:
        """Ask all of them to end, each once: a second time would interrupt how it ends.

        ``cancelling()`` does not say who was asked: a time limit that runs out in a task counts there for a moment too.
        """
        for task in self._tasks:
            if task not in self._asked:
                self._asked.add(task)
                task.cancel()

    async def __aenter__(self) -> Beside:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return when all of them have ended."""
        self.leave()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("a task in the background ended", exc_info=error)
