"""A minimal Scrapy project, and the runner around its spiders."""

from __future__ import annotations

import math
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.runner.runner_fixture import RunnerFixture
from tests.support.scrapy_alone import without_pydantic

_SETTINGS = """
BOT_NAME = "demo"
SPIDER_MODULES = ["demo.spiders"]
EXTENSIONS = {"demo.extension.Ours": 1}
LOG_LEVEL = "INFO"
"""
_EXTENSION = """
class Ours:
    @classmethod
    def from_crawler(cls, crawler):
        print("the project's own extension is there", flush=True)
        return cls()


class Away:
    # As a pipeline and as a scheduler: what it needs is away.
    def open_spider(self, spider):
        raise ConnectionError("the database is away")

    def process_item(self, item, spider):
        return item

    @classmethod
    def from_crawler(cls, crawler):
        return cls()

    def open(self, spider):
        raise ConnectionError("the queue is away")

    def has_pending_requests(self):
        return False

    def enqueue_request(self, request):
        return False

    def next_request(self):
        return None


class Stops:
    # Stops the crawl by itself, as at a signal.
    @classmethod
    def from_crawler(cls, crawler):
        import scrapy
        made = cls()
        made.crawler = crawler
        crawler.signals.connect(made.stop, signal=scrapy.signals.response_received)
        return made

    def stop(self):
        self.crawler.stop()
"""
_SPIDERS = '''
import json, os, pathlib, signal
import scrapy
from scrapy.exceptions import CloseSpider

_old = signal.signal
def _counting(number, handler):
    """Count the SIGTERMs that Scrapy's own handler receives."""
    def counted(*args):
        with open(os.environ["CRAWL_FILES_DIR"] + "/signals", "a") as file:
            file.write("x")
        return handler(*args)
    return _old(number, counted if callable(handler) and number == signal.SIGTERM else handler)
signal.signal = _counting


class Base(scrapy.Spider):
    def __init__(self, port="0", n="5", **kwargs):
        super().__init__(**kwargs)
        self.port, self.n, self.given = port, int(n), kwargs

    async def start(self):
        for i in range(self.n):
            yield scrapy.Request(f"http://127.0.0.1:{self.port}/{i}")

    def parse(self, response):
        yield {"url": response.url}


class Pages(Base):
    name = "pages"


class Own(Base):
    name = "own"

    def parse(self, response):
        with open(os.environ["CRAWL_FILES_DIR"] + "/items.jsonl", "a") as file:
            file.write("{}\\n")
        yield {"url": response.url}


class Fed(Base):
    name = "fed"
    custom_settings = {
        "FEEDS": {
            "items-%(name)s.jsonl": {"format": "jsonlines"},
            "./deep/er/items.csv": {"format": "csv"},
            pathlib.Path("path.json"): {"format": "json"},
            "/ABSOLUTE/items.json": {"format": "json"},
            "file:///ABSOLUTE/too.json": {"format": "json"},
        },
        "FILES_STORE": "downloads", "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
    }

    def parse(self, response):
        yield {"url": response.url, "file_urls": [response.url + "/file"]}


class Slow(Base):
    name = "slow"
    custom_settings = {"DOWNLOAD_DELAY": 0.15, "RANDOMIZE_DOWNLOAD_DELAY": False, "EXTENSIONS": {},
                       "CONCURRENT_REQUESTS": 1}


class Echo(Base):
    name = "echo"

    def parse(self, response):
        with open(os.environ["CRAWL_FILES_DIR"] + "/seen", "w") as file:
            json.dump(self.given, file)


class Picky(scrapy.Spider):
    name = "picky"

    def __init__(self, port):
        super().__init__()
        with open(os.environ["CRAWL_FILES_DIR"] + "/seen", "w") as file:
            file.write("picky")

    @classmethod
    def check_arguments(cls, port):
        pass

    async def start(self):
        return
        yield


class Counts(Base):
    name = "counts"

    def parse(self, response):
        told = self.crawler.stats.set_value
        for n in range(300):
            told(f"aaa/{n:0100}", n)
        told("mine", 0.5), told(7, 7), told("nan", float("nan")), told("huge", 10**30), told("text", "x")
        told("flag", True), told("a" * 121, 1), told("line\\n", 1), told("retry/count", 3)
        yield {"url": response.url}


class Mute(Base):
    name = "mute"

    def parse(self, response):
        self.crawler.stats.get_stats = lambda: 1 / 0


class Banned(Base):
    name = "banned"

    def parse(self, response):
        raise CloseSpider("banned")


class Raises(Base):
    name = "raises"

    def parse(self, response):
        raise ValueError("from the callback")


class BadStart(Base):
    name = "bad-start"

    async def start(self):
        raise RuntimeError("from the start")
        yield


class BadInit(Base):
    name = "bad-init"

    def __init__(self, **kwargs):
        raise RuntimeError("from the constructor")


class Strict(scrapy.Spider):
    name = "strict"

    def __init__(self, only):
        super().__init__()


class Hungry(Base):
    name = "hungry"

    def parse(self, response):
        held = getattr(self, "held", [])
        held.append(b"%d" % len(held) * (150 * 2**20))
        self.held = held
        yield from (scrapy.Request(response.url, dont_filter=True) for _ in range(1) if len(held) < 2)
        if len(held) >= 2:
            yield scrapy.Request(f"http://127.0.0.1:{self.port}/again", callback=self.idle, dont_filter=True)

    def idle(self, response):
        yield scrapy.Request(response.url, callback=self.idle, dont_filter=True)
'''


