"""Shares of what a process has: requests and streams at once, bytes of bodies, threads.

Owners stand in levels: a login below its token, a token below its project, a project below the process. What one owner
holds counts for all above it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request

from crawler_lifecycle.domain.projects import only

from .problems import Problem

#: Seconds that a work waits for its place, and seconds after which it should end.
WAIT_S, WORK_S = 20.0, 20.0
#: Seconds between two questions whether a client is still there.
ASK_S = 0.5

Owner = tuple[str, str]
"""A level, and the name of the owner on this level."""
PROCESS: Owner = ("process", "")
T = TypeVar("T")


class Shares:
    """Counts what each owner holds."""

    def __init__(self) -> None:
        self.held = Counter[Owner]()

    def take(self, owners: Mapping[Owner, int], amount: int = 1) -> Owner | None:
        """Take this amount for all these owners; of each is given how much it may hold.

        Returns ``None``, or the first owner that would hold too much. Then nothing is taken.
        """
        for owner, most in owners.items():
            if self.held[owner] + amount > most:
                return owner
        for owner in owners:
            self.held[owner] += amount
        return None

    def give_back(self, owners: Iterable[Owner], amount: int = 1) -> None:
        """Give back what was taken for these owners."""
        for owner in owners:
            self.held[owner] -= amount
            if not self.held[owner]:
                del self.held[owner]


@dataclass
class _Work:
    until: float


_WORK: ContextVar[_Work | None] = ContextVar("work", default=None)


def is_over() -> bool:
    """Return whether the present work should end, because its time is over or its client has left."""
    work = _WORK.get()
    return work is not None and time.monotonic() >= work.until


class Places:
    """Places for work that takes long, and threads for it. ``share`` is the most places of one project.

    A free place goes to the project that holds the fewest. Of one project the first one that came gets it.
    """

    def __init__(self, most: int, share: int) -> None:
        self._most = most
        self._share = share
        self._shares = Shares()
        self._waiting: list[tuple[Owner, asyncio.Future[None]]] = []
        self._threads = CapacityLimiter(most)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place of the present project. Waits for it."""
        project = await self._enter(None)
        try:
            yield
        finally:
            self._leave(project)

    async def run(self, request: Request | None, work: Callable[..., T], *args: object) -> T:
        """Return what the work returns, which a thread does. Raises what it raises.

        The work asks ``is_over`` and ends. It is over ``WORK_S`` after its begin, and as soon as nobody waits for it
        any more. It keeps its place until it has ended. With a ``request``, raises ``Problem`` 503 if there is no place
        within ``WAIT_S``, and 408 if the client leaves. Streams give no request: their server cancels them then.
        """
        project = await self._enter(request)
        present = _Work(time.monotonic() + WORK_S)
        before = _WORK.set(present)
        thread = asyncio.create_task(to_thread.run_sync(work, *args, limiter=self._threads))
        _WORK.reset(before)

        def ended(thread: asyncio.Task[T]) -> None:
            self._leave(project)
            if not thread.cancelled():
                thread.exception()  # nobody may wait for it any more

        thread.add_done_callback(ended)
        try:
            await _end_of(thread, request)
            return thread.result()
        finally:
            present.until = 0.0

    async def _enter(self, request: Request | None) -> Owner:
        project = ("project", only() or "")
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((project, turn))
        self._admit()
        entered = False
        try:
            await _end_of(turn, request, math.inf if request is None else WAIT_S)
            entered = True
        finally:
            if not entered and not turn.cancel():
                self._leave(project)
        return project

    def _leave(self, project: Owner) -> None:
        self._shares.give_back([project, PROCESS])
        self._admit()

    def _admit(self) -> None:
        for project, turn in sorted(self._waiting, key=lambda waiting: self._shares.held[waiting[0]]):
            owners = {project: self._share, PROCESS: self._most}
            if not turn.done() and self._shares.take(owners) is None:
                turn.set_result(None)
        self._waiting = [waiting for waiting in self._waiting if not waiting[1].done()]


async def _end_of(waited: asyncio.Future[Any], request: Request | None, within_s: float = math.inf) -> None:
    until = time.monotonic() + within_s
    while not (await asyncio.wait([waited], timeout=ASK_S))[0]:
        if request is not None and await request.is_disconnected():
            raise Problem(408, "too_slow", "The client left before this was done")
        if time.monotonic() > until:
            detail = "Too much is being read for this project; send this again in a moment"
            raise Problem(503, "overloaded", detail, headers={"Retry-After": "5"})
