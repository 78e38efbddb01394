"""Live screens: each screen is rendered once for all its readers, and only its changed parts are
sent.

A screen is a web address together with the role and the project of its readers. The route of that
address renders it every few seconds, because a poll without changes writes no event, and sooner
after an event about its subject. The page of a run is not rendered again while its row and its
events stay the same. Readers have no queues: each reader keeps the number of the last version that
it received, and gets only later changes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.sse import format_sse_event
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Message

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.gateway.access.operations import Operations, caller_role, may
from crawler_lifecycle.gateway.access.slots import Slots
from crawler_lifecycle.gateway.health import NEEDED
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.responses import StreamedResponse
from crawler_lifecycle.gateway.ttl_cache import CachedAnswer
from crawler_lifecycle.gateway.ui.parts.forms import query_of
from crawler_lifecycle.gateway.ui.parts.rendering import ALONE, MOVES, NO_KEY, SEEN_MAX, parts_of
from crawler_lifecycle.observability.metrics import release
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.web.problems import Problem

logger = logging.getLogger(__name__)

#: Seconds between two renderings of a screen about runs, or of the home page.
EVERY_S = 2.0
#: The same for other screens, which rarely change without an event.
OTHERS_S = 5.0
#: Seconds for which a run's page is not rendered again if the mark of its row stays the same. Some
#: of its values, such as a position in a queue, are in no row.
SAME_S = 10.0
#: The same for a run that waits for nothing.
CALM_S = 30.0
#: Seconds for which marks are reused.
MARKS_S = 1.0
#: The maximum number of runs in one query for marks.
MARKS_MAX = 500
#: Seconds between two messages with the age of a screen. A page that hears nothing for 5 s shows a
#: warning.
TICK_S = 2.0
#: Seconds for which a check of the database and Temporal is reused.
NEEDS_S = 1.0
#: Seconds that a message waits for a new check.
NEEDS_WAIT_S = 0.3
#: The pause after a rendering is this multiple of its duration. It limits the work for large
#: screens, and for lists that change all the time. A single slow answer of the database must not
#: make a screen old.
REST = 4.0
#: The shortest pause in seconds.
REST_MIN_S = 0.25
#: The longest pause in seconds.
REST_MAX_S = 8.0
#: The maximum number of screens that are rendered at the same time: in total, and for one project.
AT_ONCE = (3, 2)
#: The first parts of the addresses of these screens.
_SOON = ("fleet", "runs")
Render = Callable[[], Coroutine[Any, Any, str]]
Marks = tuple[datetime, Mapping[int, tuple[object, ...]]]
"""The time of the query, and for each run a value that changes with its row."""
Ask = Callable[[], Coroutine[Any, Any, Mapping[str, str]]]

# Without the second header, nginx buffers the events.
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class StreamParameters(BaseModel):
    """The parameters of a stream: the screen, and the marks of the parts that the reader already
    has.
    """

    model_config = ConfigDict(extra="forbid")

    path: str = Field(pattern="^/", max_length=2000)
    query: str = Field(default="", max_length=8000)
    seen: str = Field(default="", pattern="^([0-9a-f]{8})*$", max_length=4000)


class Screen:
    """One screen for all its readers.

    ``render`` returns the main part of the page, in which marks enclose the separate parts.
    """

    def __init__(self, path: str, render: Render, marks: CachedAnswer[Marks], limit: Slots) -> None:
        # All tabs of a subject are updated by the events about the subject. No event is about the
        # home page: it reuses its state for some seconds, so a rendering after each event about a
        # run would show nothing new.
        self.about = "/".join(path.strip("/").split("/")[:2]) or "fleet"
        run = re.fullmatch(r"runs/([1-9]\d{0,17})", self.about)
        self.run_id = int(run[1]) if run else None
        self.news = asyncio.Event()
        """Set when something happens that the screen may show. Get this object before you read the
        version.
        """
        self.every_s = EVERY_S if self.about.partition("/")[0] in _SOON else OTHERS_S
        self.readers = 0
        self.version = 0
        self.as_of: datetime | None = None
        self.gone = False
        """True if the subject of the screen no longer exists, or if its readers may no longer see
        it."""
        self._render = render
        self._limit = limit
        self._marks = marks
        self._moved = self._failed = False
        self._mark: object = None
        self._due_at = self._rests_until = self._same_until = 0.0
        self._rendering: asyncio.Task[None] | None = None
        self._whole = ""
        #: The version, mark and text of each part, by its name. The frame around the other parts
        #: has the name "".
        self._parts: dict[str, tuple[int, str, str]] = {}

    def wake(self) -> None:
        """Mark the screen for a rendering soon, because something happened that it may show."""
        self._moved = True
        self.news.set()
        self.news = asyncio.Event()

    async def refresh(self, clock: Clock) -> None:
        """Render the screen if that is due.

        Concurrent readers wait for the same rendering, but not for long.
        """
        if self._rendering is None and self.due_in() <= 0:
            self._rendering = asyncio.create_task(self._rendered(clock))
        if self._rendering is not None:
            await asyncio.wait([self._rendering], timeout=TICK_S)

    def due_in(self) -> float:
        """Return the seconds until the next rendering."""
        due_at = min(self._due_at, self._rests_until) if self._moved else self._due_at
        return due_at - asyncio.get_running_loop().time()

    async def _rendered(self, clock: Clock) -> None:
        now = asyncio.get_running_loop().time
        began = now()
        try:
            at, marks = await self._marks.read() if self.run_id else (None, {})
            mark, news, self._moved = marks.get(self.run_id or 0), self._moved, False
            if at and mark and mark == self._mark and not news and began < self._same_until:
                self.as_of = at
                return
            async with self._limit.slot():
                began = now()
                as_of = clock()
                self._moved = False
                self._keep(await self._render())
                self.as_of = as_of
                self._failed = False
                self.gone = False
                self._mark = mark
                self._same_until = began + (CALM_S if mark and mark[-1] else SAME_S)
        except Exception as error:
            self._mark = None
            self.gone = isinstance(error, Problem) and error.status < 500
            if not self._failed and not self.gone:
                logger.warning("the screen %s cannot be rendered now: %s", self.about, error)
            self._failed = True
        finally:
            self._rests_until = now() + min(max(REST * (now() - began), REST_MIN_S), REST_MAX_S)
            self._due_at = max(began + self.every_s, self._rests_until)
            self._rendering = None

    def _keep(self, text: str) -> None:
        self._whole, parts = parts_of(text)
        self.version += 1
        before = self._parts
        self._parts = {
            name: before[name]
            if name in before and before[name][1] == mark
            else (self.version, mark, part)
            for name, (mark, part) in parts.items()
        }

    def marks(self) -> str:
        """Return the marks of all parts. A reader sends them when it reconnects."""
        return "".join([mark for _, mark, _ in self._parts.values()][:SEEN_MAX])

    def since(self, version: int, seen: set[str], *, fixed: bool) -> str:
        """Return the parts that changed after the given version and whose marks are not in
        ``seen``.

        A ``fixed`` screen keeps its frame.
        """
        changed = {
            name for name, (at, mark, _) in self._parts.items() if at > version and mark not in seen
        }
        if "" in changed and not fixed:
            return _partial("main", self._whole)
        return "".join(
            _partial(name, self._parts[name][2]) for name in self._parts if name in changed - {""}
        )


def _partial(name: str, text: str) -> str:
    return f'<hx-partial hx-target="#{name}" hx-swap="outerMorph">{text}</hx-partial>'


class Live:
    """The screens that have readers."""

    def __init__(self, feed: Feed, clock: Clock, needs: Ask, runs: RunReader) -> None:
        self._feed = feed
        self._clock = clock
        self._needs = CachedAnswer(needs, NEEDS_S)
        self._screens: dict[tuple[str, str, str | None, str | None], Screen] = {}
        self._limit = Slots(*AT_ONCE)
        self._marks, self._runs = CachedAnswer(self._read_marks, MARKS_S), runs
        self._following: asyncio.Task[None] | None = None

    async def _read_marks(self) -> Marks:
        at = self._clock()
        wanted = sorted({screen.run_id for screen in self._screens.values() if screen.run_id})
        found: dict[int, tuple[object, ...]] = {}
        for n in range(0, len(wanted), MARKS_MAX):
            found.update(await run_in_threadpool(self._runs.run_marks, wanted[n : n + MARKS_MAX]))
        return at, found

    async def _follow(self) -> None:
        """Wake the screens that show the subjects of new events, until the feed closes or no screen
        has a reader.
        """
        position = 0
        while self._screens and not self._feed.closed:
            news = self._feed.news
            position, subjects = self._feed.changed(position)
            # An event about ``runs/7`` also concerns ``runs``.
            about = (
                None
                if subjects is None
                else {*subjects, *(subject.partition("/")[0] for subject in subjects)}
            )
            for screen in self._screens.values():
                if about is None or screen.about in about:
                    screen.wake()
            await self._feed.wait_for_news(news, TICK_S)
        for screen in self._screens.values():
            screen.wake()

    async def stream(
        self, wanted: StreamParameters, render: Render, seen: set[str], *, fixed: bool
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the stream until the feed closes: ``hello``, the missing parts, and
        then each change.

        The reader already has the parts whose marks are in ``seen``. The event ``gone`` reports
        that the subject no longer exists, for example after its deletion. The reader keeps the last
        version on the screen.
        """
        key = (wanted.path, wanted.query, caller_role(), only())
        screen = self._screens.setdefault(
            key, Screen(wanted.path, render, self._marks, self._limit)
        )
        self._feed.enter("page")
        screen.readers += 1
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow())
        now = asyncio.get_running_loop().time
        version = 0
        try:
            yield await self._event("hello", screen)
            sent_at = now()
            sent_gone = False
            while not self._feed.closed:
                news = screen.news
                await screen.refresh(self._clock)
                if screen.gone and not sent_gone:
                    yield await self._event("gone", screen)
                sent_gone = screen.gone
                text, version = screen.since(version, seen, fixed=fixed), screen.version
                # A slow first rendering may not have finished yet.
                seen = set() if version else seen
                if text:
                    yield format_sse_event(
                        data_str=text.replace(NO_KEY, uuid.uuid4().hex), id=screen.marks()
                    )
                if text or now() - sent_at >= TICK_S:
                    yield await self._event("tick", screen)
                    sent_at = now()
                await self._feed.wait_for_news(news, min(screen.due_in(), sent_at + TICK_S - now()))
        finally:
            self._feed.leave("page")
            screen.readers -= 1
            if not screen.readers:
                self._screens.pop(key, None)

    async def _event(self, name: str, screen: Screen) -> bytes:
        """Return an event with the present time, the time of the screen, the build, and the systems
        that do not answer now.
        """
        answers = await self._needs.read_within(NEEDS_WAIT_S) or {}
        away = " and ".join(
            f"{NEEDED[part]} does not answer" for part, answer in answers.items() if answer != "ok"
        )
        data = {"now": self._clock(), "as_of": screen.as_of, "build": release(), "away": away}
        return format_sse_event(
            data_str=to_json(data).decode(), event=name, retry=1000 if name == "hello" else None
        )


