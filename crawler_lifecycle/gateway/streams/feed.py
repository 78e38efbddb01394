"""The feed: a single reader of the outbox that serves all readers of the event stream.

Readers have no queues. The feed keeps one encoded copy of the newest events, and each reader keeps
only its position: the number of the last event that it received. A reader that is too slow for the
kept events reads from the database until it has caught up. Memory therefore does not grow with more
readers or with slow readers.

No event is skipped silently. Events of runs that ended long ago may have been removed (``crawlctl
db prune``), and a reader that misses one of these is notified.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic_core import to_json

from crawler_lifecycle.background import DONE, Loop
from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.domain.retention import pruned_through
from crawler_lifecycle.gateway.access.slots import Slots
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.observability.metrics import release
from crawler_lifecycle.ports.runs import Event
from crawler_lifecycle.store.events import EventStore
from crawler_lifecycle.store.runs.reads import RunReader

#: Seconds between two reads of the outbox while a reader is connected: after new events.
BUSY_S = 0.1
#: If there were no new events.
IDLE_S = 0.25
#: The longest pause in seconds while the database does not answer.
RETRY_MAX_S = 2.0
#: Events in one read for all readers.
PAGE = 500
#: Events in one read for a single reader that catches up.
CATCH_UP_PAGE = 100
#: The maximum number of events that are kept in memory for readers that are slightly behind.
KEPT = 5000
#: The maximum size of these events in bytes.
KEPT_BYTES = 8 * 1024 * 1024
#: The maximum size in bytes of one piece for a reader.
CHUNK = 32 * 1024
#: The maximum number of pieces that are kept for other readers at the same position.
GIVEN = 64
#: Seconds without an event after which a comment is sent. It shows proxies and clients that the
#: stream is alive.
PING_S = 15.0
#: Milliseconds that clients should wait before they reconnect.
RETRY_MS = 2000
#: Seconds that a reader waits when the database has not answered it.
OUTAGE_S = 1.0
_WAITING = format_sse_event(comment="the database does not answer; waiting for it")

T = TypeVar("T")


class EventsGone(Exception):
    """Events after a reader's position were removed from the database."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event in the form in which it is sent."""

    seq: int
    subject: str
    project: object
    wire: bytes


def encode(event: Event) -> Frame:
    """Encode an event as ``text/event-stream``. The id is its number, the name is its type, and the
    data is the whole event.
    """
    data = {
        "seq": event.seq,
        "subject": event.subject,
        "run_id": event.run_id,
        "run_uid": event.subject_uid if event.run_id is not None else None,
        "attempt": event.attempt,
        "type": event.type,
        "created_at": event.created_at,
        "body": event.body,
    }
    # The text is ASCII only, because Python clients may split lines with ``str.splitlines``, which
    # also splits at U+2028.
    text = to_json(data, inf_nan_mode="null", ensure_ascii=True).decode()
    wire = format_sse_event(data_str=text, event=event.type, id=str(event.seq))
    return Frame(event.seq, event.subject, event.body.get("project"), wire)


