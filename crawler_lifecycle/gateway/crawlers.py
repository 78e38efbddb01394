"""The crawlers that can be started, as the scheduler service knows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import SchedulerUnavailable
from crawler_lifecycle.ports import SchedulerClient
from crawler_lifecycle.web.problems import FieldError, Problem

FRESH_S = 5.0
#: For so long a failure is the answer to those who waited for the same call, too.
FAILED_S = 1.0


class Crawlers:
    """A short memory of ``GET /v1/crawlers``; many callers at once cause one call."""

    def __init__(
        self, scheduler: SchedulerClient, *, fresh_s: float = FRESH_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scheduler = scheduler
        self._fresh_s = fresh_s
        self._clock = clock
        self._known: Mapping[str, CrawlerDefinition] = {}
        self._read_at: float | None = None
        self._failure: tuple[float, SchedulerUnavailable] | None = None
        # Waiting happens here, in coroutines: a scheduler service that hangs must not use up the threads.
        self._reading = asyncio.Lock()

    async def all(self) -> Mapping[str, CrawlerDefinition]:
        """The crawlers by name. Raises ``SchedulerUnavailable``."""
        async with self._reading:
            if self._read_at is None or self._clock() - self._read_at > self._fresh_s:
                await self._read()
            return self._known

    async def _read(self) -> None:
        if self._failure is not None and self._clock() - self._failure[0] < FAILED_S:
            raise SchedulerUnavailable(str(self._failure[1]))
        try:
            found = await run_in_threadpool(self._scheduler.crawlers)
        except SchedulerUnavailable as error:
            self._failure = (self._clock(), error)
            raise
        self._known = {crawler.name: crawler for crawler in found}
        self._read_at, self._failure = self._clock(), None

    async def get(self, name: str) -> CrawlerDefinition:
        """The crawler of this name. Raises ``Problem`` 422 with the known ones, or ``SchedulerUnavailable``."""
        known = await self.all()
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            error = FieldError(field="crawler", value=repr(name), message=f"unknown crawler; known are {listed}")
            raise Problem(422, "unknown_crawler", f"crawler: {name!r} is unknown; known are {listed}", errors=[error])
        return known[name]
