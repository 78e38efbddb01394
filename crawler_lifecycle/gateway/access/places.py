"""Places for work that takes long: shared fairly by projects, with a deadline, and ended with its
client.
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

#: Seconds that a work waits for its place, and seconds after which it should end.
WAIT_S = 20.0
WORK_S = 20.0
#: Seconds between two questions whether a client is still there.
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


class Places:
    """Places for work that takes long, and threads for it.

    ``share`` is the most places of one project.

    Of all that wait for a place, each project has no more than its share in the line: the others
    wait behind them.
    """

    def __init__(self, most: int, share: int) -> None:
        self._share = share
        self._all = CapacityLimiter(most)
        self._own = WeakValueDictionary[str | None, CapacityLimiter]()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place of the present project. Waits for it."""
        own = self._own.setdefault(only(), CapacityLimiter(self._share))
        async with own, self._all:
            yield

    async def run(self, request: Request | None, work: Callable[..., T], *args: object) -> T:
        """Return what the work returns, which a thread does. Raises what it raises.

        The work asks ``is_over`` and ends. It is over ``WORK_S`` after its begin, and as soon as
        nobody waits for it any more. It keeps its place until it has ended. With a ``request``,
        raises ``Problem`` 503 if there is no place within ``WAIT_S``, and 408 if the client leaves.
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
        async with self.place():
            present.until = time.monotonic() + WORK_S
            _WORK.set(present)
            return await to_thread.run_sync(work, *args, limiter=_ANY_NUMBER)


#: Who has a place has a thread.
_ANY_NUMBER = CapacityLimiter(math.inf)