def add_stream(app: FastAPI, feed: Feed, clock: Clock, needs: Ask, runs: RunReader) -> None:
    """Add ``GET /page/events``."""
    live = Live(feed, clock, needs, runs)

    @functools.cache
    def operations() -> Operations:
        return Operations(app)  # at the first call, when all routes have been added

    @app.get("/page/events", response_class=Response)
    async def stream_page(request: Request) -> StreamedResponse:
        """Send the parts of one screen as soon as they change."""
        wanted = query_of(request, StreamParameters)
        operation, _ = operations().of("GET", wanted.path)
        if operation not in MOVES:
            raise Problem(
                422, "invalid_request", "path: this page has no live stream; load the page again"
            )
        if not may(operation):
            raise Problem(403, "forbidden", f"{operation} needs another role")
        # A page that reconnects has received updates since it was loaded. Without this, parts that
        # have changed back would not be sent.
        seen = set(re.findall("[0-9a-f]{8}", request.headers.get("last-event-id") or wanted.seen))
        # A list of all matching runs does not show runs that begin later, and a log has a stream of
        # its own.
        fixed = operation == "showLog" or "all=true" in wanted.query.split("&")
        chunks = live.stream(wanted, lambda: _asked(app, request, wanted), seen, fixed=fixed)
        return StreamedResponse(
            chunks, "text/event-stream", _HEADERS, dropped=lambda: feed.dropped("page")
        )


async def _asked(app: FastAPI, request: Request, wanted: StreamParameters) -> str:
    """Return the main part of a page as its own route renders it for the present caller."""
    raw = {"raw_path": quote(wanted.path).encode(), "query_string": wanted.query.encode()}
    scope = {**request.scope, **raw, "path": wanted.path, "headers": [], ALONE: True}
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    await app.router(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent).decode()
    if (status := sent[0]["status"]) != 200:
        raise Problem(status, "http_error", body)
    return body
