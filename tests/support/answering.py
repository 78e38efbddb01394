"""Responses at a time that the test chooses, for tasks that are cancelled at that time."""

from __future__ import annotations

import asyncio
from typing import Any


class Answering:
    """Calls that return when ``given`` is called, which returns when the result is there but not
    yet taken.
    """

    def __init__(self, answer: Any = None) -> None:
        self.asked, self._answer = asyncio.Event(), answer
        self._gate = asyncio.Event()

    async def __call__(self) -> Any:
        self.asked.set()
        await self._gate.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def given(self) -> None:
        await self.asked.wait()
        self._gate.set()
        await asyncio.sleep(0)


async def leaves(task: asyncio.Task[Any], calls: Answering) -> None:
    await calls.given()
    task.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert task.done(), "it goes on, and the gateway would wait for it for ever"
    assert task.cancelled()
