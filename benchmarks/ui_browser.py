"""A real Chromium and its own figures: bytes, times, long tasks of the main thread, and memory."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, CDPSession, Error, Page, async_playwright

from tests.ui.browser import ARGUMENTS, NETWORK_CHANGES_MAX, executable

MEGABYTE = 1024 * 1024
#: Records each task that blocked the main thread for more than 50 ms: its start and its duration,
#: in milliseconds.
NOTE_TASKS = """
window.longTasks = [];
new PerformanceObserver(list => {
  for (const one of list.getEntries()) longTasks.push([one.startTime, one.duration]);
}).observe({type: 'longtask', buffered: true});
"""
#: Records how long each press took until the next paint, by the number of the interaction. Chromium
#: does not report presses of less than 16 ms.
NOTE_PRESSES = """
window.presses = {};
new PerformanceObserver(list => {
  for (const one of list.getEntries()) {
    if (one.interactionId) presses[one.interactionId] = Math.max(presses[one.interactionId] || 0, one.duration);
  }
}).observe({type: 'event', buffered: true, durationThreshold: 16});
"""
#: Milliseconds from the beginning of the navigation until each step before the first paint.
STEPS = """
() => {
  const [visit] = performance.getEntriesByType('navigation');
  const ends = (kind) => Math.max(0, ...performance.getEntriesByType('resource')
    .filter(one => one.name.match(kind)).map(one => one.responseEnd));
  return {'last byte': visit.responseEnd, 'styles there': ends('css$'), 'page.js there': ends('/page[.].*js$'),
    'htmx there': ends('/htmx'), 'parsed': visit.domInteractive, 'scripts done': visit.domContentLoadedEventEnd};
}
"""
#: Milliseconds from the beginning of the navigation: first response, first paint, everything
#: loaded.
TIMES = """
() => new Promise(told => setTimeout(() => {
  const [visit] = performance.getEntriesByType('navigation');
  const paint = performance.getEntriesByName('first-contentful-paint')[0];
  told([visit.responseStart, paint ? paint.startTime : visit.loadEventEnd, visit.loadEventEnd]);
}, 100))
"""


@dataclass
class Visit:
    """A page that was loaded with an empty browser cache."""

    page: Page
    session: CDPSession
    context: BrowserContext
    answered_ms: float = 0.0
    painted_ms: float = 0.0
    usable_ms: float = 0.0
    """Painted, and every script there."""
    steps: dict[str, float] = field(default_factory=dict)
    loaded: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes that came over the wire, heads included, by the path of the address."""

    async def tasks(self, since_ms: float = 0.0) -> list[float]:
        """Return the milliseconds of each long task of the main thread that began after this time
        of the page.
        """
        await asyncio.sleep(0.3)  # they are reported late
        found: list[list[float]] = await self.page.evaluate("longTasks")
        return [length for began, length in found if began >= since_ms]

    async def now(self) -> float:
        """Return the time of the page in milliseconds."""
        return float(await self.page.evaluate("performance.now()"))

    async def worked(self) -> dict[str, float]:
        """Return the milliseconds of the main thread so far, by kind of work."""
        found = await self.session.send("Performance.getMetrics")
        used = {one["name"]: one["value"] * 1000 for one in found["metrics"]}
        return {
            name: used[f"{name}Duration"] for name in ("Script", "RecalcStyle", "Layout", "Task")
        }

    async def heap(self) -> float:
        """Return the memory of its scripts and documents after a collection, in MB."""
        await self.session.send("HeapProfiler.collectGarbage")
        found = await self.session.send("Performance.getMetrics")
        used = {one["name"]: one["value"] for one in found["metrics"]}
        return float(used["JSHeapUsedSize"]) / MEGABYTE

    async def nodes(self) -> int:
        """Return the number of nodes of its document, including those that are no longer shown."""
        found = await self.session.send("Memory.getDOMCounters")
        return int(found["nodes"])


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start the browser, and end it."""
    path = executable()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def visiting(
    browser: Browser, url: str, *scripts: str, until: str | None = None
) -> AsyncIterator[Visit]:
    """Load this address in its own profile; ``until`` is what has to be visible."""
    context = await browser.new_context()
    try:
        for script in (NOTE_TASKS, *scripts):
            await context.add_init_script(script)
        page = await context.new_page()
        session = await context.new_cdp_session(page)
        visit = Visit(page, session, context)
        await _listen(visit)
        await _go(page, url)
        if until is not None:
            await page.wait_for_selector(until, state="attached", timeout=60_000)
        visit.answered_ms, visit.painted_ms, ended_ms = await page.evaluate(TIMES)
        visit.usable_ms, visit.steps = max(visit.painted_ms, ended_ms), await page.evaluate(STEPS)
        yield visit
    finally:
        await context.close()


async def _listen(visit: Visit) -> None:
    asked: dict[str, str] = {}
    visit.session.on(
        "Network.requestWillBeSent",
        lambda told: asked.update({told["requestId"]: told["request"]["url"]}),
    )

    def ended(told: dict[str, Any]) -> None:
        visit.loaded[urlsplit(asked[told["requestId"]]).path] += int(told["encodedDataLength"])

    def came(told: dict[str, Any]) -> None:
        path = urlsplit(asked[told["requestId"]]).path
        if path == "/page/events":  # it never ends, so its bytes are not reported
            visit.loaded[path] += int(told["encodedDataLength"])

    visit.session.on("Network.loadingFinished", ended)
    visit.session.on("Network.dataReceived", came)
    for domain in ("Network", "Performance"):
        await visit.session.send(f"{domain}.enable")


async def _go(page: Page, url: str) -> None:
    # Chromium ends its requests whenever an interface of this machine appears or disappears, like
    # those of containers.
    for _ in range(NETWORK_CHANGES_MAX):
        try:
            await page.goto(url, timeout=60_000)
        except Error as error:
            if "ERR_NETWORK_CHANGED" not in error.message:
                raise
        else:
            return
    raise RuntimeError("the network of this machine does not come to rest")


async def renderers(browser: Browser) -> float:
    """Return the resident memory of all processes that show pages, in MB."""
    session = await browser.new_browser_cdp_session()
    found = await session.send("SystemInfo.getProcessInfo")
    await session.detach()
    return sum(resident(one["id"]) for one in found["processInfo"] if one["type"] == "renderer")


def resident(pid: int) -> float:
    """Return the resident memory of a process, in MB."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * 4096 / MEGABYTE


async def answers_within(page: Page, seconds: float) -> list[float]:
    """Return how long a page took to respond, in milliseconds, tested ten times a second for this
    time.
    """
    times, until = [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        await page.evaluate("0")
        times.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(max(0.0, 0.1 - (time.perf_counter() - began)))
    return times


def middle(values: Iterable[float]) -> float:
    """The median."""
    return statistics.median(list(values))


def most(values: Iterable[float]) -> float:
    """Return the largest, or 0 for none."""
    return max(values, default=0.0)
