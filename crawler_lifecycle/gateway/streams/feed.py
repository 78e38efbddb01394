"""The feed: one reader of the outbox for all readers of the event stream.

Readers have no queues. The feed keeps the newest events once, encoded, and each reader keeps only its place: the number
of the last event it was given. Whoever falls behind what is kept is fed from the database until it has caught up, so
memory does not grow with the number of readers or with their slowness, and no event is ever left out in silence: events
of runs that ended long ago may have been removed (``crawlctl db prune``), and who would miss one of them is told so.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic_core import to_json

from crawler_lifecycle.background import DONE, Loop
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.retention import pruned_through
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.observability.metrics import release
from crawler_lifecycle.ports.runs import Event
from crawler_lifecycle.store.events import EventStore
from crawler_lifecycle.store.runs.reads import RunReader

#: Pause between two readings of the outbox while somebody listens, in seconds: after news, and when there was none.
BUSY_S, IDLE_S = 0.1, 0.25
#: The longest pause while the database does not answer, in seconds.
TROUBLE_S = 2.0
#: Events read at once, for all readers and for one that catches up.
PAGE, CATCH_UP_PAGE = 500, 100
#: What is kept for readers who are a little behind: at most so many events, and bytes.
KEPT, KEPT_BYTES = 5000, 8 * 1024 * 1024
#: Bytes given to a reader at once, and how many such pieces are kept for others at the same place.
CHUNK, GIVEN = 32 * 1024, 64
#: A comment is sent after so many silent seconds, so that proxies and clients know that the stream lives.
PING_S = 15.0
#: What clients should wait before they come back, in milliseconds.
RETRY_MS = 2000
#: Pause of a reader whose own question the database did not answer, in seconds.
OUTAGE_S = 1.0
_WAITING = format_sse_event(comment="the database does not answer, waiting for it")

T = TypeVar("T")


class Gone(Exception):
    """Events after a reader's place are not on record any more."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it goes over the wire."""

    seq: int
    subject: str
    wire: bytes


def encode(event: Event) -> Frame:
    """The event as ``text/event-stream``: its number as id, its type as name, all of it as JSON."""
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
    # ASCII alone: Python's own idea of a line ends at U+2028 too, and so do the lines of clients written in it.
    text = to_json(data, inf_nan_mode="null", ensure_ascii=True).decode()
    return Frame(event.seq, event.subject, format_sse_event(data_str=text, event=event.type, id=str(event.seq)))


