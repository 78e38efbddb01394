"""Slots for slow work. Projects share the slots fairly. The work has a deadline, and ends when its
client leaves.
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

#: Seconds that work waits for its slot, and seconds after which it should end.
WAIT_S = 20.0
WORK_S = 20.0
#: Seconds between two checks whether a client is still there.
ASK_S = 0.5

T = TypeVar("T")


@dataclass
class _Work:
    until: float = math.inf
    """Infinite before it has begun."""


_WORK: ContextVar[_Work | None] = ContextVar("work", default=None)


def is_over() -> bool:
    """Return whether the present work should end, because its time is over or its client has
    left.
    """
    work = _WORK.get()
    return work is not None and time.monotonic() >= work.until


class Slots:
    """Slots for slow work, and threads for it.

    ``share`` is the most slots of one project. A project also has no more than its share in the
    queue for slots: its other work waits outside of the queue.
    """

    def __init__(self, most: int, share: int) -> None:
        self._share = share
        self._all = CapacityLimiter(most)
        self._own = WeakValueDictionary[str | None, CapacityLimiter]()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot of the present project. Waits for it."""
        own = self._own.setdefault(only(), CapacityLimiter(self._share))
        async with own, self._all:
            yield

    async def run(self, request: Request | None, work: Callable[..., T], *args: object) -> T:
        """Return what the work returns, which a thread does. Raises what it raises.

        The work asks ``is_over`` and ends. It is over ``WORK_S`` after its begin, and as soon as
        nobody waits for it any more. It keeps its slot until it has ended. With a ``request``,
        raises ``Problem`` 503 if there is no slot within ``WAIT_S``, and 408 if the client leaves.
        Streams give no request: their server cancels them then.
        """
        present = _Work()
        done = asyncio.create_task(self._done(present, work, *args))
        # Nobody may wait for it any more.
        done.add_done_callback(lambda _: done.cancelled() or done.exception())
        waits_until = time.monotonic() + WAIT_S
        try:
            while not (await asyncio.wait([done], timeout=ASK_S))[0]:
                if request is None:
                    continue
                if await request.is_disconnected():
                    raise Problem(408, "too_slow", "The client left before this was done")
                if present.until == math.inf and time.monotonic() > waits_until:
                    detail = "Too much is being read for this project; send this again in a moment"
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


#: Who has a slot has a thread.
_ANY_NUMBER = CapacityLimiter(math.inf)
