"""The runner with whole Scrapy projects that have the structure of public ones.

Nothing is copied from these. Each runs unchanged: the result must be that of ``scrapy crawl`` in
its folder, and nothing is lost.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.runner.scrapy_project import ScrapyFixture
from tests.runner.test_scrapy_projects import RESUME, stop_after

pytestmark = pytest.mark.processes

CFG = "[settings]\ndefault = {}\n"
COMMON = "TELNETCONSOLE_ENABLED = False\nROBOTSTXT_OBEY = False\n"


@dataclass
class Public:
    """A project, its command, and the expected result."""

    habits: str
    files: dict[str, str]
    """Path -> text. Folders with modules are packages."""
    spider: str
    args: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    items: int | None = None
    """``None``: as many as it happens to find before its own limit."""
    reason: str = "finished"
    errors: int = 0
    kept: tuple[str, ...] = ()
    """Patterns of files that it leaves, each of which at least one file fits."""
    note: str | None = None
    stop_after: int = 0
    """It is stopped after so many pages, and resumed."""


PLACES = Public(
    "old feed settings from the environment, exporters of its own, nested modules of spiders, a pipeline that drops "
    "items, a log formatter",
    {
        "scrapy.cfg": CFG.format("places.settings"),
        "places/settings.py": COMMON
        + """
import os
SPIDER_MODULES = ["places.spiders", "places.more"]
FEED_URI = os.environ.get("FEED_URI")
FEED_FORMAT = os.environ.get("FEED_FORMAT")
FEED_EXPORTERS = {
    "geojson": "places.exporters.Collection",
    "ndgeojson": "places.exporters.Lines",
}
ITEM_PIPELINES = {"places.pipelines.Unique": 200}
LOG_FORMATTER = "places.logs.Quiet"
EXTENSIONS = {"scrapy.extensions.telnet.TelnetConsole": None}
""",
        "places/exporters.py": """
from scrapy.exporters import JsonItemExporter, JsonLinesItemExporter

class Lines(JsonLinesItemExporter):
    def _get_serialized_fields(self, item, default_value=None, include_empty=None):
        yield from (("type", "Feature"), ("properties", dict(item)), ("geometry", None))

class Collection(JsonItemExporter):
    def start_exporting(self):
        self.file.write(b'{"type":"FeatureCollection","features":[')

    def finish_exporting(self):
        self.file.write(b"]}")
""",
        "places/pipelines.py": """
from scrapy.exceptions import DropItem

class Unique:
    def __init__(self):
        self.seen = set()

    def process_item(self, item, spider):
        if item["ref"] in self.seen:
            raise DropItem("again")
        self.seen.add(item["ref"])
        return item
""",
        "places/logs.py": """
from scrapy.logformatter import LogFormatter

class Quiet(LogFormatter):
    def dropped(self, item, exception, response, *args, **kwargs):
        return None
""",
        "places/stores.py": """
import scrapy

