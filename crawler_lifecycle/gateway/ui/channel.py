"""Channels: all streams of one browser in one response.

With HTTP/1.1, a browser has only six connections to a host for all of its windows. A script that
these windows share opens a channel, and makes streams join and leave it with short requests. A
channel belongs to one gateway; a browser whose request reaches another gateway opens streams
directly.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
from collections.abc import AsyncGenerator
from contextvars import copy_context
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message

from crawler_lifecycle.gateway.access.operations import caller_key
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.responses import StreamedResponse
from crawler_lifecycle.gateway.ui.parts.forms import query_of
from crawler_lifecycle.web.problems import Problem

logger = logging.getLogger(__name__)

#: The maximum number of streams in one channel.
JOINED_MAX = 64
#: The maximum number of frames that wait for a browser. Further frames wait in their streams.
FRAMES_MAX = 64
#: Seconds after which an empty line is sent if there is no frame.
BEAT_S = 1.0
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

Key = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Number = Annotated[int, Path(ge=1, le=10**9)]


class JoinParameters(BaseModel):
    """The address of a stream that joins, and the id of the last event that its reader received."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(pattern=r"^/(page/events|v1/runs/[1-9][0-9]{0,17}/logs)$")
    query: str = Field(default="", max_length=16_000)
    seen: str = Field(default="", pattern="^([0-9a-f]{8})*$", max_length=4000)


class Channel:
    """The streams of one browser, which are served as requests of the caller who opened it."""

    def __init__(self, app: FastAPI, request: Request) -> None:
        self.caller = caller_key()
        self._app = app
        self._context = copy_context()
        # Responses may close the connection of their request, but this connection belongs to all
        # streams.
        self._scope = {**request.scope, "state": {}}
        self._frames = asyncio.Queue[bytes](FRAMES_MAX)
        self._joined: dict[int, asyncio.Task[None]] = {}

    def join(self, number: int, wanted: JoinParameters) -> None:
        """Let a stream join under an unused number. Raises ``Problem`` 409 or 503."""
        if number in self._joined:
            raise Problem(409, "not_in_this_state", f"number: {number} is in use; choose another")
        if len(self._joined) >= JOINED_MAX:
            detail = f"this channel already has {JOINED_MAX} streams; close some windows"
            raise Problem(503, "overloaded", detail)
        task = asyncio.create_task(self._carry(number, wanted), context=self._context)
        self._joined[number] = task
        task.add_done_callback(lambda _: self._joined.pop(number, None))

    def leave(self, number: int) -> None:
        """End a stream, if it has joined."""
        task = self._joined.get(number)
        if task is not None:
            task.cancel()

    async def frames(self, feed: Feed) -> AsyncGenerator[bytes, None]:
        """Yield a line of JSON for each part of each stream, until the gateway stops."""
        try:
            yield b"\n"
            while not feed.closed:
                try:
                    async with asyncio.timeout(BEAT_S):
                        frame = await self._frames.get()
                except TimeoutError:
                    frame = b"\n"
                yield frame
        finally:
            for task in self._joined.values():
                task.cancel()

    async def _carry(self, number: int, wanted: JoinParameters) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        async def put(**frame: Any) -> None:
            await self._frames.put(to_json({"n": number, **frame}) + b"\n")

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = Headers(raw=message["headers"])
                first = headers.get("x-log-first")
                numbers = {"first": first} if first else {}
                kind = headers.get("content-type", "")
                await put(status=message["status"], type=kind, **numbers)
            elif text := decoder.decode(message.get("body", b"")):
                await put(text=text)

        async def receive() -> Message:
            await asyncio.Event().wait()  # until the stream leaves
            raise AssertionError

        scope = {
            **self._scope,
            "path": wanted.path,
            "raw_path": wanted.path.encode(),
            "query_string": wanted.query.encode(),
            "headers": [(b"last-event-id", wanted.seen.encode())] if wanted.seen else [],
        }
        try:
            await self._app.router(scope, receive, send)
        except Exception:
            logger.exception("the stream %s ended early", wanted.path)
        await put(end=True)


def add_channels(app: FastAPI, feed: Feed) -> None:
    """Add the routes that open a channel, and that let streams join and leave it."""
    channels: dict[str, Channel] = {}

    def find(key: str) -> Channel:
        channel = channels.get(key)
        if channel is None or channel.caller != caller_key():
            raise Problem(404, "not_found", "This gateway has no such channel; open a new one")
        return channel

    @app.get("/page/streams/{key}", response_class=Response)
    async def open_channel(key: Key, request: Request) -> StreamedResponse:
        """Open a channel."""
        channel = channels[key] = Channel(app, request)

        def left() -> None:
            channels.pop(key, None)

        return StreamedResponse(
            channel.frames(feed),
            "application/x-ndjson",
            _HEADERS,
            left=left,
            dropped=lambda: feed.dropped("page"),
        )

    @app.get("/page/streams/{key}/{number}", status_code=204)
    async def join_channel(key: Key, number: Number, request: Request) -> None:
        """Let a stream join a channel."""
        find(key).join(number, query_of(request, JoinParameters))

    @app.get("/page/streams/{key}/{number}/end", status_code=204)
    async def leave_channel(key: Key, number: Number) -> None:
        """Let a stream leave a channel."""
        find(key).leave(number)
