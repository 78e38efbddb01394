"""Conditional answers: validators (RFC 9110, section 8.8.3), 304, and waiting for another answer.

The validator covers the whole answer except ages, which change all the time and follow from the times beside them. So
every change in any table of the database changes the validator, and so does a run that becomes stale without a write.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from crawler_lifecycle.gateway.streams.feed import Feed


def documents(kind: type[Any]) -> dict[str, Any]:
    """The parameters of a route that answers a document of this kind by ``conditional``."""
    same = {"description": "What If-None-Match names is still the answer"}
    return {"response_model": kind, "responses": {304: same}}


#: What is left out of a validator, in pydantic's notation, wherever it occurs.
RELATIVE: Mapping[str, Any] = {
    "verified_ago_s": True,
    "waiting": True,
    "until": True,
    "overdue": {"text"},
    "runs": {"__all__": {"verified_ago_s", "waiting"}},
}

_TAG = re.compile(r'(?:W/)?"([^"]*)"')


def conditional(request: Request, answer: BaseModel) -> Response:
    """The answer as JSON with its validator, or 304 without a body when the client has it already.

    The validator is weak: two answers under it differ in the times that it leaves out.
    """
    tag = validator(answer)
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if names(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    return Response(answer.model_dump_json(), media_type="application/json", headers=headers)


def names(known: str, tag: str) -> bool:
    """Return whether a header ``If-None-Match`` names this validator."""
    return known.strip() == "*" or _TAG.findall(tag)[0] in _TAG.findall(known)


def validator(answer: BaseModel) -> str:
    """The answer's ``ETag``."""
    content = f"{type(answer).__qualname__}:{answer.model_dump_json(exclude=RELATIVE)}"
    return f'W/"{hashlib.blake2b(content.encode(), digest_size=16).hexdigest()}"'


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
            place, changed = feed.news_of(subject, place)
            if changed or now() - read_at >= REREAD_S:
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
    """The document as soon as it differs from the caller's version, at the latest after ``wait_s``.

    The caller's version is the one in ``If-None-Match``; without that header, the present one, unless it is about
    something that has ``ended``.
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
