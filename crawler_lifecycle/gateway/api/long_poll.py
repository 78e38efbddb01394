"""``?wait=``: long polling, an answer when something has changed, or has ended.

The place in the outbox is taken before anything is read, so a change that lands between the two is seen at once. What
changes without an event (a counter, a deadline that passes) is seen when it is read again after ``REREAD_S``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from crawler_lifecycle.gateway.streams.feed import Feed

from .etags import conditional, names, validator

#: The longest wait that a caller may ask for, in seconds: proxies end silent connections after a minute.
WAIT_MAX_S = 60
#: How often the connection of a waiting caller is looked at, and how often all is read anew without news.
ROUND_S, REREAD_S = 0.5, 5.0

T = TypeVar("T", bound=BaseModel)


async def moments(request: Request, feed: Feed, subject: str, wait_s: float) -> AsyncGenerator[None, None]:
    """The moments when there may be something new about the subject: now, and until ``wait_s`` are over.

    Ends early with the caller's connection and the feed. The gateway's door ends it when the token is taken back.
    """
    now = asyncio.get_running_loop().time
    until = now() + wait_s
    feed.enter("waits")
    try:
        place, read_at = await feed.place(min(wait_s, ROUND_S)), now()
        yield
        while now() < until and not feed.closed and not await request.is_disconnected():
            news = feed.news
            place, told = feed.told(subject, place)
            if told or now() - read_at >= REREAD_S:
                read_at = now()
                yield
            else:
                await feed.heard(news, min(until - now(), ROUND_S))
    finally:
        feed.leave("waits")


async def next_answer(
    request: Request,
    feed: Feed,
    subject: str,
    wait_s: float,
    read: Callable[[], Awaitable[T]],
    ended: Callable[[T], bool],
) -> Response:
    """The document as soon as it is not what the caller knows, or as it is after ``wait_s``.

    The caller knows what ``If-None-Match`` names; without that header, the document as it is now, unless it tells of
    something that has ``ended`` already.
    """
    known = request.headers.get("if-none-match")
    async with aclosing(moments(request, feed, subject, wait_s)) as news:
        async for _ in news:
            document = await read()
            if known is None:
                known = "" if ended(document) else validator(document)
            if not names(known, validator(document)):
                break
    return conditional(request, document)
