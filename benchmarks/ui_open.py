"""What stays open: a log that prints faster than anybody reads, and a list that is left open for
half a day.

Half a day is played by its number of updates: a list hears of how everything stands at most every
two seconds, so in twelve hours 21,600 messages come, each with rows. They are real ones of the
gateway, repeated with other numbers by a stand-in of its stream, as fast as the page takes them.
What a night does to connections is played apart, with the real stream: it is cut many times, and
the gateway is down for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from benchmarks.gateway import quantile
from benchmarks.ui_browser import (
    MEGABYTE,
    Visit,
    answers_within,
    middle,
    most,
    renderers,
    resident,
    visiting,
)
from benchmarks.ui_harness import UiHarness, Writer
from benchmarks.ui_live import NOTE_ROWS, Screens

LOG_S, LOG_RATE, ANSWER_MS = 60.0, 10 * MEGABYTE, 100.0
#: Where the runner of a task begins a new file.
LOG_MAX = 50 * MEGABYTE
LINE = b"2026-11-23 06:00:00 [scrapy.core.engine] DEBUG: Crawled (200) <GET https://site.example/%08d> (referer: None)\n"
MESSAGES, PIECES, ROWS_EACH = 21_600, 6, 3
CUTS, AWAY_S, BACK_S = 40, 20.0, 120.0
STREAMS, AT_ONCE = 1_000, 50


# --- a log ----------------------------------------------------------------------------------------


async def log(harness: UiHarness) -> None:
    """Print the figures of a log of ten megabytes a second."""
    run = harness.new_large_run(1)
    folder = harness.folder / "cluster" / "tasks" / f"{run.run_id}-{run.run_uid}" / "0" / "1"
    folder.mkdir(parents=True)
    path = folder / "log"
    path.write_bytes(LINE % 0)
    async with visiting(
        harness.browser, f"{harness.gateway.url}/runs/{run.run_id}/log", until="#log"
    ) as visit:
        at_rest = await answers_within(visit.page, 3)
        since, over = await visit.now(), threading.Event()
        printing = asyncio.create_task(asyncio.to_thread(_print, str(path), over))
        memory, heaps, answers = [], [], []
        try:
            for _ in range(6):
                answers += await answers_within(visit.page, LOG_S / 6)
                memory.append(await renderers(harness.browser))
                heaps.append(await visit.heap())
            lines = await visit.page.evaluate(
                "[...document.querySelectorAll('#log > div')].reduce((n, one) => n + one.lines, 0)"
            )
            tasks, said = await visit.tasks(since), await visit.page.text_content("#state")
        finally:
            over.set()
            printed = await printing
    print(
        f"a log of {printed / LOG_S / MEGABYTE:.1f} MB/s for {LOG_S:g} s: the page answers "
        "within p50 ",
        end="",
    )
    print(
        f"{quantile(answers, 0.5):.0f}, p99 {quantile(answers, 0.99):.0f}, at most "
        f"{most(answers):.0f} ms ",
        end="",
    )
    print(
        f"(target: <= {ANSWER_MS:g}; before it prints p50 {middle(at_rest):.0f}, at most "
        f"{most(at_rest):.0f}); ",
        end="",
    )
    print(f"longest task {most(tasks):.0f} ms, {len(tasks)} above 50 ms")
    print(
        f"  memory every {LOG_S / 6:g} s: heap {_series(heaps)} MB, processes "
        f"{_series(memory)} MB; ",
        end="",
    )
    print(
        f"{lines:,} lines are kept; it says: {said}; gateway "
        f"{resident(harness.gateway.process.pid):.0f} MB",
        flush=True,
    )


def _print(path: str, over: threading.Event) -> int:
    """Write as a crawler with too much output does. Return the number of bytes."""
    block = b"".join(LINE % n for n in range(LOG_RATE // 10 // len(LINE)))
    written, began = 0, time.perf_counter()
    while not over.is_set():
        with open(path, "ab", buffering=0) as file:
            while not over.is_set() and file.tell() < LOG_MAX:
                file.write(block)
                written += len(block)
                over.wait(max(0.0, began + written / LOG_RATE - time.perf_counter()))
        os.replace(path, f"{path}.1")
    return written


# --- half a day -----------------------------------------------------------------------------------


class Between:
    """Sits between browser and gateway: it can cut connections, and replace the gateway's stream."""

    def __init__(self, url: str) -> None:
        self.port: int | None = urlsplit(url).port
        """Of the gateway; ``None`` while it is down."""
        self.stand_in: AsyncIterator[bytes] | None = None
        self.streams = 0
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the browser."""
        self._open.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            self._open.discard(writer)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.port is None:
            return
        theirs, ours = await asyncio.open_connection("127.0.0.1", self.port)
        self._open.add(ours)
        back = asyncio.create_task(_copy(theirs, writer))
        try:
            # A browser sends another request only after a response, so a request is at the
            # beginning of the data.
            while head := await reader.read(65536):
                if head.startswith(b"GET /page/events"):
                    self.streams += 1
                    if self.stand_in is not None:
                        back.cancel()  # the gateway closes idle connections
                        writer.write(
                            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
                        )
                        async for piece in self.stand_in:
                            writer.write(piece)
                            await writer.drain()
                        return
                ours.write(head)
                await ours.drain()
        finally:
            back.cancel()
            self._open.discard(ours)
            ours.close()

    def cut(self) -> None:
        """End every connection, as a proxy does that is restarted."""
        for writer in list(self._open):
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def _between(url: str) -> AsyncIterator[tuple[Between, str]]:
    between = Between(url)
    server = await asyncio.start_server(between.serve, "127.0.0.1", 0)
    try:
        yield between, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        between.cut()
        server.close()


async def half_a_day(harness: UiHarness) -> None:
    """Print the figures of a page that is left open."""
    writer = Writer(harness.store, [harness.new_run() for _ in range(50)])
    await _updates(harness)
    await _cuts(harness, writer)
    await _comings(harness)


async def _updates(harness: UiHarness) -> None:
    told: list[bytes] = []
    heaps, nodes, memory = [], [], []
    async with _between(harness.gateway.url) as (between, url):
        async with visiting(harness.browser, url + "/runs", until="tr[id^=run-]") as first:
            path = str(await first.page.get_attribute("#live", "data-stream"))
        told = await _recorded(
            harness.gateway.url, re.sub("(seen=.{8})[^&]*", r"\1", path)
        )  # of the frame alone: all rows arrive
        rows = told[-1]
        began = time.perf_counter()
        visit_ready = asyncio.Event()
        visits: list[Visit] = []

        async def messages() -> AsyncIterator[bytes]:
            yield told[0]
            await visit_ready.wait()
            for n in range(MESSAGES):
                if n % (MESSAGES // PIECES) == 0:
                    await _taken(visits[0], n)
                    heaps.append(await visits[0].heap())
                    nodes.append(await visits[0].nodes())
                    memory.append(await renderers(harness.browser))
                yield _renumbered(rows, n)
                if n % 20 == 19:  # what was sent is only what is shown, and a little more
                    await _taken(visits[0], n - 200)
            await _taken(visits[0], MESSAGES)
            heaps.append(await visits[0].heap())
            nodes.append(await visits[0].nodes())
            memory.append(await renderers(harness.browser))
            over.set()
            await asyncio.sleep(3600)

        over = asyncio.Event()
        between.stand_in = messages()
        async with visiting(harness.browser, url + "/runs", COUNT, until="tr[id^=run-]") as visit:
            visits.append(visit)
            visit_ready.set()
            await asyncio.wait_for(over.wait(), 600)
            tasks = await visit.tasks()
    seconds = time.perf_counter() - began
    print(
        f"twelve hours as {MESSAGES:,} messages with {ROWS_EACH} rows and the strip each, in "
        f"{seconds:.0f} s: ",
        end="",
    )
    print(
        f"heap {_series(heaps)} MB, nodes {_series(nodes)}, processes {_series(memory)} MB; ",
        end="",
    )
    print(f"longest task {most(tasks):.0f} ms", flush=True)


#: Counts the messages of the stream that were applied.
COUNT = (
    "window.told = 0; document.addEventListener('htmx:sse:after:message', () => { told += 1; });"
)


async def _taken(visit: Visit, count: int) -> None:
    await visit.page.wait_for_function(f"() => told >= {count}", timeout=60_000)


async def _recorded(url: str, path: str) -> list[bytes]:
    """Return the first events of this stream, up to the one with the rows."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port, limit=MEGABYTE)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{address.port}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        told = [await reader.readuntil(b"\n\n")]
        while b'hx-target="#run-' not in told[-1]:
            told.append(await reader.readuntil(b"\n\n"))
        return told
    finally:
        writer.close()


