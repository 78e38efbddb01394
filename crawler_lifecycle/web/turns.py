"""Work on large data: outside the event loop, and shared fairly between projects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.projects import only

T = TypeVar("T")

#: Bodies of up to this many bytes are read on the event loop, because that takes less time than
#: switching threads.
AT_ONCE_MAX = 8 * 1024
_TURNS = WeakValueDictionary[object, asyncio.Lock]()


def turn() -> asyncio.Lock:
    """Return the lock of the caller's project, which is held while something large is read or
    stored.

    Python computes in only one thread at a time. With the lock, only one of many large requests of
    a project competes with the event loop and with other projects.
    """
    return _TURNS.setdefault((asyncio.get_running_loop(), only()), asyncio.Lock())


async def in_turn(size: float, work: Callable[..., T], *given: object) -> T:
    """Return ``work(*given)``, which reads ``size`` bytes (``inf`` for an unknown large number).
    Raises the errors of ``work``.

    Large data is read in a thread, in the turn of the caller's project.
    """
    if size <= AT_ONCE_MAX:
        return work(*given)
    async with turn():
        return await run_in_threadpool(work, *given)
