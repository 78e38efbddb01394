"""Work on large bodies, beside the event loop and fairly shared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from crawler_lifecycle.domain.projects import only

T = TypeVar("T")

#: Bodies of up to this many bytes are read on the event loop: that takes less time than a change of threads.
AT_ONCE_MAX = 8 * 1024
#: Python computes in one thread at a time. With more of them, the event loop would wait longer for its turn.
_THREAD = ThreadPoolExecutor(1, "bodies")
_TURNS = WeakValueDictionary[object, asyncio.Lock]()


async def in_turn(size: int, work: Callable[..., T], *given: object) -> T:
    """Return ``work(*given)``, which reads ``size`` bytes. Raises what ``work`` raises.

    Large bodies are read in a thread. Of each project one is read at a time, so that a project with many of them does
    not delay the others.
    """
    if size <= AT_ONCE_MAX:
        return work(*given)
    loop = asyncio.get_running_loop()
    turn = _TURNS.setdefault((loop, only()), asyncio.Lock())
    async with turn:
        return await loop.run_in_executor(_THREAD, work, *given)