_PARTIAL = re.compile(rb"data: <hx-partial.*?</hx-partial>|<hx-partial.*?</hx-partial>", re.DOTALL)


def _renumbered(rows: bytes, n: int) -> bytes:
    """Return the message of the strip and of some rows, with other numbers in them."""
    parts = [found[0].removeprefix(b"data: ") for found in _PARTIAL.finditer(rows)]
    strip = [part for part in parts if b'"#strip"' in part]
    many = [part for part in parts if b'"#run-' in part]
    chosen = strip + [many[(n * ROWS_EACH + one) % len(many)] for one in range(ROWS_EACH)]
    text = (
        b"".join(chosen)
        .replace(b'<td class="n">', b'<td class="n">%d ' % n)
        .replace(b" ago", b" ago %d" % n)
    )
    return b"data: " + text + b"\n\n"


async def _cuts(harness: UiHarness, writer: Writer) -> None:
    """Check that a change reaches the screen after each cut; then the gateway is down for a while."""
    waits: list[float] = []
    async with _between(harness.gateway.url) as (between, url):
        async with visiting(
            harness.browser, url + "/runs", NOTE_ROWS, until="tr[id^=run-]"
        ) as visit:
            port = between.port
            for n in range(CUTS):
                await asyncio.sleep(0.1 * (n % 7))
                between.cut()
                waits.append(await _shown(visit, writer))
            between.port = None
            between.cut()
            await asyncio.sleep(AWAY_S)
            words = await visit.page.text_content("#as-of")
            between.port = port
            back = await _shown(visit, writer)
        streams = between.streams
    print(
        f"the stream is cut {CUTS} times: a change is on the screen after p50 "
        f"{quantile(waits, 0.5):.1f} s, ",
        end="",
    )
    print(
        f"at most {most(waits):.1f} s; the gateway is down for {AWAY_S:g} s: the page says "
        f"“{words}”, ",
        end="",
    )
    print(
        f"{back:.1f} s after it is back the next change is there; {streams} streams in all",
        flush=True,
    )


