"""Waiting for a site's turn and its robots.txt in asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import time

from crawl_runner_leases import SiteLeases
from crawl_runner_robots import KNOWN_S, RobotsFile, SharedRobots


async def turn_at(leases: SiteLeases, host: str) -> int | None:
    """Wait until a request to this host may begin. Return its lane; ``None`` if it needs none.

    The caller passes the lane to ``leases.end`` when the request has ended.
    """
    if leases.is_free(host):
        return None
    loop = asyncio.get_running_loop()
    while True:
        turn: asyncio.Future[tuple[int | None, float]] = loop.create_future()

        def begin(
            lane: int | None,
            latest: float,
            turn: asyncio.Future[tuple[int | None, float]] = turn,
        ) -> None:
            def resolve() -> None:
                if turn.done():
                    leases.abandon(host, lane)
                else:
                    turn.set_result((lane, latest))

            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(resolve)

        leases.begin(host, begin)
        try:
            lane, latest = await turn
        except asyncio.CancelledError:
            leases.cancel(host, begin)
            if turn.done() and not turn.cancelled():
                leases.abandon(host, turn.result()[0])
            raise
        if time.monotonic() <= latest:
            return lane
        # This process was frozen, or busy for so long that the turn is over.
        leases.abandon(host, lane)


async def known_robots(robots: SharedRobots, scheme: str, authority: str) -> RobotsFile | None:
    """Return the robots.txt that one task fetches for all; ``None`` if it is not known in time."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[RobotsFile | None] = loop.create_future()

    def resolve(file: RobotsFile | None) -> None:
        if not found.done():
            found.set_result(file)

    def tell(file: RobotsFile | None) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(resolve, file)

    robots.when_known(scheme, authority, tell)
    try:
        return await asyncio.wait_for(found, KNOWN_S)
    except asyncio.TimeoutError:  # noqa: UP041 (Python 3.9)
        return None
