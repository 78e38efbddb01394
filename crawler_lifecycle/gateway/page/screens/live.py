"""What is on somebody's screen, read again for all screens at once.

A quiet look at the cluster writes no event, so every row that is watched is compared every two seconds: one statement,
whatever the number of readers, and a row that changed is rendered once. Events only make that sooner. Readers have no
queues: each keeps the number of the last change that it was given, and asks for those after it.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi.sse import format_sse_event
from pydantic_core import to_json

from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.gateway.api.answers import Run
from crawler_lifecycle.gateway.api.paging import RunFilters
from crawler_lifecycle.gateway.api.routes.runs import RunViews
from crawler_lifecycle.gateway.page.parts.rendering import html
from crawler_lifecycle.gateway.streams.feed import Feed, build
from crawler_lifecycle.ports.runs import RunRow, RunTasks
from crawler_lifecycle.store.runs.reads import RunReader

from .topics import Topics

#: Seconds between two readings of everything that is watched, and between two words about how old it is.
EVERY_S, TICK_S = 2.0, 5.0
#: Seconds between two readings of what no event tells of.
TOPICS_S = 5.0
#: Rows that one statement compares, and rows that one stream may watch.
ROWS_MAX, WATCHED_MAX = 2000, 500
#: Runs that began lately and are kept for lists, and how many are asked for at once; who missed more reads anew.
BEGUN_MAX, BEGUN_PAGE = 200, 20
#: The page of a run rests for so many times as long as it took to render, so that a large one cannot keep us busy.
REST = 10.0
#: Between a page and its stream runs may begin; the clocks of gateways differ by less than this.
SLACK = timedelta(seconds=10)
#: For so long a page that was rendered says truly what is on its screen; who comes later gets everything.
SEEN_FOR = timedelta(seconds=30)

Part = tuple[str, bool]
"""A part of a run's page: its id, and whether it has what may be pressed."""

_UNCHANGED = re.compile(r'(?<=">)[^<]*(?=</time>)|name="key" value="[0-9a-f]{32}"')
"""What differs between two renderings of the same: words for ages, and keys of forms."""
_MARK = 8
"""Characters of a mark."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one screen shows."""

    runs: Collection[int]
    since: datetime
    """When it was rendered."""
    acts: bool
    """Whether its reader may press something."""
    page: bool = False
    """Whether it is the page of a single run."""
    filters: RunFilters | None = None
    """Of a list that begins with the newest run: new ones that fit come on top."""
    about: str | None = None
    """What else it shows, as events name it: ``graphs/nightly``, or ``graphs`` for all of them."""
    seen: str = ""
    """Marks, one after the other, of the rows or parts that it was rendered with: what is still so is not sent."""


def row_mark(run: Run, tasks: RunTasks | None) -> str:
    """What tells a row on the screen from another one of the same run."""
    counts = [] if tasks is None else sorted(tasks.counts.positive().items())
    return _mark(repr({**run.__dict__, "verified_ago_s": None, "waiting": run.waits, "counts": counts}))


def part_mark(name: str, text: str) -> str:
    """The same of a part of a run's page."""
    return _mark(f"{name} {_UNCHANGED.sub('', text)}")


def _mark(text: str) -> str:
    digest = zlib.crc32(text.encode("utf-8", "surrogatepass"))
    return f"{digest:08x}"


@dataclass(slots=True)
class _Watched:
    """One run that somebody watches."""

    row: RunRow
    tasks: RunTasks | None = None
    """``None``: they are to be counted again. A change of theirs is told, or comes with a change of the row."""
    key: object = None
    """What its row on the screen is made of."""
    version: int = 0
    mark: str | None = None
    rendered: dict[bool, str] = field(default_factory=dict)
    parts: dict[Part, tuple[int, str]] = field(default_factory=dict)
    part_marks: dict[Part, str] = field(default_factory=dict)
    dirty: bool = True
    """Whether its page is to be rendered again."""
    rests_until: float = 0.0


