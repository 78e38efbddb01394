"""Rows that change while many people watch: their lateness, and the cost to the gateway and the
database.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from html import unescape
from urllib.parse import urlsplit

import httpx
import sqlalchemy as sa

from benchmarks.gateway import quantile
from benchmarks.throughput import _cpu
from benchmarks.ui_browser import NOTE_PRESSES, most, resident, visiting
from benchmarks.ui_harness import UiHarness, Writer
from crawler_lifecycle.store.runs.tables import run_history

ROWS, RATE, SETTLE_S, SECONDS = 50, 20.0, 4.0, 20.0
SCREENS = (1, 10, 100)
LATE_S, CORES = 1.0, 0.6
#: Many pages on one gateway: half of them show the list, each of the others a different run.
PAGES, LIVE_RUNS, MANY_CORES, MORE_MB = 200, 1000, 0.3, 150.0
PRESS_MS = 100.0
#: A row with its counters; thousands are separated by thin spaces.
_PAGES = re.compile(rb'<tr id="run-(\d+)"|data-title="Pages"[^>]*>([0-9\xe2\x80\xaf]+)</td>')
#: Records when every row whose number of pages changes is painted.
NOTE_ROWS = """
window.rowTimes = [];
addEventListener('DOMContentLoaded', () => {
  const shown = new Map();
  new MutationObserver(() => requestAnimationFrame(() => {
    const now = Date.now() / 1000;
    for (const row of document.querySelectorAll('tr[id^=run-]')) {
      const pages = parseInt(row.querySelector('[data-title=Pages]').textContent.replace(/\\u202f/g, ''));
      if (!pages || shown.get(row.id) === pages) continue;
      shown.set(row.id, pages);
      rowTimes.push([+row.id.slice(4), pages, now]);
    }
  })).observe(document.querySelector('.list'), {subtree: true, childList: true, characterData: true, attributes: true});
});
"""

Seen = tuple[int, int, float]


class Screens:
    """Connections that read a page's stream as browsers do, and what they saw."""

    def __init__(self, url: str, path: str) -> None:
        address = urlsplit(url)
        self._port, self._path = address.port, path
        self._tasks: list[asyncio.Task[None]] = []
        self.seen: list[list[Seen]] = []
        self.bytes = 0

    async def add(self, count: int) -> None:
        """Open this number, and wait until each has its ``hello``."""
        ready = [asyncio.Event() for _ in range(count)]
        for event in ready:
            self.seen.append([])
            self._tasks.append(asyncio.create_task(self._read(event, self.seen[-1])))
        for event in ready:
            await asyncio.wait_for(event.wait(), 60)

    async def _read(self, ready: asyncio.Event, seen: list[Seen]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode())
        rest, run_id = b"", 0
        try:
            while data := await reader.read(262_144):
                now = time.time()
                self.bytes += len(data)
                ready.set()
                text = rest + data
                end = text.rfind(b"\n") + 1
                for found in _PAGES.finditer(text, 0, end):
                    if found[1]:
                        run_id = int(found[1])
                    else:
                        seen.append((run_id, int(found[2].replace(b"\xe2\x80\xaf", b"")), now))
                rest = text[end:]
        finally:
            writer.close()

    async def close(self) -> None:
        """Hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def measure(harness: UiHarness) -> None:
    """Print the figures for one screen, ten and a hundred, one of which is a real browser's."""
    writer = Writer(harness.store, [harness.new_run() for _ in range(ROWS)])
    alone = await _cost(harness, writer)
    print(
        f"{RATE:g} changes a second and nobody polls: gateway {alone[0]:.2f} cores, {alone[1]:.1f} "
        "SELECTs/s in all"
    )
    for count in SCREENS:
        await _poll(harness, writer, count, alone[1])


async def _cost(harness: UiHarness, writer: Writer) -> tuple[float, float]:
    """Return the cores of the gateway and SELECTs per second while rows change."""
    cpu, asked, began = _cpu(harness.gateway.process.pid), harness.statements(), time.perf_counter()
    await writer.write(SECONDS, RATE)
    seconds = time.perf_counter() - began
    return (_cpu(harness.gateway.process.pid) - cpu) / seconds, (
        harness.statements() - asked
    ) / seconds