@dataclass(eq=False)
class Feed:
    """Reads the outbox while somebody listens, and gives each reader what follows its place.

    ``run`` is a background task of the app; ``close`` ends every stream at once.
    """

    events: EventStore
    runs: RunReader
    metrics: Metrics
    clock: Callable[[], datetime]
    kept: int = KEPT
    ping_s: float = PING_S

    def __post_init__(self) -> None:
        self.readers = 0
        """The number of those who read or wait now."""
        self._wanted = asyncio.Event()
        self.news = asyncio.Event()
        """It is set at the next news: take it before a look at the place, so that no news gets lost."""
        self.closed = False
        """True when nobody is served any more."""
        self._pause = IDLE_S
        self._heard_at: float | None = None
        #: Number of the newest event that was read; ``None`` until the database has answered once.
        self._head: int | None = None
        #: The newest events, complete from ``_since`` (not included) to ``_head``.
        self._ring: list[Frame] = []
        self._since = 0
        self._ring_bytes = 0
        #: What readers at the same place were given since the last news.
        self._given: dict[tuple[int, str | None], tuple[bytes, int]] = {}
        # Threads of their own: the feed and those who catch up must not wait for each other, nor for requests.
        self._thread = CapacityLimiter(1)
        self._catch_up_threads = CapacityLimiter(2)

    # --- readers

    def enter(self, kind: str = "events") -> None:
        """A reader begins."""
        self.readers += 1
        if self.readers == 1:
            self._heard_at = self._now()
        self.metrics.readers.labels(kind).inc()
        self._wanted.set()

    def leave(self, kind: str = "events") -> None:
        """A reader is gone."""
        self.readers -= 1
        self.metrics.readers.labels(kind).dec()
        if not self.readers:
            self._wanted.clear()

    def dropped(self, kind: str = "events") -> None:
        """A reader was cut because it did not read."""
        self.metrics.dropped.labels(kind).inc()

    @property
    def silent_s(self) -> float | None:
        """Seconds since the outbox was last read, or since somebody began to wait for that; ``None``: nobody does."""
        return None if self._heard_at is None or not self.readers else self._now() - self._heard_at

    def close(self) -> None:
        """End every stream, now and from now on."""
        self.closed = True
        self._tell()

    # --- those who wait for news of one run

    async def place(self, within_s: float) -> int:
        """The place where the outbox ends; 0 where nobody knows in time, and then everything that comes is news."""
        if self._head is None:
            await self.heard(self.news, within_s)
        return self._head or 0

    def news_of(self, subject: str, place: int) -> tuple[int, bool]:
        """The place up to which is known now, and whether anything about the subject stands after ``place``."""
        if self._head is None or self._head <= place:
            return place, False
        known, subjects = self.changed(place)
        return known, subjects is None or subject in subjects

    def changed(self, place: int) -> tuple[int, set[str] | None]:
        """The place up to which is known now, and the subjects of the events after ``place``; ``None``: not all are."""
        if self._head is None or place < self._since:
            return self._head or 0, None
        first = bisect.bisect_right(self._ring, place, key=lambda frame: frame.seq)
        return self._head, {frame.subject for frame in self._ring[first:]}

    async def stream(self, after: int | None, subject: str | None) -> AsyncGenerator[bytes, None]:
        """The wire: ``hello``, then every event with a number greater than ``after`` (default: from now on).

        It goes on through outages of the database, with comments, and ends only when the feed closes. Who comes back
        to a place behind which events were removed is sent to the end, with ``reset``. 0 is nobody's place: from there
        on everything is told that is on record.
        """
        place, reset = None, False
        whole = after != 0
        while place is None and not self.closed:
            try:
                if self._head is not None:
                    place, reset = await self._place(after, subject)
                elif not await self.heard(self.news, self.ping_s):
                    yield _WAITING
            except StoreUnavailable:
                yield _WAITING
                await asyncio.sleep(OUTAGE_S)
        if place is None:
            return
        yield self._hello(place, reset)
        told, told_at = place, self._now()
        while not self.closed:
            news = self.news
            try:
                chunk, place = await self._next(place, subject, whole)
            except Gone:
                place = place if self._head is None else self._head
                chunk = self._hello(place, True)
            except StoreUnavailable:
                chunk = _WAITING
                await asyncio.sleep(OUTAGE_S)
            if not chunk and self._now() - told_at >= self.ping_s:
                # An id without data moves the reader's place and shows nothing: with a filter it would stay far back.
                chunk = KEEPALIVE_COMMENT if told == place else format_sse_event(comment="ping", id=str(place))
            if chunk:
                yield chunk
                told, told_at = place, self._now()
            elif self._head is None or place >= self._head:
                await self.heard(news, told_at + self.ping_s - self._now())

    async def _place(self, after: int | None, subject: str | None) -> tuple[int, bool]:
        """The place where a reader begins, and whether that is not where it left off: what follows is gone, or never
        was here."""
        assert self._head is not None, "the database has answered"
        if after is None:
            return self._head, False
        if after > self._head:
            # It may have read elsewhere what we have not read yet; else the database is another one by now.
            newest = await self._ask(self.events.last_event_seq, limiter=self._catch_up_threads)
            return (after, False) if after <= newest else (self._head, True)
        gone = 0 < after < self._since and await self._is_gone(after, subject)
        return (self._head, True) if gone else (after, False)

    async def _is_gone(self, place: int, subject: str | None) -> bool:
        """Return whether anything of what followed ``place`` was removed: of the run, or the very next event of all."""
        limiter = self._catch_up_threads
        if subject is None:
            # Every number was given to an event, so one that is missing was removed.
            following = await self._ask(self.events.events_after, place, 1, None, limiter=limiter)
            return not following or following[0].seq != place + 1
        run_id, _ = _about(subject)
        if run_id is None:  # events of managers stay as long as these do
            return False
        through = pruned_through(await self._ask(self.runs.properties, run_id, limiter=limiter))
        return through is not None and place < through

    def _hello(self, place: int, reset: bool) -> bytes:
        data = {"server_time": self.clock(), "version": release(), "seq": place, "reset": reset}
        return format_sse_event(data_str=to_json(data).decode(), event="hello", id=str(place), retry=RETRY_MS)

    async def _next(self, place: int, subject: str | None, whole: bool) -> tuple[bytes, int]:
        """The bytes that follow ``place``, at most about ``CHUNK`` of them, and the place after them.

        Raises ``Gone`` when it has to be ``whole`` and is not.
        """
        head = self._head
        if head is None or place >= head:
            return b"", place
        if place < self._since:
            return await self._catch_up(place, head, subject, whole)
        known = self._given.get((place, subject))
        if known is None:
            if len(self._given) >= GIVEN:
                self._given.clear()
            first = bisect.bisect_right(self._ring, place, key=lambda frame: frame.seq)
            known = self._given[place, subject] = _cut(self._ring, first, subject, head)
        return known

    async def _catch_up(self, place: int, head: int, subject: str | None, whole: bool) -> tuple[bytes, int]:
        limiter = self._catch_up_threads
        found = await self._ask(self.events.events_after, place, CATCH_UP_PAGE, *_about(subject), limiter=limiter)
        full = len(found) == CATCH_UP_PAGE
        if whole and subject is None:
            found = [event for number, event in enumerate(found, place + 1) if event.seq == number]
            full = True  # up to the last of them, and no further
            if not found:
                raise Gone
        # Asked after the reading: what was removed in between is marked by now.
        elif whole and await self._is_gone(place, subject):
            raise Gone
        frames = [encode(event) for event in found]
        # A page that is not full holds everything up to the event that was known to be there before it was read.
        end = max(head, frames[-1].seq) if frames else head
        return _cut(frames, 0, None, frames[-1].seq if full else end)

    # --- the reading

    async def run(self) -> None:
        """Read while there are readers, until the feed closes."""
        # Anew for each loop that the app is served in; readers may be there already.
        self.closed, self._wanted = False, asyncio.Event()
        if self.readers:
            self._wanted.set()
        self._forget()
        await Loop("the reading of the outbox", IDLE_S, retry_s=(2 * IDLE_S, TROUBLE_S)).run(self._turn)

    async def _turn(self) -> float:
        """One reading, as soon as there is a reader; the seconds to the next one."""
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
        """One page of news; whether there may be more at once."""
        if self._head is None:
            self._head = self._since = await self._ask(self.events.last_event_seq, limiter=self._thread)
            self._heard_at = self._now()
            self._fresh = True
            self._tell()
            return False
        events = await self._ask(self.events.events_after, self._head, PAGE, None, limiter=self._thread)
        self._heard_at = self._now()
        self._fresh = bool(events)
        if events:
            self._keep(events)
            self._tell()
        return len(events) == PAGE

    def _keep(self, events: list[Event]) -> None:
        now = self.clock()
        for event in events:
            frame = encode(event)
            self._ring.append(frame)
            self._ring_bytes += len(frame.wire)
            self.metrics.stream_lag.observe(max((now - event.created_at) / timedelta(seconds=1), 0.0))
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
        self._fresh, self._pause = False, IDLE_S
        self._ring, self._ring_bytes, self._since = [], 0, 0
        self._given.clear()

    # --- waiting

    def _tell(self) -> None:
        """Wake whoever waits; who waits next waits for the next news."""
        self.news.set()
        self.news = asyncio.Event()

    async def heard(self, news: asyncio.Event, within_s: float) -> bool:
        """Wait for news, or for the end of the feed; ``False`` when neither came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(within_s, 0.0)):
                await news.wait()
                return True
        return False

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _ask(self, question: Callable[..., T], *args: object, limiter: CapacityLimiter) -> T:
        return await to_thread.run_sync(lambda: question(*args), abandon_on_cancel=True, limiter=limiter)


def _about(subject: str | None) -> tuple[int | None, str | None]:
    """The run that a subject names, or whatever else it is, as the database is asked for it."""
    kind, _, rest = (subject or "").partition("/")
    return (int(rest), None) if kind == "runs" else (None, subject)


def _cut(frames: list[Frame], first: int, subject: str | None, end: int) -> tuple[bytes, int]:
    """As many frames as make a chunk, and the place after them; ``end`` is the place when none is left."""
    wires: list[bytes] = []
    size, last = 0, end
    for frame in frames[first:] if first else frames:
        if subject is None or frame.subject == subject:
            if wires and size + len(frame.wire) > CHUNK:
                return b"".join(wires), last
            wires.append(frame.wire)
            size += len(frame.wire)
        last = frame.seq
    return b"".join(wires), end
