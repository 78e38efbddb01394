"""Channels: many streams in one response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from crawler_lifecycle.gateway.ui import channel
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys
from tests.gateway.served import served
from tests.gateway.ui.test_live import start
from tests.support.fakes.logs import FakeLogs

KEY = "a" * 32
Frame = dict[str, Any]


@asynccontextmanager
async def opened(url: str, **headers: str) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    """A channel: a client for its requests, and its frames."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=60, headers=headers) as client,
        client.stream("GET", f"/page/streams/{KEY}") as answer,
    ):
        assert answer.status_code == 200

        async def frames() -> AsyncIterator[Frame]:
            async for line in answer.aiter_lines():
                if line:
                    yield json.loads(line)

        yield client, frames()


async def join(client: httpx.AsyncClient, number: int, path: str, query: str) -> int:
    """Join a stream. Return the status of the response."""
    params = {"path": path, "query": query}
    return (await client.get(f"/page/streams/{KEY}/{number}", params=params)).status_code


async def until(frames: AsyncIterator[Frame], fits: Callable[[Frame], bool]) -> Frame:
    async for frame in frames:
        if fits(frame):
            return frame
    raise AssertionError("the channel ended before")


async def test_streams_share_a_channel_and_leave_it(harness: Harness) -> None:
    run_id = start(harness)
    async with (
        served(harness.new_app()) as server,
        opened(server.url) as (client, frames),
    ):
        assert await join(client, 1, "/page/events", "path=/runs") == 204
        first = await until(frames, lambda frame: True)
        assert first == {"n": 1, "status": 200, "type": "text/event-stream; charset=utf-8"}
        assert await join(client, 2, "/page/events", f"path=/runs/{run_id}") == 204
        await until(frames, lambda frame: frame["n"] == 2 and "#main" in frame.get("text", ""))
        assert await join(client, 2, "/page/events", "path=/runs") == 409
        assert await join(client, 3, "/page/events", "path=/nowhere") == 204
        refused = await until(frames, lambda frame: frame["n"] == 3)
        assert refused["status"] == 422
        assert (await until(frames, lambda frame: frame["n"] == 3 and frame.get("end", False)))[
            "end"
        ]
        assert await join(client, 3, "/v1/runs", "") == 422
        for _ in range(2):
            assert (await client.get(f"/page/streams/{KEY}/2/end")).status_code == 204
        assert await join(client, 2, "/page/events", "path=/runs") == 204, "its number is free"


async def test_a_log_in_a_channel_has_the_number_of_its_first_line(harness: Harness) -> None:
    run_id = start(harness)
    logs = FakeLogs()
    logs.write(b"a\nb\nc\n", run_id)
    async with (
        served(harness.new_app(logs=logs)) as server,
        opened(server.url) as (client, frames),
    ):
        query = "tail=2&follow=true"
        assert await join(client, 1, f"/v1/runs/{run_id}/logs", query) == 204
        first = await until(frames, lambda frame: True)
        assert (first["status"], first["first"]) == (200, "2")


async def test_a_channel_belongs_to_one_caller_and_ends_with_its_token(
    harness: Harness, keys: Keys
) -> None:
    async with (
        served(harness.new_app(entrance=keys.entrance())) as server,
        opened(server.url, **keys.headers("read")) as (client, frames),
    ):
        assert await join(client, 1, "/page/events", "path=/webhooks") == 204
        refused = await until(frames, lambda frame: True)
        assert refused["status"] == 403, "a stream in a channel needs the same role"
        assert await join(client, 2, "/page/events", "path=/runs") == 204
        await until(frames, lambda frame: frame.get("status") == 200)
        async with httpx.AsyncClient(base_url=server.url, headers=keys.headers("admin")) as other:
            assert await join(other, 3, "/page/events", "path=/runs") == 404
        tables = keys.file.read_text().split("[[token]]")
        keys.file.write_text("[[token]]".join(one for one in tables if "the-read" not in one))
        keys.now += 10
        async for _ in frames:
            pass


async def test_a_channel_has_a_limit(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "JOINED_MAX", 2)
    async with served(harness.new_app()) as server, opened(server.url) as (client, _):
        statuses = [await join(client, n, "/page/events", "path=/runs") for n in (1, 2, 3)]
        assert statuses == [204, 204, 503]


async def test_a_busy_stream_keeps_no_other_waiting_and_loses_nothing() -> None:
    """All streams of a channel share one queue, and a stream that finds it full waits for its turn."""

    async def router(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        parts = 500 if scope["query_string"] == b"busy" else 3
        for part in range(parts):
            await send({"type": "http.response.body", "body": str(part).encode()})

    app: Any = SimpleNamespace(router=router)
    request: Any = SimpleNamespace(scope={})
    feed: Any = SimpleNamespace(closed=False)
    shared = channel.Channel(app, request)
    shared.join(1, channel.JoinParameters(path="/page/events", query="busy"))
    await asyncio.sleep(0)  # it fills the queue
    shared.join(2, channel.JoinParameters(path="/page/events", query="quiet"))
    sent: list[Frame] = []
    async for line in shared.frames(feed):
        if line.strip():
            sent.append(json.loads(line))
        if sum("end" in frame for frame in sent) == 2:
            break
    quiet = [place for place, frame in enumerate(sent) if frame["n"] == 2]
    assert len(quiet) == 5
    assert quiet[-1] <= channel.FRAMES_MAX + 2 * len(quiet), "it takes turns"
    for number, parts in ((1, 500), (2, 3)):
        texts = [frame["text"] for frame in sent if frame["n"] == number and "text" in frame]
        assert texts == [str(part) for part in range(parts)]
