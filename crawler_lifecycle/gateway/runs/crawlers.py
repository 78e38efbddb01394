"""The crawlers that can be started: those that the scheduler service lists, and those of the
database.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.background import Failures, Loop
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, merged, unknown
from crawler_lifecycle.domain.errors import SchedulerUnavailable
from crawler_lifecycle.ports.entries import ReadEntries
from crawler_lifecycle.ports.protocols import SchedulerClient
from crawler_lifecycle.web.problems import FieldError, Problem

FRESH_S = 5.0
#: Seconds for which a failure is reused by callers that waited for the same call.
FAILED_S = 1.0


class Crawlers:
    """A cache of the scheduler service's ``GET /v1/crawlers``, with the entries of the database
    that the present caller may see.

    Concurrent callers share one call of the service. The entries are never cached, so that a
    changed entry counts for the next run.

    While the service is unavailable, the last catalogue is used: runs are accepted with it, and
    deployed later.
    """

    def __init__(
        self,
        scheduler: SchedulerClient,
        stored: ReadEntries,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self.stored = stored
        self._clock = clock
        self._known: Mapping[str, CrawlerDefinition] = {}
        self._read_at: float | None = None
        self._failure: tuple[float, SchedulerUnavailable] | None = None
        self._failures = Failures(
            "reading the catalogue", "the last catalogue stays in use", clock=clock
        )
        # Callers wait in coroutines, because if the scheduler service hangs, they must not use up
        # the threads.
        self._reading = asyncio.Lock()

    async def all(self) -> Mapping[str, CrawlerDefinition]:
        """Return the crawlers by name.

        Raises ``SchedulerUnavailable`` if those of the service were never read.
        """
        known = await self.of_file()
        stored = await run_in_threadpool(self.stored.all)
        return merged(known.values(), stored) if stored else known

    async def of_file(self) -> Mapping[str, CrawlerDefinition]:
        """Return the crawlers of the service by name, as they were last read.

        Raises ``SchedulerUnavailable`` if they were never read.
        """
        async with self._reading:
            if self._read_at is None or self._clock() - self._read_at > FRESH_S:
                await self._read()
            return self._known

    async def _read(self) -> None:
        if self._failure is None or self._clock() - self._failure[0] >= FAILED_S:
            await self._call()
        if self._failure is not None and self._read_at is None:
            raise SchedulerUnavailable(str(self._failure[1]))

    async def _call(self) -> None:
        try:
            found = await run_in_threadpool(self._scheduler.crawlers)
        except SchedulerUnavailable as error:
            self._failures.failed(error)
            self._failure = (self._clock(), error)
            return
        self._known = {crawler.name: crawler for crawler in found}
        self._read_at, self._failure = self._clock(), None
        self._failures.worked()

    @property
    def age_s(self) -> float | None:
        """The time in seconds since the last read while the scheduler service does not answer;
        otherwise ``None``.
        """
        return (
            None
            if self._failure is None or self._read_at is None
            else self._clock() - self._read_at
        )

    def note(self) -> str | None:
        """Return a note for the caller if the catalogue could not be read again."""
        age = self.age_s
        if age is None:
            return self.problem
        return (
            "The scheduler service does not answer. This was accepted with its catalogue of "
            f"{age:.0f} s ago, and is "
            "deployed when the service answers again."
        )

    async def last(self) -> tuple[Mapping[str, CrawlerDefinition], str | None]:
        """Return the crawlers by name, and a note if this is not the newest catalogue. There are no
        crawlers if they were never read.
        """
        try:
            return await self.all(), self.note()
        except SchedulerUnavailable as error:
            return {}, str(error)

    @property
    def problem(self) -> str | None:
        """The reason why crawlers are missing, or come from an older catalogue."""
        return self._scheduler.problem or self.stored.problem

    async def keep_reading(self, every_s: float) -> None:
        """Read the catalogue regularly until this is cancelled, so that the last one is never too
        old.
        """

        async def read() -> None:
            with contextlib.suppress(SchedulerUnavailable):  # that read logs this itself
                await self.all()

        await Loop("the regular refresh of the catalogue", every_s).run(read)

    async def get(self, name: str) -> CrawlerDefinition:
        """Return the crawler with this name.

        Raises ``Problem`` 422 as ``named`` does, or ``SchedulerUnavailable``.
        """
        known = await self.all()
        if name not in known and self._failure is not None:
            # The crawler may have been declared after the last read.
            raise SchedulerUnavailable(str(self._failure[1]))
        return named(known, name, self.problem)


def named(
    known: Mapping[str, CrawlerDefinition], name: str, problem: str | None
) -> CrawlerDefinition:
    """Return the crawler with this name. ``problem`` is the problem of the catalogue, if any.

    Raises ``Problem`` 422 with the name that was probably meant.
    """
    if name not in known:
        words = unknown(name, known, problem)
        error = FieldError(field="crawler", value=repr(name), message=f"unknown crawler; {words}")
        raise Problem(
            422, "unknown_crawler", f"crawler: {name!r} is unknown; {words}", errors=[error]
        )
    return known[name]
