"""Waiting for closings: a task whose lanes are in use learns at once that their site has closed."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.background import DONE, Loop
from crawler_lifecycle.store.engine import Database
from crawler_lifecycle.web.problems import Problem

from ..store.blocks import lanes_at_closed_sites

#: Seconds for which a task waits in one call. Proxies end silent connections after a minute.
WAIT_S = 50.0
#: Seconds between two searches for sites that another gateway or a worker has closed.
SEARCH_S = 1.0
#: The maximum number of calls that wait at one gateway, because streams of crawlers are limited.
WAITING_MAX = 500


class ClosingWatch:
    """Finds the tasks that do not know of a closing. Only the event loop uses it.

    ``reported`` is set when a task has reported a refused request.
    """

    def __init__(self, database: Database, reported: asyncio.Event) -> None:
        self._database = database
        self._reported = reported
        self._waiting: dict[asyncio.Future[list[str]], str] = {}
        self._loop = Loop(
            "the search for closed sites", 0.0, meanwhile="crawls pause later", retry_s=(1, 10)
        )
        self._worker: asyncio.Task[None] | None = None

    async def closed_sites(self, task: str) -> list[str]:
        """Return the closed sites at which a task may still begin requests, as soon as there are
        any; an empty list after ``WAIT_S`` seconds.

        Raises ``Problem`` 503 if too many calls are waiting.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise Problem(503, "overloaded", f"{WAITING_MAX} calls are waiting for closings")
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._waiting[future] = task
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._loop.run(self._search))
        try:
            return await asyncio.wait_for(future, WAIT_S)
        except TimeoutError:
            return []
        finally:
            del self._waiting[future]

    def close(self) -> None:
        """End all waiting calls."""
        self._answer({task: [] for task in self._waiting.values()})

    async def _search(self) -> float | None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reported.wait(), SEARCH_S)
        self._reported.clear()
        self._answer(await run_in_threadpool(lanes_at_closed_sites, self._database))
        return None if self._waiting else DONE

    def _answer(self, closed: dict[str, list[str]]) -> None:
        for future, task in self._waiting.items():
            if task in closed and not future.done():
                future.set_result(closed[task])
