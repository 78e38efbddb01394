"""Slots for slow work.

Projects share the slots fairly. Work has a deadline, and ends when its client disconnects.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request

from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.web.problems import Problem

#: Seconds that work waits for its slot.
WAIT_S = 20.0
#: Seconds after which work should end.
WORK_S = 20.0
#: Seconds between two checks of whether a client is still connected.
ASK_S = 0.5

T = TypeVar("T")


@dataclass
class _Work:
    until: float = math.inf
    """The deadline of the work; infinite until the work has begun."""


_WORK: ContextVar[_Work | None] = ContextVar("work", default=None)


def is_over() -> bool:
    """Return whether the present work should end, because its time is over or its client has
    disconnected.
    """
    work = _WORK.get()
    return work is not None and time.monotonic() >= work.until


class Slots:
    """Slots for slow work, and threads for it.

    ``share`` is the maximum number of slots for one project. In the queue for slots, a project also
    has no more work than its share; the rest of its work waits outside the queue.
    """

    def __init__(self, most: int, share: int) -> None:
        self._share = share
        self._all = CapacityLimiter(most)
        self._own = WeakValueDictionary[str | None, CapacityLimiter]()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot of the present project, and hold it."""
        own = self._own.setdefault(only(), CapacityLimiter(self._share))
        async with own, self._all:
            yield

    async def run(self, request: Request | None, work: Callable[..., T], *args: object) -> T:
        """Run the work in a thread and return its result. Raises the errors of the work.

        The work must check ``is_over`` and then end. Its time is over ``WORK_S`` seconds
        after it began, or as soon as nobody waits for its result. It keeps its slot until it has
        ended. With a ``request``, raises ``Problem`` 503 if no slot is free within ``WAIT_S``
        seconds, and 408 if the client disconnects. Streams pass no request, because their server
        cancels them when the client disconnects.
        """
        present = _Work()
        done = asyncio.create_task(self._done(present, work, *args))
        # By then, nobody may be waiting for the result.
        done.add_done_callback(lambda _: done.cancelled() or done.exception())
        waits_until = time.monotonic() + WAIT_S
        try:
            while not (await asyncio.wait([done], timeout=ASK_S))[0]:
                if request is None:
                    continue
                if await request.is_disconnected():
                    raise Problem(408, "too_slow", "The client disconnected before this was done")
                if present.until == math.inf and time.monotonic() > waits_until:
                    detail = "Too much is being read for this project; try again in a moment"
                    raise Problem(503, "overloaded", detail, headers={"Retry-After": "5"})
            return done.result()
        finally:
            if present.until == math.inf:
                done.cancel()
            present.until = 0.0

    async def _done(self, present: _Work, work: Callable[..., T], *args: object) -> T:
        async with self.slot():
            present.until = time.monotonic() + WORK_S
            _WORK.set(present)
            return await to_thread.run_sync(work, *args, limiter=_ANY_NUMBER)


#: Every holder of a slot gets a thread.
_ANY_NUMBER = CapacityLimiter(math.inf)