async def _shown(visit: Visit, writer: Writer) -> float:
    """Change a row. Return the seconds until the screen has it."""
    await asyncio.to_thread(writer.change)
    run_id, pages = max(writer.committed, key=lambda one: one[1])
    began = time.perf_counter()
    script = f"() => rowTimes.some(one => one[0] === {run_id} && one[1] === {pages})"
    await visit.page.wait_for_function(script, timeout=BACK_S * 1000)
    return time.perf_counter() - began


async def _comings(harness: UiHarness) -> None:
    """Show and hide tabs, so that streams open and close."""
    pid = harness.gateway.process.pid
    async with visiting(
        harness.browser, harness.gateway.url + "/runs", until="tr[id^=run-]"
    ) as visit:
        path = str(await visit.page.get_attribute("#live", "data-stream"))
    memory = []
    for _ in range(5):
        for _ in range(STREAMS // AT_ONCE // 4):
            screens = Screens(harness.gateway.url, path)
            await screens.add(AT_ONCE)
            await screens.close()
        memory.append(resident(pid))
    print(
        f"{STREAMS * 5 // 4:,} streams come and go: gateway {_series(memory)} MB (the first "
        "quarter warms up)",
        flush=True,
    )


def _series(values: list[float] | list[int]) -> str:
    return " ".join(f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values)