async def _poll(harness: UiHarness, writer: Writer, count: int, without: float) -> None:
    async with visiting(
        harness.browser, harness.gateway.url + "/runs", NOTE_ROWS, until="tr[id^=run-]"
    ) as visit:
        path = str(await visit.page.get_attribute("#live", "data-stream"))
        screens = Screens(harness.gateway.url, path)
        await screens.add(count - 1)
        await asyncio.sleep(SETTLE_S)
        writer.committed.clear()
        screens.bytes = 0
        cores, asked = await _cost(harness, writer)
        sent = screens.bytes
        await asyncio.sleep(2)
        painted = [
            (int(run), int(pages), at) for run, pages, at in await visit.page.evaluate("rowTimes")
        ]
        memory = resident(harness.gateway.process.pid)
        await screens.close()
    browser = _late(writer, painted)
    wires = [late for seen in screens.seen for late in _late(writer, seen)]
    print(
        f"{count} open pages, {RATE:g} changes a second: on Chromium's screen p50 "
        f"{quantile(browser, 0.5):.2f} s, ",
        end="",
    )
    print(
        f"p95 {quantile(browser, 0.95):.2f}, p99 {quantile(browser, 0.99):.2f} s (target: <= "
        f"{LATE_S:g})",
        end="",
    )
    if wires:
        print(
            f"; at the others p99 {quantile(wires, 0.99):.2f} s, "
            f"{sent / SECONDS / (count - 1) / 1024:.1f} KB/s each",
            end="",
        )
    print(
        f"\n  gateway {cores:.2f} cores (target: <= {CORES:g}), {asked - without:.1f} SELECTs/s "
        "for it, ",
        end="",
    )
    print(f"memory {memory:.0f} MB", flush=True)


async def many(harness: UiHarness) -> None:
    """Print what many open pages cost one gateway while very many runs are live."""
    pid = harness.gateway.process.pid
    runs = await asyncio.to_thread(lambda: [harness.new_run() for _ in range(LIVE_RUNS)])
    with harness.store.database.writing() as connection:
        live = sa.update(run_history).where(run_history.c.run_id.in_([one.run_id for one in runs]))
        connection.execute(live.values(status="PROCESSING", stage="reconciliation"))
    writer = Writer(harness.store, runs)
    async with httpx.AsyncClient(base_url=harness.gateway.url, timeout=30) as http:
        addresses = ["/", *(f"/runs/{one.run_id}" for one in runs[-PAGES // 2 :])]
        paths = []
        for address in addresses:
            answer = (await http.get(address, headers={"Accept": "text/html"})).raise_for_status()
            [path] = re.findall(r'data-stream="([^"]+)"', answer.text)
            paths.append(unescape(path))
    alone, before = await _cost(harness, writer), resident(pid)
    screens = [Screens(harness.gateway.url, path) for path in paths]
    for n, one in enumerate(screens):
        await one.add(1 if n else PAGES // 2)
    await asyncio.sleep(SETTLE_S)
    cores, asked = await _cost(harness, writer)
    more = resident(pid) - before
    sent = sum(one.bytes for one in screens)
    for one in screens:
        await one.close()
    print(
        f"{PAGES} open pages, half of them of a run each, {LIVE_RUNS:,} live runs, {RATE:g} "
        "changes a second: ",
        end="",
    )
    print(
        f"gateway {cores:.2f} cores (target: <= {MANY_CORES:g}; nobody polls: {alone[0]:.2f}), ",
        end="",
    )
    print(
        f"{asked - alone[1]:.1f} SELECTs/s for it, {more:.0f} MB more (target: <= {MORE_MB:g}), ",
        end="",
    )
    print(f"{sent / 1024 / 1024:.1f} MB sent", flush=True)


async def presses(harness: UiHarness) -> None:
    """Print how long a press takes until the next paint, while rows change."""
    writer = Writer(harness.store, [harness.new_run() for _ in range(ROWS)])
    async with visiting(
        harness.browser, harness.gateway.url + "/runs", NOTE_PRESSES, until="tr[id^=run-]"
    ) as visit:
        page = visit.page
        changes = asyncio.create_task(writer.write(SECONDS, RATE))
        for key in [
            "j",
            "j",
            "x",
            "j",
            "x",
            "k",
            "?",
            "Escape",
            "v",
            "Escape",
            "/",
            *"books",
            "Escape",
        ]:
            await page.keyboard.press(key)
            await page.wait_for_timeout(400)
        for target in (
            "summary:text-is('Status')",
            "summary:text-is('Crawler')",
            ".list tbody .pick input >> nth=0",
        ):
            await page.click(target)
            await page.wait_for_timeout(400)
        await changes
        took = list((await page.evaluate("presses")).values())
    print(
        f"{len(took)} of 20 presses on the list took 16 ms and more until the next paint, ", end=""
    )
    print(f"at most {most(took):.0f} ms (target: <= {PRESS_MS:g})", flush=True)


def _late(writer: Writer, seen: list[Seen]) -> list[float]:
    """Return, for each commit, the seconds until this screen had it, or a later one of the same
    run.
    """
    by_run: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for run_id, pages, at in seen:
        by_run[run_id].append((pages, at))
    found = []
    for (run_id, pages), committed in writer.committed.items():
        later = [at for other, at in by_run[run_id] if other >= pages]
        # It must have arrived a second ago; a change that never arrived counts as late as possible.
        found.append(min(later) - committed if later else SECONDS)
    return found