class _Screen:
    """What one screen shows, and what of it was there before the stream."""

    def __init__(self, wanted: Wanted, now: datetime) -> None:
        self.wanted = wanted
        marks = wanted.seen if now - wanted.since < SEEN_FOR else ""
        self._seen = {marks[n : n + _MARK] for n in range(0, len(marks), _MARK)}
        self._asked: set[int | str] = set()

    def lacks(self, what: int | str, mark: str) -> bool:
        """Whether this row or part has to be sent. Its mark counts once: it may go, and come back."""
        if what in self._asked or not self._seen:
            return True
        self._asked.add(what)
        return mark not in self._seen


class Live:
    """Reads what is watched, renders what changed, and gives each reader what it has not seen."""

    def __init__(
        self,
        runs: RunReader,
        views: RunViews,
        feed: Feed,
        parts: Callable[[RunRow], Awaitable[Mapping[Part, str]]],
        strip: Callable[[], Awaitable[str]],
        clock: Callable[[], datetime],
        topics: Topics,
        *,
        every_s: float = EVERY_S,
        tick_s: float = TICK_S,
    ) -> None:
        self._runs, self._views, self._feed, self._clock = runs, views, feed, clock
        self._parts, self._render_strip = parts, strip
        #: How everything stands, above lists: since which version, and the HTML.
        self._strip = (0, "")
        self._every_s, self._tick_s = every_s, tick_s
        #: What no event tells of: how it stood when it was asked last, and when that was.
        self._topics, self._stood = topics, dict[str, object]()
        self._stood_at = float("-inf")
        self._moved_topics: dict[str, int] = {}
        self._about: Counter[str] = Counter()
        self._readers: Counter[int] = Counter()
        self._page_readers: Counter[int] = Counter()
        self._lists = self._streams = 0
        #: By run; ``None`` for one that does not exist.
        self._watched: dict[int, _Watched | None] = {}
        #: The newest runs, while somebody looks at a list; ``None``: not read yet.
        self._begun: list[RunRow] | None = None
        self._version = 0
        #: By what events were about, and by the kinds of that: the version of the newest one.
        self._moved: dict[str, int] = {}
        self._place, self._read_at = 0, 0.0
        self._as_of: datetime | None = None
        self._news, self._wanted = asyncio.Event(), asyncio.Event()
        self._rendering: asyncio.Task[None] | None = None
        # A thread of its own: what is read for all waits for no request, nor any request for it.
        self._thread = CapacityLimiter(1)

    # --- reading

    async def run(self) -> None:
        """Read while somebody watches, until this is cancelled."""
        self._wanted, self._rendering = asyncio.Event(), None
        if self._streams:
            self._wanted.set()
        try:
            await Loop("reading what is on screens", self._every_s, retry_s=(1.0, self._every_s)).run(self._turn)
        finally:
            if self._rendering is not None:
                self._rendering.cancel()

    def close(self) -> None:
        """Wake every reader: the feed has closed, and with it they end."""
        self._tell()

    async def _turn(self) -> float:
        await self._wanted.wait()
        news, now, before = self._feed.news, self._now(), self._version
        as_of = self._clock()  # when this reading began: what is read later is no older
        self._place, subjects = self._feed.changed(self._place)
        told = {int(one[5:]) for one in subjects or () if one.startswith("runs/")}
        everything = subjects is None or now - self._read_at >= self._every_s
        self._note_moved(subjects or set())
        await self._read_unknown()
        watched = [one for run_id, one in self._watched.items() if one and (everything or run_id in told)]
        for one in watched:
            if one.row.run_id in told:
                one.dirty, one.tasks = True, None
        await self._compare(watched)
        if self._lists and (everything or self._begun is None or max(told, default=0) > self._top):
            await self._look_for_new()
        if self._rendering is not None and self._rendering.done():
            self._rendering.result()  # what went wrong is logged as any other failure of a turn
        if self._rendering is None or self._rendering.done():
            # Beside this: a large page must not keep anybody's rows waiting.
            self._rendering = asyncio.create_task(self._render_pages())
        if everything:
            await self._compare_topics()
            if (strip := await self._render_strip()) != self._strip[1]:
                self._version += 1
                self._strip = self._version, strip
            self._read_at, self._as_of = now, as_of
        if self._version != before:
            self._tell()
        await self._feed.heard(news, self._every_s - (self._now() - now))
        return 0.0

    def _note_moved(self, subjects: set[str]) -> None:
        others = [one for one in subjects if not one.startswith("runs/")]
        if others:
            self._version += 1
            if len(self._moved) >= ROWS_MAX:
                self._moved = {name: version for name, version in self._moved.items() if "/" not in name}
            self._moved |= {name: self._version for one in others for name in (one, one.partition("/")[0])}

    async def _compare_topics(self) -> None:
        """What stands otherwise than before, of what pages are about and no event tells of, has moved."""
        if self._now() - self._stood_at < TOPICS_S:
            return
        self._stood_at = self._now()
        for name in sorted(self._topics.keys() & self._about.keys()):
            try:
                stands = await self._topics[name]()
            except LifecycleError as error:
                stands = str(error)  # the page says it, too
            # The first time in any case: something may have happened since the page was made.
            if name not in self._stood or self._stood[name] != stands:
                self._version += 1
                self._moved_topics[name] = self._version
            self._stood[name] = stands

    @property
    def _top(self) -> int:
        return self._begun[0].run_id if self._begun else 0

    async def _read_unknown(self) -> None:
        unknown = set(self._readers) - set(self._watched)
        if unknown:
            found = {row.run_id: row for row in await self._ask(self._read, unknown)}
            self._watched |= {one: _Watched(found[one]) if one in found else None for one in unknown}

    def _read(self, ids: set[int]) -> list[RunRow]:
        """These runs; most of them stand together in a list."""
        listed = self._runs.list_runs(before_run_id=max(ids) + 1, limit=BEGUN_MAX)
        found = {row.run_id: row for row in listed if row.run_id in ids}
        return [*found.values(), *(row for one in sorted(ids - set(found)) if (row := self._runs.get_run(one)))]

    async def _compare(self, watched: list[_Watched]) -> None:
        """Read what changed of these runs, and count a version of each that is another one on the screen."""
        for first in range(0, len(watched), ROWS_MAX):
            part = watched[first : first + ROWS_MAX]
            changed = {row.run_id: row for row in await self._ask(self._runs.changed_runs, [one.row for one in part])}
            for one in part:
                if one.row.run_id in changed:
                    one.row, one.tasks = changed[one.row.run_id], None
            if unknown := [one for one in part if one.tasks is None]:
                tasks = await self._ask(self._views.tasks_of, [one.row for one in unknown])
                for one in unknown:
                    one.tasks = tasks[one.row.run_id]
            for one, key in zip(part, await self._ask(self._keys, part), strict=True):
                if key != one.key:
                    self._version += 1
                    one.key, one.version, one.rendered, one.mark, one.dirty = key, self._version, {}, None, True

    def _keys(self, watched: Iterable[_Watched]) -> list[object]:
        """The rows, their tasks, and what changes about them with time alone."""
        now = self._clock()
        runs = [(one, self._views.of(one.row, now, one.tasks)) for one in watched]
        return [(one.row, one.tasks, run.stale, run.blocked, run.waits) for one, run in runs]

    async def _look_for_new(self) -> None:
        """Read the runs that began since those that are known."""
        known = self._begun or []
        rows: list[RunRow] = await self._ask(self._newest, BEGUN_PAGE if known else BEGUN_MAX)
        if known and rows and rows[-1].run_id > known[0].run_id:
            rows, known = await self._ask(self._newest, BEGUN_MAX), []
        fresh = [row for row in rows if row.run_id > self._top or not known]
        if fresh or self._begun is None:
            self._begun = [*fresh, *known][:BEGUN_MAX]
            self._version += 1

    def _newest(self, limit: int) -> list[RunRow]:
        return self._runs.list_runs(limit=limit)

    async def _render_pages(self) -> None:
        for run_id in list(self._page_readers):
            one = self._watched.get(run_id)
            if one is None or not one.dirty or self._now() < one.rests_until:
                continue
            one.dirty, began = False, self._now()
            for part, text in (await self._parts(one.row)).items():
                if part in one.parts and one.parts[part][1] == text:
                    continue
                mark = part_mark(part[0], text)
                if mark != one.part_marks.get(part):
                    self._version += 1
                    one.parts[part], one.part_marks[part] = (self._version, text), mark
            one.rests_until = self._now() + REST * (self._now() - began)
            self._tell()

    # --- readers

    async def stream(self, wanted: Wanted, last: int | None) -> AsyncGenerator[bytes, None]:
        """The wire: ``hello``, what is watched as it is now, and then what changes, until the feed closes.

        ``last`` is the id that a client came back with. ``reset`` tells it to read its page anew: what began meanwhile
        is more than is kept, or belongs to another database.
        """
        ids, newest = set(wanted.runs), last
        screen = _Screen(wanted, self._clock())
        self._enter(ids, wanted)
        try:
            yield self._event("hello")
            version, ticked, moved = 0, self._now(), -1
            while not self._feed.closed:
                news, now = self._news, self._version
                if self._missed(wanted, newest):
                    yield self._event("reset")
                    return
                begun = self._begun_for(wanted, ids, newest)
                newest = self._top if self._begun is not None and wanted.filters else newest
                text = "".join([*self._tops(begun, wanted), *self._changes(ids, screen, version)])
                self._watch(ids, begun)
                version = now
                if wanted.about is not None and (latest := self._moved_about(wanted.about)) > moved:
                    # The first time in any case: something may have happened before there was a stream.
                    moved = latest
                    yield self._event("moved")
                if text:
                    yield format_sse_event(data_str=text, id=None if newest is None else str(newest))
                elif self._now() - ticked >= self._tick_s:
                    yield self._event("tick")
                    ticked = self._now()
                else:
                    await self._feed.heard(news, ticked + self._tick_s - self._now())
        finally:
            self._leave(ids, wanted)

    def _moved_about(self, about: str) -> int:
        """The version in which this, or all of its kind that no event tells of, moved last."""
        return max(self._moved.get(about, 0), self._moved_topics.get(about.partition("/")[0], 0))

    def _event(self, name: str) -> bytes:
        """How it stands: the time here, and of when what was sent is."""
        data = {"now": self._clock(), "as_of": self._as_of, "build": build()}
        return format_sse_event(data_str=to_json(data).decode(), event=name, retry=1000 if name == "hello" else None)

    def _missed(self, wanted: Wanted, newest: int | None) -> bool:
        if wanted.filters is None or newest is None or self._begun is None:
            return False
        return newest > self._top or (len(self._begun) >= BEGUN_MAX and newest < self._begun[-1].run_id)

    def _begun_for(self, wanted: Wanted, ids: set[int], newest: int | None) -> list[RunRow]:
        """Runs that belong on top of this list and are not on it, oldest first."""
        if wanted.filters is None:
            return []
        since = wanted.since - SLACK
        fresh = [r for r in self._begun or [] if (r.created_at >= since if newest is None else r.run_id > newest)]
        return [row for row in reversed(fresh) if row.run_id not in ids and fits(row, wanted.filters)]

    def _tops(self, begun: list[RunRow], wanted: Wanted) -> Iterator[str]:
        for row in begun:
            yield f'<hx-partial hx-target="#runs" hx-swap="afterbegin">{self._html(row, wanted.acts)}</hx-partial>'

    def _changes(self, ids: set[int], screen: _Screen, version: int) -> Iterator[str]:
        wanted = screen.wanted
        if self._strip[0] > version and not wanted.page and wanted.about is None:
            yield f'<hx-partial hx-target="#strip" hx-swap="outerMorph">{self._strip[1]}</hx-partial>'
        for run_id in sorted(ids):
            one = self._watched.get(run_id)
            if one is None:
                continue
            if wanted.page:
                for (name, acts), (changed, text) in one.parts.items():
                    if changed > version and acts == wanted.acts and screen.lacks(name, one.part_marks[name, acts]):
                        yield f'<hx-partial hx-target="#{name}" hx-swap="outerMorph">{text}</hx-partial>'
            elif one.version > version:
                one.mark = one.mark or row_mark(self._views.of(one.row, self._clock(), one.tasks), one.tasks)
                if not screen.lacks(run_id, one.mark):
                    continue
                text = one.rendered.get(wanted.acts) or self._html(one.row, wanted.acts, one.tasks)
                one.rendered[wanted.acts] = text
                yield f'<hx-partial hx-target="#run-{run_id}" hx-swap="outerMorph">{text}</hx-partial>'

    def _html(self, row: RunRow, acts: bool, tasks: RunTasks | None = None) -> str:
        now, counts = self._clock(), {} if tasks is None else tasks.counts.positive()
        run = self._views.of(row, now, tasks)
        return html("run_row.html", run=run, counts=counts, now=now, acts=acts, chosen=False)

    def _enter(self, ids: set[int], wanted: Wanted) -> None:
        self._feed.enter("page")
        self._streams += 1
        self._lists += wanted.filters is not None
        self._readers.update(ids)
        if wanted.page:
            self._page_readers.update(ids)
        if wanted.about is not None:
            self._about[wanted.about.partition("/")[0]] += 1
        self._wanted.set()

    def _watch(self, ids: set[int], begun: list[RunRow]) -> None:
        """A list has these on top from now on; what no longer has a place on it is not watched any more."""
        for row in begun:
            ids.add(row.run_id)
            self._readers[row.run_id] += 1
        while len(ids) > WATCHED_MAX:
            oldest = min(ids)
            ids.discard(oldest)
            self._drop(self._readers, oldest)

    def _leave(self, ids: set[int], wanted: Wanted) -> None:
        self._feed.leave("page")
        self._streams -= 1
        self._lists -= wanted.filters is not None
        for run_id in ids:
            self._drop(self._readers, run_id)
            if wanted.page:
                self._drop(self._page_readers, run_id)
        if wanted.about is not None:
            self._about -= Counter([kind := wanted.about.partition("/")[0]])
            if kind not in self._about:
                self._stood.pop(kind, None)
        if not self._lists:
            self._begun = None
        if not self._streams:
            self._wanted.clear()

    def _drop(self, readers: Counter[int], run_id: int) -> None:
        readers[run_id] -= 1
        if readers[run_id] <= 0:
            del readers[run_id]
            if readers is self._readers:
                self._watched.pop(run_id, None)

    # --- waiting

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _ask(self, question: Callable[..., T], *args: object) -> T:
        return await to_thread.run_sync(lambda: question(*args), abandon_on_cancel=True, limiter=self._thread)


def fits(row: RunRow, filters: RunFilters) -> bool:
    """Whether a run belongs on a list with these filters, as ``list_runs`` decides it."""
    same = ("stage", "crawler", "trigger", "outcome", "flow_id", "parent")
    tags = row.request.get("tags")
    return (
        all(getattr(filters, name) in (None, getattr(row, name)) for name in same)
        and (not filters.status or row.status in filters.status)
        and set(filters.tag) <= set(tags if isinstance(tags, list) else ())
        and (filters.created_from is None or row.created_at >= filters.created_from)
        and (filters.created_until is None or row.created_at < filters.created_until)
    )