class Stores(scrapy.Spider):
    pages = 6
    item_attributes = {"brand": "none"}

    async def start(self):
        for n in range(self.pages):
            yield scrapy.Request(f"http://127.0.0.1:{self.port}/{n}")

    def parse(self, response):
        yield {"ref": int(response.url[-1]) // 2, **self.item_attributes}
""",
        "places/spiders/__init__.py": "",
        "places/more/__init__.py": "",
        "places/more/germany/__init__.py": "",
        "places/more/germany/bakers.py": """
from places.stores import Stores

class Bakers(Stores):
    name = "bakers_de"
    item_attributes = {"brand": "Bakers"}
""",
    },
    "bakers_de",
    env={"FEED_URI": "./output/places", "FEED_FORMAT": "ndgeojson"},
    items=3,
    kept=("output/places",),
)

CONTRACTS = Public(
    "settings changed by a base spider's update_settings, arguments checked in from_crawler, items with bytes, an "
    "extension that stores each of them in FILES_STORE, an end with a word of its own, a module of commands",
    {
        "scrapy.cfg": CFG.format("contracts.settings"),
        "contracts/settings.py": COMMON
        + """
import os
SPIDER_MODULES = ["contracts.spiders"]
FILES_STORE = os.getenv("FILES_STORE", "data")
EXTENSIONS = {"contracts.extensions.FilesStore": 100}
HTTPERROR_ALLOW_ALL = True
CONCURRENT_REQUESTS = 1
if os.getenv("SCRAPY_PROJECT") is None:
    COMMANDS_MODULE = "contracts.commands"
""",
        "contracts/items.py": """
from dataclasses import dataclass

@dataclass
class File:
    file_name: str
    url: str
    data: bytes
    path: str = ""
""",
        "contracts/extensions.py": """
import os
from scrapy import signals

class FilesStore:
    @classmethod
    def from_crawler(cls, crawler):
        made = cls()
        made.directory = crawler.settings["FILES_STORE"]
        crawler.signals.connect(made.item_scraped, signal=signals.item_scraped)
        return made

    def item_scraped(self, item, spider):
        item.path = os.path.join(spider.name, spider.started, item.file_name)
        path = os.path.join(self.directory, item.path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(item.data)
""",
        "contracts/base.py": """
import scrapy
from scrapy.exceptions import CloseSpider
from contracts.items import File

class Base(scrapy.Spider):
    def __init__(self, port, sample=None, **kwargs):
        super().__init__(**kwargs)
        self.port, self.sample, self.stored = port, sample, 0
        self.query = {key[3:]: value for key, value in kwargs.items() if key.startswith("qs:")}

    @classmethod
    def update_settings(cls, settings):
        cls.custom_settings = {**(cls.custom_settings or {}), "HTTPPROXY_ENABLED": False}
        super().update_settings(settings)

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.sample = int(spider.sample or 0)
        spider.started = "20261128_210000"
        return spider

    async def start(self):
        for n in range(9):
            yield scrapy.Request(f"http://127.0.0.1:{self.port}/{n}?page={self.query['page']}")

    def parse(self, response):
        self.stored += 1
        if self.sample and self.stored > self.sample:
            raise CloseSpider("sample")
        yield File(f"{response.url.rpartition('/')[2]}.json", response.url, b"\\xff" + response.body)
""",
        "contracts/spiders/__init__.py": "",
        "contracts/spiders/chile.py": """
from contracts.base import Base

class Chile(Base):
    name = "chile_releases"
""",
    },
    "chile_releases",
    args={"sample": "2", "qs:page": "7"},
    items=2,
    reason="sample",
    kept=("data/chile_releases/20261128_210000/*.json", "items.jsonl"),
)

MEETINGS = Public(
    "a package of settings for each place, named by the environment, feeds in folders of the date, an item with "
    "fields, an extension that writes a badge",
    {
        "scrapy.cfg": CFG.format("meetings.settings.base"),
        "meetings/settings/base.py": COMMON
        + """
SPIDER_MODULES = ["meetings.spiders"]
FEED_EXPORTERS = {"json": "scrapy.exporters.JsonItemExporter", "csv": "meetings.exporters.Semicolons"}
""",
        "meetings/settings/ci.py": """
from .base import *
FEEDS = {"%(year)s/%(month)s/%(name)s.csv": {"format": "csv"}}
FEED_EXPORT_ENCODING = "utf-8-sig"
FEED_URI_PARAMS = "meetings.feeds.with_date"
""",
        "meetings/feeds.py": """
def with_date(params, spider):
    return {**params, "year": "2026", "month": "11"}
""",
        "meetings/exporters.py": """
from scrapy.exporters import CsvItemExporter

class Semicolons(CsvItemExporter):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{**kwargs, "delimiter": ";"})
""",
        "meetings/spiders/__init__.py": "",
        "meetings/spiders/council.py": """
import scrapy

class Meeting(scrapy.Item):
    title = scrapy.Field(serializer=str.upper)
    links = scrapy.Field()

class Council(scrapy.Spider):
    name = "council"

    def __init__(self, port, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [f"http://127.0.0.1:{port}/{n}" for n in range(4)]

    def parse(self, response):
        yield Meeting(title="a; b", links=[response.url, "x"])
""",
    },
    "council",
    env={"SCRAPY_SETTINGS_MODULE": "meetings.settings.ci"},
    items=4,
    kept=("2026/11/council.csv",),
)

JOBS = Public(
    "add-ons, pipelines set in update_settings, one feed for each class of items, items of attrs and of dataclasses, "
    "an old and a new form of pipeline, CLOSESPIDER_ITEMCOUNT",
    {
        "scrapy.cfg": CFG.format("jobs.settings"),
        "jobs/settings.py": COMMON
        + """
from pathlib import Path
SPIDER_MODULES = ["jobs.spiders"]
ADDONS = {"jobs.addon.Polite": 100}
FEEDS = {
    Path("items/jobs.jl"): {"format": "jsonlines", "item_classes": ["jobs.items.Job"], "store_empty": False},
    "items/firms-%(batch_id)02d.json": {
        "format": "json", "item_classes": ["jobs.items.Firm"], "batch_item_count": 2, "encoding": "utf8", "indent": 4,
    },
}
CLOSESPIDER_ITEMCOUNT = 8
""",
        "jobs/addon.py": """
class Polite:
    def update_settings(self, settings):
        settings.set("CONCURRENT_REQUESTS", 1, priority="addon")
""",
        "jobs/items.py": """
from dataclasses import dataclass, field
import attr

@dataclass
class Job:
    title: str
    skills: list = field(default_factory=list)

@attr.s
class Firm:
    name = attr.ib()
""",
        "jobs/pipelines.py": """
class Clean:
    @classmethod
    def from_crawler(cls, crawler):
        return cls()

    def open_spider(self, spider):
        self.seen = 0

    def process_item(self, item, spider):
        self.seen += 1
        return item

    def close_spider(self, spider):
        spider.logger.info("%d seen", self.seen)
""",
        "jobs/spiders/__init__.py": "",
        "jobs/spiders/board.py": """
import scrapy
from jobs.items import Firm, Job

class Board(scrapy.Spider):
    name = "board"

    def __init__(self, port, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [f"http://127.0.0.1:{port}/{n}" for n in range(40)]

    @classmethod
    def update_settings(cls, settings):
        super().update_settings(settings)
        settings.setdict({"ITEM_PIPELINES": {"jobs.pipelines.Clean": 50}}, priority="spider")

    def parse(self, response):
        yield Job("gärtner", ["a", "b"])
        yield Firm(response.url)
""",
    },
    "board",
    reason="closespider_itemcount",
    kept=("items/jobs.jl", "items/firms-02.json"),
)

PEPS = Public(
    "a feed below the folder of results, the storage named, a pipeline that writes a table beside the project",
    {
        "scrapy.cfg": CFG.format("peps.settings"),
        "peps/settings.py": COMMON
        + """
from pathlib import Path
BASE_DIR = Path(__file__).parent.parent
SPIDER_MODULES = ["peps.spiders"]
FEED_STORAGES = {"file": "scrapy.extensions.feedexport.FileFeedStorage"}
FEEDS = {"results/pep_%(time)s.csv": {"format": "csv", "fields": ["number", "status"], "overwrite": True}}
ITEM_PIPELINES = {"peps.pipelines.Summary": 300}
HTTPCACHE_ENABLED = True
""",
        "peps/pipelines.py": """
from peps.settings import BASE_DIR

class Summary:
    def process_item(self, item, spider):
        return item

    def close_spider(self, spider):
        (BASE_DIR / "results").mkdir(exist_ok=True)
        (BASE_DIR / "results" / "summary.csv").write_text("status,n")
""",
        "peps/spiders/__init__.py": "",
        "peps/spiders/pep.py": """
import scrapy
from scrapy.loader import ItemLoader
from itemloaders.processors import MapCompose, TakeFirst

class Pep(scrapy.Item):
    number = scrapy.Field(output_processor=TakeFirst())
    status = scrapy.Field(input_processor=MapCompose(str.strip), output_processor=TakeFirst())

class Peps(scrapy.Spider):
    name = "pep"

    def __init__(self, port, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [f"http://127.0.0.1:{port}/{n}" for n in range(3)]

    def parse(self, response):
        loader = ItemLoader(item=Pep(), response=response)
        loader.add_value("number", response.url[-1])
        loader.add_css("status", "p::text")
        yield loader.load_item()
""",
    },
    "pep",
    items=3,
    kept=("results/pep_2*.csv",),
    note="1 files in 'results' are not kept: write them to CRAWL_FILES_DIR",
)

BOOKS = Public(
    "CrawlSpider with rules, a pipeline of files with paths of its own, queues on disk in another order, a feed of "
    "fields in order, throttled; stopped and resumed",
    {
        "scrapy.cfg": CFG.format("books.settings"),
        "books/settings.py": COMMON
        + """
import pathlib
SPIDER_MODULES = ["books.spiders"]
CONCURRENT_REQUESTS = 1
AUTOTHROTTLE_ENABLED = True
AUTOTHROTTLE_START_DELAY = 0.01
AUTOTHROTTLE_MAX_DELAY = 0.02
SCHEDULER_PRIORITY_QUEUE = "scrapy.pqueues.DownloaderAwarePriorityQueue"
SCHEDULER_DISK_QUEUE = "scrapy.squeues.PickleFifoDiskQueue"
SCHEDULER_MEMORY_QUEUE = "scrapy.squeues.FifoMemoryQueue"
DEPTH_PRIORITY = 1
FEED_EXPORT_FIELDS = ["title", "url"]
JOBDIR = "crawls/books"
ITEM_PIPELINES = {"books.pipelines.Covers": 1}
FILES_STORE = pathlib.Path("covers")
""",
        "books/pipelines.py": """
from scrapy.pipelines.files import FilesPipeline

class Covers(FilesPipeline):
    def file_path(self, request, response=None, info=None, *, item=None):
        return f"{item['title']}/cover.jpg"

    def item_completed(self, results, item, info):
        item["files"] = [found["path"] for good, found in results if good]
        return item
""",
        "books/spiders/__init__.py": "",
        "books/spiders/all.py": """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

class Books(CrawlSpider):
    name = "all"
    rules = (
        Rule(LinkExtractor(allow=r"/book/"), callback="parse_book", process_links="first_ones"),
    )

    def __init__(self, port, **kwargs):
        super().__init__(**kwargs)
        site = f"http://127.0.0.1:{port}"
        links = "".join(f"<a href='{site}/book/{n}'>b</a>" for n in range(12))
        self.start_urls = [f"data:text/html,<p>{links}</p>"]

    def first_ones(self, links):
        return links[:10]

    def parse_book(self, response):
        title = response.url.rpartition("/")[2]
        yield {"url": response.url, "title": title, "file_urls": [response.url + "/cover"]}
""",
    },
    "all",
    items=10,
    kept=("covers/*/cover.jpg", "items.jsonl"),
    stop_after=7,
)

SHOPS = Public(
    "a scheduler, a filter of duplicates and a collector of the project, requests pushed when the spider is idle",
    {
        "scrapy.cfg": CFG.format("shops.settings"),
        "shops/settings.py": COMMON
        + """
SPIDER_MODULES = ["shops.spiders"]
SCHEDULER = "shops.scheduling.Scheduler"
DUPEFILTER_CLASS = "shops.scheduling.Seen"
STATS_CLASS = "shops.stats.Shared"
SCHEDULER_PERSIST = True
LOGSTATS_INTERVAL = 0
FEEDS = {"shops.xml.gz": {
    "format": "xml", "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"], "gzip_compresslevel": 5,
}}
""",
        "shops/stats.py": """
from scrapy.statscollectors import StatsCollector

class Shared(StatsCollector):
    # As one on a server: all values are texts.
    def get_value(self, key, default=None, spider=None):
        value = super().get_value(key, default)
        return str(value) if isinstance(value, int) else value

    def inc_value(self, key, count=1, start=0, spider=None):
        self._stats[key] = int(self._stats.get(key, start)) + count
""",
        "shops/scheduling.py": """
from collections import deque
from scrapy.utils.misc import build_from_crawler, load_object

class Seen:
    @classmethod
    def from_crawler(cls, crawler):
        return cls()

    def __init__(self):
        self.urls = set()

    def request_seen(self, request):
        seen = request.url in self.urls
        self.urls.add(request.url)
        return seen

class Scheduler:
    @classmethod
    def from_crawler(cls, crawler):
        made = cls()
        made.filter = build_from_crawler(load_object(crawler.settings["DUPEFILTER_CLASS"]), crawler)
        return made

    def open(self, spider):
        self.queue = deque()

    def close(self, reason):
        self.queue.clear()

    def has_pending_requests(self):
        return len(self.queue) > 0

    def enqueue_request(self, request):
        if not request.dont_filter and self.filter.request_seen(request):
            return False
        self.queue.append(request.to_dict(spider=None))
        return True

    def next_request(self):
        from scrapy.utils.request import request_from_dict
        return request_from_dict(self.queue.popleft()) if self.queue else None
""",
        "shops/spiders/__init__.py": "",
        "shops/spiders/feeder.py": """
import scrapy
from scrapy import signals
from scrapy.exceptions import DontCloseSpider

class Feeder(scrapy.Spider):
    name = "feeder"

    def __init__(self, port, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.waiting = [f"http://127.0.0.1:{port}/{n}" for n in (0, 1, 1, 2)]

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        made = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(made.idle, signal=signals.spider_idle)
        return made

    async def start(self):
        return
        yield

    def idle(self):
        if self.waiting:
            self.crawler.engine.crawl(scrapy.Request(self.waiting.pop()))
            raise DontCloseSpider

    def parse(self, response):
        yield {"url": response.url, "tags": ["a", "b"]}
""",
    },
    "feeder",
    items=3,
    kept=("shops.xml.gz",),
)

TEMPLATES = Public(
    "a loader of spiders that makes classes, spiders with a base of parameters, a file of the environment, handlers of "
    "logging that switch others off, a reactor that is named",
    {
        "scrapy.cfg": CFG.format("templates.settings"),
        ".env": "SHOP_PAGES=5\n",
        "templates/settings.py": COMMON
        + """
import logging.config, os
with open(".env") as file:
    os.environ.update(line.strip().split("=", 1) for line in file if "=" in line)
SPIDER_MODULES = ["templates.spiders"]
SPIDER_LOADER_CLASS = "templates.loading.Generated"
TWISTED_REACTOR = "twisted.internet.selectreactor.SelectReactor"
LOG_LEVEL = "WARNING"
LOG_CONFIG = {
    "version": 1,
    "disable_existing_loggers": True,
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "app.log", "delay": True}},
    "root": {"handlers": ["file"], "level": "ERROR"},
}
logging.config.dictConfig(LOG_CONFIG)
FEEDS = {"out/%(name)s": {"format": "csv", "item_export_kwargs": {"delimiter": "|", "include_headers_line": True}}}
""",
        "templates/loading.py": """
from scrapy.spiderloader import SpiderLoader

class Generated(SpiderLoader):
    def load(self, spider_name):
        base, _, country = spider_name.partition(":")
        return type("Made", (super().load(base),), {"name": f"{base}-{country}", "country": country})

    def list(self):
        return [f"{name}:de" for name in super().list()]
""",
        "templates/spiders/__init__.py": "",
        "templates/spiders/shop.py": """
import os
from typing import Generic, TypeVar
import scrapy

class Params:
    def __init__(self, port, pages=None):
        self.port, self.pages = port, int(pages or os.environ["SHOP_PAGES"])

Kind = TypeVar("Kind")

class Args(Generic[Kind]):
    def __init__(self, *args, **kwargs):
        self.args = Params(**{name: value for name, value in kwargs.items() if name in ("port", "pages")})
        super().__init__(*args, **kwargs)

class Shop(Args[Params], scrapy.Spider):
    name = "shop"

    async def start(self):
        for n in range(self.args.pages):
            yield scrapy.Request(f"http://127.0.0.1:{self.args.port}/{n}")

    def parse(self, response):
        yield {"country": self.country, "price": "1,5", "url": response.url}
""",
    },
    "shop:de",
    items=5,
    kept=("out/shop-de",),
    note="1 files in '.' are not kept: write them to CRAWL_FILES_DIR",
)

SEVERAL = Public(
    "several projects in one file of settings, the second one asked for, sources below src, a log of its own, a "
    "spider in the old form",
    {
        "scrapy.cfg": "[settings]\ndefault = first.settings\nsecond = second.settings\n[deploy]\nproject = first\n",
        "second/settings.py": COMMON
        + """
import sys, pathlib
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "src"))
BOT_NAME = "second"
SPIDER_MODULES = ["crawlers"]
LOG_FILE = pathlib.Path("second.log")
LOG_FILE_APPEND = False
FEEDS = {pathlib.Path("data") / "%(name)s" / "%(time)s.jsonl": {"format": "jsonlines"}}
""",
        "src/crawlers/__init__.py": """
