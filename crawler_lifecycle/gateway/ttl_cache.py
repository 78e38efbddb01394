"""Cached answers: an answer that many callers need is kept for some seconds, and concurrent callers
share one request for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from crawler_lifecycle.domain.projects import only

T = TypeVar("T")


class CachedAnswer(Generic[T]):
    """An answer that is renewed when it is older than ``fresh_s`` seconds. Errors are not
    cached.
    """

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]], fresh_s: float) -> None:
        self._ask = ask
        self._fresh_s = fresh_s
        self._answer: T | None = None
        self._at = 0.0
        self._asking: asyncio.Task[T] | None = None

    async def read(self) -> T:
        """Return the cached answer, or wait for a new one if it is too old."""
        fresh = self._fresh()
        return fresh if fresh is not None else await asyncio.shield(self._asked())

    async def read_within(self, seconds: float) -> T | None:
        """Return the answer.

        If getting a new one takes longer than ``seconds``, return the last one, or ``None``.
        """
        fresh = self._fresh()
        if fresh is not None:
            return fresh
        done, _ = await asyncio.wait([asked := self._asked()], timeout=seconds)
        return asked.result() if done else self._answer

    def _fresh(self) -> T | None:
        now = asyncio.get_running_loop().time()
        return self._answer if now - self._at < self._fresh_s else None

    def _asked(self) -> asyncio.Task[T]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._renew())
            # Even if nobody waits for the answer, its error must be read. Otherwise, asyncio logs
            # it.
            self._asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        return self._asking

    async def _renew(self) -> T:
        self._answer = await self._ask()
        self._at = asyncio.get_running_loop().time()
        return self._answer


@dataclass(eq=False)
class TtlCache(Generic[T]):
    """A ``CachedAnswer`` for each project of callers, because ``ask`` sees only what they are
    allowed to see.
    """

    ask: Callable[[], Coroutine[Any, Any, T]]
    fresh_s: float

    def __post_init__(self) -> None:
        self._kept: dict[str | None, CachedAnswer[T]] = {}

    @property
    def own(self) -> CachedAnswer[T]:
        """The answer for the project of the present caller."""
        return self._kept.setdefault(only(), CachedAnswer(self.ask, self.fresh_s))
