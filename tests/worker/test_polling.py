"""How a worker stops to take work."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from crawler_lifecycle.worker.polling import Polling


@pytest.mark.asyncio
async def test_managers_are_told_before_nobody_takes_their_cycles_any_more() -> None:
    done: list[str] = []
    told = asyncio.Event()

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        async def shutdown(self) -> None:
            done.append(self.name)
            told.set()

    async def tell() -> None:
        await told.wait()
        done.append("told")

    async with AsyncExitStack() as stack:
        polling = Polling(cast(Any, None), cast(Any, None), None, stack)
        polling._workers, polling._own = cast(Any, [Named("all others")]), cast(Any, Named("own"))
        await polling.leave(tell())
    assert done == ["all others", "told", "own"]