import logging
from scrapy.utils.log import configure_logging
configure_logging(install_root_handler=False)
logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.INFO)
""",
        "src/crawlers/quotes.py": """
import scrapy

class Quotes(scrapy.Spider):
    name = "quotes"
    allowed_domains = ["127.0.0.1"]

    def start_requests(self):
        for n in range(3):
            yield scrapy.Request(f"http://127.0.0.1:{self.port}/{n}", self.parse_page, cb_kwargs={"number": n})

    async def start(self):
        for request in self.start_requests():
            yield request

    def parse_page(self, response, number):
        if number == 1:
            raise KeyError("no such quote")
        yield {"n": number, "bot": self.settings["BOT_NAME"]}

    def closed(self, reason):
        self.logger.info("closed: %s", reason)
""",
    },
    "quotes",
    env={"SCRAPY_PROJECT": "second"},
    items=2,
    errors=1,
    kept=("data/quotes/*.jsonl",),
)

PAGES = Public(
    "pages that are written beside the feed, in the folder of pages, a feed of a format that is not read",
    {
        "scrapy.cfg": CFG.format("pages.settings"),
        "pages/settings.py": COMMON
        + """
SPIDER_MODULES = ["pages.spiders"]
FEED_EXPORTERS = {"bin": "scrapy.exporters.PickleItemExporter"}
FEEDS = {
    "pages/%(name)s.jl": {"format": "jsonlines"},
    "pages/%(name)s.bin": {"format": "bin"},
}
EXTENSIONS = {"pages.extensions.Report": 0}
""",
        "pages/extensions.py": """
