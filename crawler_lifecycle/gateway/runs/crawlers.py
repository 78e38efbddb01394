"""The crawlers that can be started, as the scheduler service lists them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.background import Failures, Loop
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import SchedulerUnavailable
from crawler_lifecycle.ports.protocols import SchedulerClient
from crawler_lifecycle.web.problems import FieldError, Problem

FRESH_S = 5.0
#: For so long a failure is the answer to those who waited for the same call, too.
FAILED_S = 1.0


class Crawlers:
    """A short memory of ``GET /v1/crawlers``; many callers at once cause one call.

    While the service is away, what was read last holds: a run is accepted by it, and deployed when the service is back.
    """

    def __init__(
        self, scheduler: SchedulerClient, *, fresh_s: float = FRESH_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scheduler = scheduler
        self._fresh_s = fresh_s
        self._clock = clock
        self._known: Mapping[str, CrawlerDefinition] = {}
        self._read_at: float | None = None
        self._failure: tuple[float, SchedulerUnavailable] | None = None
        self._failures = Failures("reading the catalogue", "what was read last holds", clock=clock)
        # Waiting happens here, in coroutines: a scheduler service that hangs must not use up the threads.
        self._reading = asyncio.Lock()

    async def all(self) -> Mapping[str, CrawlerDefinition]:
        """The crawlers by name, as last read. Raises ``SchedulerUnavailable`` when they never were."""
        async with self._reading:
            if self._read_at is None or self._clock() - self._read_at > self._fresh_s:
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
        """Seconds since the crawlers were read, while they cannot be read again; otherwise ``None``."""
        return None if self._failure is None or self._read_at is None else self._clock() - self._read_at

    def note(self) -> str | None:
        """The note for a caller about a catalogue that could not be read again."""
        age = self.age_s
        if age is None:
            return None
        return (
            f"The scheduler service does not answer; this was accepted by its catalogue of {age:.0f} s ago, and is "
            "deployed when the service is back."
        )

    async def keep_reading(self, every_s: float) -> None:
        """Read now and then, for as long as this is not cancelled, so that there is something to go by."""

        async def read() -> None:
            with contextlib.suppress(SchedulerUnavailable):  # logged where it is read
                await self.all()

        await Loop("reading the catalogue now and then", every_s).run(read)

    async def get(self, name: str) -> CrawlerDefinition:
        """The crawler of this name. Raises ``Problem`` 422 with the known ones, or ``SchedulerUnavailable``."""
        known = await self.all()
        if name not in known and self._failure is not None:
            # It may have been declared since.
            raise SchedulerUnavailable(str(self._failure[1]))
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            error = FieldError(field="crawler", value=repr(name), message=f"unknown crawler; known are {listed}")
            raise Problem(422, "unknown_crawler", f"crawler: {name!r} is unknown; known are {listed}", errors=[error])
        return known[name]