@dataclass(eq=False)
class Feed:
    """Reads the outbox while it has readers, and gives each reader the events after its position.

    ``run`` is a background task of the app. ``close`` ends all streams immediately.
    """

    events: EventStore
    runs: RunReader
    metrics: Metrics
    clock: Clock
    kept: int = KEPT
    ping_s: float = PING_S

    def __post_init__(self) -> None:
        self.readers = 0
        """The number of clients that read or wait now."""
        self._wanted = asyncio.Event()
        self.news = asyncio.Event()
        """Set when the next new events arrive. Get this object before you compare positions, or you
        may miss an event.
        """
        self.closed = False
        """True after ``close``: all streams end."""
        self._pause = IDLE_S
        self._heard_at: float | None = None
        #: The number of the newest event that was read, or ``None`` until the database has answered
        #: once.
        self._head: int | None = None
        #: The newest events: all events after ``_since``, up to and including ``_head``.
        self._ring: list[Frame] = []
        self._since = 0
        self._ring_bytes = 0
        #: The pieces since the last new events, by position, subject and project. Readers at the
        #: same position share them.
        self._given: dict[tuple[int, str | None, str | None], tuple[bytes, int]] = {}
        # The feed has threads of its own, because it and the readers that catch up must not wait
        # for each other or for requests.
        self._thread = Slots(1, 1)
        self._catch_up_threads = Slots(3, 2)

    # --- readers

    def enter(self, kind: str = "events") -> None:
        """Count a new reader."""
        self.readers += 1
        if self.readers == 1:
            self._heard_at = self._now()
        self.metrics.readers.labels(kind).inc()
        self._wanted.set()

    def leave(self, kind: str = "events") -> None:
        """Count a reader that has left."""
        self.readers -= 1
        self.metrics.readers.labels(kind).dec()
        if not self.readers:
            self._wanted.clear()

    def dropped(self, kind: str = "events") -> None:
        """Count a reader that was disconnected because it stopped reading."""
        self.metrics.dropped.labels(kind).inc()

    @property
    def silent_s(self) -> float | None:
        """The time in seconds since the outbox was last read, or since the first reader connected.

        It is ``None`` without readers.
        """
        return None if self._heard_at is None or not self.readers else self._now() - self._heard_at

    def close(self) -> None:
        """End all streams, including new ones."""
        self.closed = True
        self._wake()

    # --- waiting for events of one subject

    async def position(self, within_s: float) -> int:
        """Return the number of the newest event, or 0 if it is not known in time, so that every
        event counts as new.
        """
        if self._head is None:
            await self.wait_for_news(self.news, within_s)
        return self._head or 0

    def news_of(self, subject: str, position: int) -> tuple[int, bool]:
        """Return the number of the newest event, and whether an event after ``position`` is about
        the subject.
        """
        if self._head is None or self._head <= position:
            return position, False
        known, subjects = self.changed(position)
        return known, subjects is None or subject in subjects

    def changed(self, position: int) -> tuple[int, set[str] | None]:
        """Return the number of the newest event, and the subjects of the events after ``position``.

        The subjects are ``None`` if some of these events are no longer in memory.
        """
        if self._head is None or position < self._since:
            return self._head or 0, None
        first = bisect.bisect_right(self._ring, position, key=lambda frame: frame.seq)
        return self._head, {frame.subject for frame in self._ring[first:]}

    async def stream(self, after: int | None, subject: str | None) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the stream: ``hello``, then all events after the number ``after``
        (default: new events).

        While the database is down, the stream sends comments and waits. It ends only when the feed
        closes. If events after ``after`` were removed, the stream sends ``hello`` with ``reset``
        and begins at the newest event. With ``after`` 0, it sends all recorded events, and removed
        events do not matter.
        """
        position = None
        reset = False
        whole = after != 0
        while position is None and not self.closed:
            try:
                if self._head is not None:
                    position, reset = await self._begin(after, subject)
                elif not await self.wait_for_news(self.news, self.ping_s):
                    yield _WAITING
            except StoreUnavailable:
                yield _WAITING
                await asyncio.sleep(OUTAGE_S)
        if position is None:
            return
        yield self._hello(position, reset)
        sent = position
        sent_at = self._now()
        while not self.closed:
            news = self.news
            try:
                chunk, position = await self._next(position, subject, whole)
            except EventsGone:
                position = position if self._head is None else self._head
                chunk = self._hello(position, True)
            except StoreUnavailable:
                chunk = _WAITING
                await asyncio.sleep(OUTAGE_S)
            if not chunk and self._now() - sent_at >= self.ping_s:
                # An id without data advances the client's last id. Otherwise, that id would become
                # too old on a filtered stream.
                chunk = (
                    KEEPALIVE_COMMENT
                    if sent == position
                    else format_sse_event(comment="ping", id=str(position))
                )
            if chunk:
                yield chunk
                sent = position
                sent_at = self._now()
            elif self._head is None or position >= self._head:
                await self.wait_for_news(news, sent_at + self.ping_s - self._now())

    async def _begin(self, after: int | None, subject: str | None) -> tuple[int, bool]:
        """Return the position at which a reader begins, and whether it must read everything again.

        That is necessary if events after ``after`` were removed, or if this database never had an
        event with that number.
        """
        assert self._head is not None, "the database has answered"
        if after is None:
            return self._head, False
        if after > self._head:
            # Another gateway may have sent newer events. Otherwise, this database has replaced the
            # one with that event.
            newest = await self._ask(self.events.last_event_seq, threads=self._catch_up_threads)
            return (after, False) if after <= newest else (self._head, True)
        gone = 0 < after < self._since and await self._is_gone(after, subject)
        return (self._head, True) if gone else (after, False)

    async def _is_gone(self, position: int, subject: str | None) -> bool:
        """Return whether an event of the subject after ``position`` was removed. Without a subject,
        check the next event.
        """
        threads = self._catch_up_threads
        if subject is None:
            # Numbers have no gaps, so a missing event was removed.
            following = await self._ask(
                self.events.events_after, position, 1, None, threads=threads
            )
            return not following or following[0].seq != position + 1
        run_id, _ = _filter(subject)
        if run_id is None:  # events of a manager are kept as long as the manager itself
            return False
        through = pruned_through(await self._ask(self.runs.properties, run_id, threads=threads))
        return through is not None and position < through

    def _hello(self, position: int, reset: bool) -> bytes:
        data = {"server_time": self.clock(), "version": release(), "seq": position, "reset": reset}
        return format_sse_event(
            data_str=to_json(data).decode(), event="hello", id=str(position), retry=RETRY_MS
        )

    async def _next(self, position: int, subject: str | None, whole: bool) -> tuple[bytes, int]:
        """Return the events after ``position`` as at most about ``CHUNK`` bytes, and the position
        after them.

        Raises ``EventsGone`` if ``whole`` is true and some of these events were removed.
        """
        head = self._head
        if head is None or position >= head:
            return b"", position
        if position < self._since:
            return await self._catch_up(position, head, subject, whole)
        known = self._given.get((position, subject, only()))
        if known is None:
            if len(self._given) >= GIVEN:
                self._given.clear()
            first = bisect.bisect_right(self._ring, position, key=lambda frame: frame.seq)
            known = self._given[position, subject, only()] = _cut(self._ring, first, subject, head)
        return known

    async def _catch_up(
        self, position: int, head: int, subject: str | None, whole: bool
    ) -> tuple[bytes, int]:
        threads = self._catch_up_threads
        found = await self._ask(
            self.events.events_after, position, CATCH_UP_PAGE, *_filter(subject), threads=threads
        )
        full = len(found) == CATCH_UP_PAGE
        if whole and subject is None:
            found = [
                event for number, event in enumerate(found, position + 1) if event.seq == number
            ]
            full = True  # stop before the first gap
            if not found:
                raise EventsGone
        # The check comes after the reading, so that it also detects a removal between the two.
        elif whole and await self._is_gone(position, subject):
            raise EventsGone
        frames = [encode(event) for event in found]
        # A page that is not full has all events up to ``head``, which was determined before the
        # reading.
        end = max(head, frames[-1].seq) if frames else head
        return _cut(frames, 0, None, frames[-1].seq if full else end)

    # --- the reading

    async def run(self) -> None:
        """Read while there are readers, until the feed closes."""
        # Each event loop of the app needs a new event object. Readers may already be connected.
        self.closed = False
        self._wanted = asyncio.Event()
        if self.readers:
            self._wanted.set()
        self._forget()
        await Loop("reading the outbox", IDLE_S, retry_s=(2 * IDLE_S, RETRY_MAX_S)).run(self._turn)

    async def _turn(self) -> float:
        """Wait for a reader, read once, and return the seconds until the next read."""
        if not self.readers:
            self._forget()
            await self._wanted.wait()
        if self.closed:
            self._forget()
            return DONE
        full = await self._read()
        self._pause = BUSY_S if self._fresh else min(self._pause + 0.05, IDLE_S)
        return 0.0 if full else self._pause

    async def _read(self) -> bool:
        """Read one page of new events, and return whether the next page may be read immediately."""
        if self._head is None:
            self._head = self._since = await self._ask(
                self.events.last_event_seq, threads=self._thread
            )
            self._heard_at = self._now()
            self._fresh = True
            self._wake()
            return False
        events = await self._ask(
            self.events.events_after, self._head, PAGE, None, threads=self._thread
        )
        self._heard_at = self._now()
        self._fresh = bool(events)
        if events:
            self._keep(events)
            self._wake()
        return len(events) == PAGE

    def _keep(self, events: list[Event]) -> None:
        now = self.clock()
        for event in events:
            frame = encode(event)
            self._ring.append(frame)
            self._ring_bytes += len(frame.wire)
            self.metrics.stream_lag.observe(
                max((now - event.created_at) / timedelta(seconds=1), 0.0)
            )
        self._head = events[-1].seq
        surplus = 0
        while len(self._ring) - surplus > self.kept or self._ring_bytes > KEPT_BYTES:
            self._ring_bytes -= len(self._ring[surplus].wire)
            surplus += 1
        if surplus:
            self._since = self._ring[surplus - 1].seq
            del self._ring[:surplus]
        self._given.clear()

    def _forget(self) -> None:
        self._head = None
        self._fresh = False
        self._pause = IDLE_S
        self._ring = []
        self._ring_bytes = 0
        self._since = 0
        self._given.clear()

    # --- waiting

    def _wake(self) -> None:
        """Wake all waiting readers, and create the object for the next new events."""
        self.news.set()
        self.news = asyncio.Event()

    async def wait_for_news(self, news: asyncio.Event, within_s: float) -> bool:
        """Wait for new events or for the end of the feed.

        Return ``False`` if neither occurred in time.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(within_s, 0.0)):
                await news.wait()
                return True
        return False

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _ask(self, question: Callable[..., T], *args: object, threads: Slots) -> T:
        return await threads.run(None, question, *args)


def _filter(subject: str | None) -> tuple[int | None, str | None]:
    """Return the database filter for a subject: the id of a run, or else the subject itself."""
    kind, _, rest = (subject or "").partition("/")
    return (int(rest), None) if kind == "runs" else (None, subject)


def _cut(frames: list[Frame], first: int, subject: str | None, end: int) -> tuple[bytes, int]:
    """Join frames of the subject and of the reader's project up to the size of a chunk.

    Return the bytes and the position after them, which is ``end`` if no frame is left.
    """
    wires: list[bytes] = []
    size = 0
    last = end
    project = only()
    for frame in frames[first:] if first else frames:
        if (subject is None or frame.subject == subject) and project in (None, frame.project):
            if wires and size + len(frame.wire) > CHUNK:
                return b"".join(wires), last
            wires.append(frame.wire)
            size += len(frame.wire)
        last = frame.seq
    return b"".join(wires), end