from scrapy import signals

class Report:
    @classmethod
    def from_crawler(cls, crawler):
        made = cls()
        made.crawler = crawler
        crawler.signals.connect(made.closed, signal=signals.spider_closed)
        return made

    def closed(self, spider, reason):
        self.crawler.stats.set_value("report", {"reason": reason})
        raise RuntimeError("nobody takes the report")
""",
        "pages/spiders/__init__.py": "",
        "pages/spiders/walk.py": """
import scrapy

class Walk(scrapy.Spider):
    name = "walk"
    custom_settings = {"DEPTH_LIMIT": 2, "RETRY_ENABLED": False}

    def __init__(self, port="0", *args, **kwargs):
        super(Walk, self).__init__(*args, **kwargs)
        self.start_urls = [f"http://127.0.0.1:{port}/0"]

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all([response.url + "0", response.url + "1"])
""",
    },
    "walk",
    items=7,
    kept=("pages/walk.jl", "pages/walk.bin"),
)

ALL = {
    name.lower(): found for name, found in list(globals().items()) if isinstance(found, Public)
}  # fmt: skip


def write(fixture: ScrapyFixture, public: Public) -> None:
    """Write the project in place of the fixture's own."""
    shutil.rmtree(fixture.project)
    for name, text in public.files.items():
        path = fixture.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.suffix == ".py":
            for folder in path.relative_to(fixture.project).parents[:-1]:
                (fixture.project / folder / "__init__.py").touch()


