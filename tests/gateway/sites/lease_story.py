"""A site with a journal, and Scrapy crawls of it that lease their requests from a real gateway."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import insert

from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.sites.store.entries import FRESH
from crawler_lifecycle.features.sites.store.tables import run_site, site
from crawler_lifecycle.task_tokens import Purpose, TaskClaim, sign_task
from tests.gateway.gateway_harness import Harness
from tests.runner.runner_fixture import RunnerFixture

KEY = b"k" * 32
HOST = "127.0.0.1"
_SPIDER = """
import scrapy


class Endless(scrapy.Spider):
    name = "endless"
    custom_settings = {"RETRY_TIMES": 100}

    def __init__(self, port, first="0", n="1000", **kwargs):
        super().__init__(**kwargs)
        self.urls = [f"http://127.0.0.1:{port}/{first}-{page}" for page in range(int(n))]

    async def start(self):
        for url in self.urls:
            yield scrapy.Request(url)

    def start_requests(self):
        return map(scrapy.Request, self.urls)

    def parse(self, response):
        pass
"""


class JournalSite:
    """A site that records the times of all requests, by the monotonic clock."""

    def __init__(
        self, latency_s: float = 0.05, robots: str | None = None, headers: str = ""
    ) -> None:
        self.latency_s = latency_s
        self.robots = robots
        self.headers = headers
        self.arrivals: list[float] = []
        self.paths: list[str] = []
        self.now_open = 0
        self.most_open = 0
        self.refuses_until = 0.0
        self.retry_after_s = 0
        self.port = 0

    def refuse(self, seconds: int) -> float:
        """Answer 429 for this number of seconds. Return the time."""
        self.retry_after_s = seconds
        now = time.monotonic()
        self.refuses_until = now + seconds
        return now

    def most_in_a_second(self) -> int:
        first = 0
        most = 0
        for number, arrival in enumerate(self.arrivals):
            while self.arrivals[first] <= arrival - 1:
                first += 1
            most = max(most, number - first + 1)
        return most

    def between(self, first: float, last: float) -> list[float]:
        return [arrival for arrival in self.arrivals if first <= arrival < last]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                keeps = b"connection: close" not in head.lower()
                await self._answer_one(head.split()[1].decode(), writer)
                if not keeps:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer_one(self, path: str, writer: asyncio.StreamWriter) -> None:
        now = time.monotonic()
        self.arrivals.append(now)
        self.paths.append(path)
        self.now_open += 1
        self.most_open = max(self.most_open, self.now_open)
        status = "200 OK"
        more = self.headers
        if now < self.refuses_until:
            status = "429 Too Many Requests"
            more += f"Retry-After: {self.retry_after_s}\r\n"
        else:
            await asyncio.sleep(self.latency_s)
        self.now_open -= 1
        body = b"ok"
        if path == "/robots.txt" and self.robots is not None:
            body = self.robots.encode()
        elif path in ("/robots.txt", "/.well-known/tdmrep.json"):
            status = "404 Not Found"
        size = f"Content-Length: {len(body)}"
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{size}\r\n{more}\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    async def _serve(self, started: threading.Event, ended: asyncio.Event) -> None:
        server = await asyncio.start_server(self._answer, HOST, 0, backlog=200)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await ended.wait()
        server.close()

    @contextmanager
    def serving(self) -> Iterator[None]:
        started = threading.Event()
        ended = asyncio.Event()
        loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=loop.run_until_complete, args=(self._serve(started, ended),)
        )
        thread.start()
        started.wait()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
            loop.close()


def write_project(folder: Path) -> Path:
    """Write a Scrapy project with the spider ``endless``."""
    spiders = folder / "demo" / "spiders"
    spiders.mkdir(parents=True)
    (folder / "scrapy.cfg").write_text("[settings]\ndefault = demo.settings\n")
    (folder / "demo" / "__init__.py").touch()
    settings = 'SPIDER_MODULES = ["demo.spiders"]\nLOG_LEVEL = "INFO"\nROBOTSTXT_OBEY = False\n'
    (folder / "demo" / "settings.py").write_text(settings)
    (spiders / "__init__.py").write_text(_SPIDER)
    return folder


def start_run(harness: Harness, *, visits: bool = True) -> int:
    """Record a run whose only task is executing, and that belongs to the site."""
    with harness.client() as client:
        run_id = int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])
    harness.claim(run_id)
    harness.deploy(run_id)
    if visits:
        with harness.store.database.writing() as conn:
            conn.execute(insert(run_site).values(run_id=run_id, host=HOST, site=HOST))
    return run_id


def limit(harness: Harness, limits: SiteLimits) -> None:
    """Limit the requests to the site."""
    values = {"limits": limits.to_json(), "origin": "people"}
    with harness.store.database.writing() as conn:
        conn.execute(insert(site).values(site=HOST, **FRESH, **values))


def leases_of(harness: Harness, run_id: int, gateway: str) -> dict[str, str]:
    """Return the variables that the scheduler service gives to the run's task."""
    claim = TaskClaim(Purpose.LEASES, harness.ref(run_id), 0, 1)
    return {
        "CRAWL_LEASES_URL": f"{gateway}/v1/runs/{run_id}/tasks/0/attempts/1/leases",
        "CRAWL_LEASES_TOKEN": sign_task(KEY, claim),
    }


class Crawl:
    """One crawl of the site by the runner."""

    def __init__(self, folder: Path, project: Path) -> None:
        folder.mkdir()
        self.fixture = RunnerFixture(folder)
        self._argv = ("scrapy", "--project", str(project), "--spider", "endless")

    def start(self, args: dict[str, str], **environment: str) -> None:
        self.process = self.fixture.start(*self._argv, args=args, **environment)
