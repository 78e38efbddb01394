"""Conditional responses: validators (RFC 9110, section 8.8.3), status 304, and long polling.

The validator covers the whole response except ages. Ages change all the time, and the response also
contains the times from which they follow. Any other change of the response changes its validator.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Annotated, Any, TypeVar

from fastapi import Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from crawler_lifecycle.gateway.streams.feed import Feed


def documents(kind: type[Any]) -> dict[str, Any]:
    """Return the parameters for a route that returns a document of this kind through
    ``conditional``.
    """
    same = {"description": "The document still has the version that If-None-Match names"}
    return {"response_model": kind, "responses": {304: same}}


#: The fields that the validator leaves out, in pydantic's notation.
RELATIVE: Mapping[str, Any] = {
    "verified_ago_s": True,
    "waiting": True,
    "until": True,
    "overdue": {"text"},
    "runs": {"__all__": {"verified_ago_s", "waiting"}},
}

_TAG = re.compile(r'(?:W/)?"([^"]*)"')


def conditional(request: Request, answer: BaseModel) -> Response:
    """Return the response as JSON with its validator, or 304 without a body if the client already
    has this response.

    The validator is weak: two responses with the same validator can differ in the fields of
    ``RELATIVE``.
    """
    tag = validator(answer)
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if names(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    return Response(answer.model_dump_json(), media_type="application/json", headers=headers)


def names(known: str, tag: str) -> bool:
    """Return whether the value of a header ``If-None-Match`` names this validator."""
    return known.strip() == "*" or _TAG.findall(tag)[0] in _TAG.findall(known)


def validator(answer: BaseModel) -> str:
    """Return the validator of a response, for its header ``ETag``."""
    content = f"{type(answer).__qualname__}:{answer.model_dump_json(exclude=RELATIVE)}"
    return f'W/"{hashlib.blake2b(content.encode(), digest_size=16).hexdigest()}"'


#: The longest wait in seconds that a caller can ask for. Proxies end silent connections after a
#: minute.
WAIT_MAX_S = 60
Wait = Annotated[int, Query(ge=0, le=WAIT_MAX_S)]
#: While a caller waits: seconds between two checks of its connection.
ROUND_S = 0.5
#: Seconds between two reads if there is no event.
REREAD_S = 5.0

T = TypeVar("T", bound=BaseModel)


async def moments(
    request: Request, feed: Feed, subject: str, wait_s: float
) -> AsyncGenerator[None, None]:
    """Yield immediately, and then each time the subject may have changed, for ``wait_s`` seconds.

    The generator ends earlier if the caller disconnects or the feed closes. The authentication
    middleware ends it if the token is revoked.
    """
    now = asyncio.get_running_loop().time
    until = now() + wait_s
    feed.enter("waits")
    try:
        position = await feed.position(min(wait_s, ROUND_S))
        read_at = now()
        yield
        while now() < until and not feed.closed and not await request.is_disconnected():
            news = feed.news
            position, changed = feed.news_of(subject, position)
            if changed or now() - read_at >= REREAD_S:
                read_at = now()
                yield
            else:
                await feed.wait_for_news(news, min(until - now(), ROUND_S))
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
    """Return the document when it differs from the caller's version, or after ``wait_s`` seconds.

    ``If-None-Match`` names the caller's version. Without that header, the caller's version is the
    present one. If the subject has ``ended``, the document is then returned immediately.
    """
    if not wait_s:
        return conditional(request, await read())
    known = request.headers.get("if-none-match")
    async with aclosing(moments(request, feed, subject, wait_s)) as news:
        async for _ in news:
            document = await read()
            if known is None:
                known = "" if ended(document) else validator(document)
            if not names(known, validator(document)):
                break
    return conditional(request, document)