@pytest.mark.parametrize("name", ALL)
def test_a_public_project_runs_unchanged(scrapy_fixture: ScrapyFixture, name: str) -> None:
    fixture, public = scrapy_fixture, ALL[name]
    write(fixture, public)
    earlier, more = 0, dict[str, str]()
    if public.stop_after:
        stopped = stop_after(fixture, public.spider, public.stop_after, public.args, **public.env)
        assert stopped["resumable"] is True
        earlier, more = stopped["fields"]["items"], RESUME
        fixture.next_attempt()
    assert fixture.crawl(public.spider, public.args, **public.env, **more) == 0, (
        fixture.output.decode()
    )
    print(fixture.output.decode())
    summary = fixture.summary()
    told, items = summary.get("fields", {}), public.items or summary["items"]
    assert (summary["finish_reason"], summary["items"], summary["errors"]) == (
        public.reason,
        items,
        public.errors,
    )
    assert (earlier + told.get("items", 0), told.get("note")) == (items, public.note)
    assert len(fixture.paths) == len(set(fixture.paths)), "nothing is fetched twice"
    for pattern in public.kept:
        assert list(fixture.files.glob(pattern)), sorted(map(str, fixture.files.rglob("*")))
    left = {
        str(path.relative_to(fixture.project))
        for path in fixture.project.rglob("*")
        if path.is_file()
    }
    left = {path for path in left if "__pycache__" not in path and not path.startswith(".scrapy/")}
    ours = {f"{folder}/__init__.py" for path in public.files for folder in Path(path).parents[:-1]}
    assert len(left - set(public.files) - ours) == (1 if public.note else 0), left
