"""``GET /v1/runs/{run_id}?wait=``: long polling, an answer when something has changed.

The place in the outbox is taken before the run is read, so a change that lands between the two is seen at once. What
changes without an event (a counter, a deadline that passes) is seen when the run is read again after ``REREAD_S``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import Request
from starlette.responses import Response

from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.streams.feed import Feed

from .answers import RunDetail
from .etags import conditional, names, validator

#: The longest wait that a caller may ask for, in seconds: proxies end silent connections after a minute.
WAIT_MAX_S = 60
#: How often the connection of a waiting caller is looked at, and how often the run is read anew without news.
ROUND_S, REREAD_S = 0.5, 5.0
_ENDED = (RunStatus.COMPLETED, RunStatus.FAILED)


async def next_answer(
    request: Request, feed: Feed, run_id: int, wait_s: float, read: Callable[[], Awaitable[RunDetail]]
) -> Response:
    """The run as soon as it is not what the caller knows, or as it is after ``wait_s``.

    The caller knows what ``If-None-Match`` names; without that header, the run as it is now, unless it has ended
    already. The gateway's door ends the wait when the token is taken back.
    """
    now = asyncio.get_running_loop().time
    until = now() + wait_s
    feed.enter("waits")
    try:
        place = await feed.place(min(wait_s, ROUND_S))
        detail, read_at = await read(), now()
        known = request.headers.get("if-none-match") or ("" if detail.status in _ENDED else validator(detail))
        while (
            names(known, validator(detail))
            and now() < until
            and not feed.closed
            and not await request.is_disconnected()
        ):
            news = feed.news
            place, told = feed.told(run_id, place)
            if told or now() - read_at >= REREAD_S:
                detail, read_at = await read(), now()
                continue
            await feed.heard(news, min(until - now(), ROUND_S))
        return conditional(request, detail)
    finally:
        feed.leave("waits")
