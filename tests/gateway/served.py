"""A gateway behind a real server in the test's own event loop, and a client that reads server-sent
events.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from crawler_lifecycle.web.listening import Connection, _Server, bind


@dataclass
class Server:
    url: str
    port: int
    server: uvicorn.Server
    task: asyncio.Task[None]

    async def stop(self) -> None:
        self.server.should_exit = True
        await self.task


@asynccontextmanager
async def served(app: FastAPI, *, grace_s: int = 5) -> AsyncIterator[Server]:
    """Serve like ``listening.run``, without the process around it.

    ``grace_s`` is the time that it has to end.
    """
    bound = bind("127.0.0.1", 0, "TEST")
    config = uvicorn.Config(
        app, http=Connection, ws="none", log_config=None, timeout_graceful_shutdown=grace_s
    )
    server = _Server(config)
    server.leaving = app.state.leaving
    port = bound.getsockname()[1]
    task = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield Server(f"http://127.0.0.1:{port}", port, server, task)
    finally:
        server.should_exit = True
        await task
        bound.close()


@contextmanager
def served_in_thread(app: FastAPI) -> Iterator[str]:
    """Serve like ``served``, in a thread, for a test without an event loop. Gives the address."""
    started, leave = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        async with served(app) as server:
            address.append(server.url)
            started.set()
            await asyncio.to_thread(leave.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(60)
        yield address[0]
    finally:
        leave.set()
        thread.join()


@dataclass(frozen=True)
class Sse:
    """One event as an ``EventSource`` would dispatch it."""

    id: str
    event: str
    data: Any


async def events(
    answer: httpx.Response, read: Callable[[str], Any] = json.loads
) -> AsyncIterator[Sse]:
    """Return the events of a stream by the rules of the HTML standard: comments and events without
    data are skipped.
    """
    last, name, data = "", "message", list[str]()
    async for line in answer.aiter_lines():
        if not line:
            if data:
                yield Sse(last, name, read("\n".join(data)))
            name, data = "message", []
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "id":
                last = value
            elif field == "event":
                name = value
            elif field == "data":
                data.append(value)


async def take(stream: AsyncIterator[Sse], count: int) -> list[Sse]:
    """Return the next events, except those with the age of a page, of which a slow machine sends
    more.
    """
    found = list[Sse]()
    async with asyncio.timeout(60):
        while len(found) < count:
            if (event := await anext(stream)).event != "tick":
                found.append(event)
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def metric(app: FastAPI, name: str, stream: str) -> float:
    registry = app.state.metrics.registry
    return float(
        registry.get_sample_value(f"crawler_lifecycle_gateway_stream_{name}", {"stream": stream})
        or 0
    )


@asynccontextmanager
async def listening(
    url: str, *, last: str | None = None, **params: Any
) -> AsyncIterator[AsyncIterator[Sse]]:
    """An open event stream."""
    headers = {"Last-Event-ID": last} if last is not None else {}
    async with (
        httpx.AsyncClient(timeout=120, verify=False) as client,
        client.stream("GET", f"{url}/v1/events", params=params, headers=headers) as answer,
    ):
        assert answer.status_code == 200, (await answer.aread()).decode()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer)