def write_project(folder: Path) -> Path:
    """Write the project's files. Return the folder."""
    (folder / "demo" / "spiders").mkdir(parents=True)
    (folder / "scrapy.cfg").write_text("[settings]\ndefault = demo.settings\n")
    (folder / "demo" / "__init__.py").touch()
    (folder / "demo" / "settings.py").write_text(_SETTINGS)
    (folder / "demo" / "extension.py").write_text(_EXTENSION)
    (folder / "demo" / "spiders" / "__init__.py").write_text(
        _SPIDERS.replace("/ABSOLUTE", str(folder / "absolute"))
    )
    return folder


class Site:
    """Records which pages were requested, and limits how many are answered; at first, all are."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._changed = threading.Condition()
        self._most: float = math.inf

    def come(self, path: str) -> None:
        """Record the request of a page. Returns when it may be answered."""
        with self._changed:
            self.paths.append(path)
            number = len(self.paths)
            self._changed.wait_for(lambda: number <= self._most)

    def answer(self, most: float) -> None:
        """From now on, let all requests except the first ones wait."""
        with self._changed:
            self._most = most
            self._changed.notify_all()

    def answer_all(self) -> None:
        self.answer(math.inf)


class ScrapyFixture(RunnerFixture):
    """Spiders of one project, with one local site."""

    def __init__(self, folder: Path, project: Path, port: int, site: Site) -> None:
        super().__init__(folder)
        self.project = project
        self.site = site
        self.paths = site.paths
        self._port = str(port)

    def environment(self, args: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
        return {
            "PYTHONPATH": without_pydantic(self.state.parent),
            **super().environment(args, more),
        }

    def start_spider(
        self, name: str, args: dict[str, str] | None = None, **more: str
    ) -> subprocess.Popen[bytes]:
        given = {"port": self._port, **(args or {})}
        return self.start(
            "scrapy", "--project", str(self.project), "--spider", name, args=given, **more
        )

    def crawl(self, name: str, args: dict[str, str] | None = None, **more: str) -> int:
        return self.finish(self.start_spider(name, args, **more))

    def next_attempt(self) -> None:
        """Give the next start its own folder for files, as each attempt of a run has."""
        self.files = self.files.with_name(f"{self.files.name}-next")
        self.files.mkdir()

    def pages_so_far(self) -> Any:
        return self.stats().get("pages", 0) if self.stats_file.exists() else 0

    def signals(self) -> int:
        path = self.files / "signals"
        return len(path.read_text()) if path.exists() else 0
