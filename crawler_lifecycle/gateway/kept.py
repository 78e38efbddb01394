"""An answer that many ask for: kept for some seconds, and asked for once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """An answer that is asked for again when it is older than ``fresh_s`` seconds. An error is not kept."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]], fresh_s: float) -> None:
        self._ask, self._fresh_s = ask, fresh_s
        self._answer: T | None = None
        self._at = 0.0
        self._asking: asyncio.Task[T] | None = None

    async def read(self) -> T:
        """The answer, when it is there."""
        fresh = self._fresh()
        return fresh if fresh is not None else await asyncio.shield(self._asked())

    async def read_within(self, seconds: float) -> T | None:
        """The same; the last one, or ``None`` before the first, where a new one takes longer than ``seconds``."""
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
            self._asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())  # nobody may wait
        return self._asking

    async def _renew(self) -> T:
        self._answer = await self._ask()
        self._at = asyncio.get_running_loop().time()
        return self._answer
