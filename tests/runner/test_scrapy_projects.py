"""The runner with small Scrapy projects from tutorials and other people's trackers, unchanged."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.runner.state import NEWER_CODE, NOT_SAVED, UNKNOWN, WENT_ON
from tests.runner.runner_fixture import wait_until
from tests.runner.scrapy_project import ScrapyFixture

pytestmark = pytest.mark.processes

SETTINGS = """
BOT_NAME = "books"
SPIDER_MODULES = ["demo.spiders"]
DOWNLOAD_DELAY = 0.02
CONCURRENT_REQUESTS = 1
ROBOTSTXT_OBEY = False
TELNETCONSOLE_ENABLED = False
"""
#: The quotes of Scrapy's tutorial, with the list of addresses that most spiders have.
QUOTES = """
import scrapy

class QuotesSpider(scrapy.Spider):
    name = "quotes"

    def __init__(self, port, n="30", **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [f"http://127.0.0.1:{port}/{i}" for i in range(int(n))]

    def parse(self, response):
        yield {"url": response.url}
"""


def project(fixture: ScrapyFixture, spider: str, settings: str = "", **more: str) -> None:
    """Write a project with one module of spiders in place of the fixture's own; ``more`` has
    further modules.
    """
    shutil.rmtree(fixture.project)
    (fixture.project / "demo" / "spiders").mkdir(parents=True)
    (fixture.project / "scrapy.cfg").write_text("[settings]\ndefault = demo.settings\n")
    (fixture.project / "demo" / "__init__.py").touch()
    (fixture.project / "demo" / "settings.py").write_text(SETTINGS + settings)
    (fixture.project / "demo" / "spiders" / "__init__.py").write_text(spider)
    for name, text in more.items():
        (fixture.project / "demo" / f"{name}.py").write_text(text)


def stop_after(
    fixture: ScrapyFixture, spider: str, pages: int, args: dict[str, str] | None = None, **more: str
) -> Any:
    """Crawl this many pages and one more, stop, and return the summary."""
    begun = len(fixture.paths)
    fixture.site.answer(begun + pages)
    process = fixture.start_spider(spider, args, **more)
    wait_until(lambda: len(fixture.paths) > begun + pages)
    stop(fixture, process)
    return fixture.summary()


def stop(fixture: ScrapyFixture, process: subprocess.Popen[bytes]) -> None:
    """Stop the spider. The page that it waits for is answered when it has received the stop."""
    process.terminate()
    log = b""
    assert process.stdout is not None
    while b"shutting down gracefully" not in log:
        line = process.stdout.readline()
        assert line, log.decode()
        log += line
    fixture.site.answer_all()
    assert fixture.finish(process) == 11, fixture.output.decode()
    fixture.output = log + fixture.output


def items(fixture: ScrapyFixture) -> list[str]:
    return [
        json.loads(line)["url"] for line in (fixture.files / "items.jsonl").read_text().splitlines()
    ]


RESUME = {"CRAWL_RESUME": "1", "CRAWL_ATTEMPT": "2"}


def test_a_list_of_start_urls_is_fetched_once_across_two_stops(
    scrapy_fixture: ScrapyFixture,
) -> None:
    fixture = scrapy_fixture
    project(fixture, QUOTES)
    assert stop_after(fixture, "quotes", 12)["resumable"] is True
    with (fixture.project / "demo" / "spiders" / "__init__.py").open("a") as code:
        code.write("# a fix\n")
    again = stop_after(fixture, "quotes", 5, **RESUME)
    assert (again["resumed"], again["resume_note"], again["resumable"]) == (True, NEWER_CODE, True)
    assert fixture.crawl("quotes", **RESUME) == 0
    summary = fixture.summary()
    assert (summary["resumed"], summary["resume_note"], summary["pages"], summary["items"]) == (
        True,
        WENT_ON,
        30,
        30,
    )
    assert sorted(fixture.paths) == sorted(f"/{n}" for n in range(30)), "each once"
    assert len(set(items(fixture))) == len(items(fixture)) == 30


def test_a_spider_that_wants_its_start_again_gets_it(scrapy_fixture: ScrapyFixture) -> None:
    project(scrapy_fixture, QUOTES, "CRAWL_START_AGAIN = True\n")
    stop_after(scrapy_fixture, "quotes", 1, {"n": "3"})
    assert scrapy_fixture.crawl("quotes", {"n": "3"}, **RESUME) == 0
    assert scrapy_fixture.paths.count("/0") == 2


LAMBDAS = """
import scrapy

class Shop(scrapy.Spider):
    name = "shop"

    def __init__(self, port):
        self.start_urls = [f"http://127.0.0.1:{port}/list"]

    def parse(self, response):
        for number in range(9):
            yield response.follow(f"/{number}", callback=lambda page: {"url": page.url})
"""


def test_a_stop_that_could_not_save_all_requests_is_told_and_begins_anew(
    scrapy_fixture: ScrapyFixture,
) -> None:
    fixture = scrapy_fixture
    project(fixture, LAMBDAS)
    assert stop_after(fixture, "shop", 4)["resumable"] is False
    log = fixture.output.decode()
    assert "Scrapy cannot serialize 5 waiting requests. A resume starts from the beginning." in log
    (fixture.files / "items.jsonl").unlink()  # each attempt has a new folder
    assert fixture.crawl("shop", **RESUME) == 0
    summary = fixture.summary()
    assert (summary["resumed"], summary["resume_note"]) == (False, NOT_SAVED)
    assert (summary["pages"], summary["items"], len(set(items(fixture)))) == (10, 9, 9), (
        "all that the site has"
    )
    assert len(fixture.paths) == 15


FOREIGN = """
from collections import deque
from scrapy.core.scheduler import BaseScheduler

class Elsewhere(BaseScheduler):
    @classmethod
    def from_crawler(cls, crawler):
        return cls()

    def open(self, spider):
        self.waiting = deque()

    def has_pending_requests(self):
        return bool(self.waiting)

    def enqueue_request(self, request):
        self.waiting.append(request)
        return True

    def next_request(self):
        return self.waiting.popleft() if self.waiting else None
"""


def test_a_scheduler_of_the_project_keeps_its_requests_itself(
    scrapy_fixture: ScrapyFixture,
) -> None:
    project(scrapy_fixture, QUOTES, 'SCHEDULER = "demo.foreign.Elsewhere"\n', foreign=FOREIGN)
    assert stop_after(scrapy_fixture, "quotes", 1, {"n": "3"})["resumable"] is True
    assert scrapy_fixture.crawl("quotes", {"n": "3"}, **RESUME) == 0
    assert (scrapy_fixture.summary().get("resumed"), scrapy_fixture.summary()["resume_note"]) == (
        None,
        UNKNOWN,
    )
    assert {"/0", "/1", "/2"} <= set(scrapy_fixture.paths[2:]), (
        "we do not know what it has, so nothing is dropped"
    )


FROM_CRAWLER = """
import json, os
import scrapy

class Configured(scrapy.Spider):
    name = "configured"
    custom_settings = {"LOG_FILE": "configured.log"}

    def __init__(self, settings, port, **kwargs):
        super().__init__(**kwargs)
        self.bot = settings["BOT_NAME"]
        self.start_urls = [f"http://127.0.0.1:{port}/0"]

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = cls(crawler.settings, *args, **kwargs)
        spider._set_crawler(crawler)
        return spider

    def parse(self, response):
        self.logger.error("this page is broken")
        names = ("SCRAPY_JOB", "SCRAPY_SPIDER", "SCRAPY_PROJECT")
        yield {"url": response.url, "bot": self.bot, "job": self._job, "env": [os.environ[name] for name in names]}


class Strict(Configured):
    name = "strict"

    def __init__(self, settings, port):
        super().__init__(settings, port, _job="none was given")


class Fixed(Configured):
    name = "fixed"

    @classmethod
    def from_crawler(cls, crawler, port):
        return super().from_crawler(crawler, port=port, _job="none was given")
"""
JOB = {"CRAWL_REQUEST_ID": "nightly-7", "CRAWL_RUN_ID": "7"}


def test_a_spider_is_made_as_scrapy_crawl_and_scrapyd_make_it(
    scrapy_fixture: ScrapyFixture,
) -> None:
    fixture = scrapy_fixture
    project(fixture, FROM_CRAWLER, 'LOG_FILE = "books.log"\n')
    assert fixture.crawl("configured", CRAWL_SETTINGS='{"LOG_FILE": "run.log"}', **JOB) == 0
    [item] = [json.loads(line) for line in (fixture.files / "items.jsonl").read_text().splitlines()]
    assert (item["bot"], item["job"]) == ("books", "nightly-7")
    assert item["env"] == ["nightly-7", "configured", "default"]
    assert b"ERROR: this page is broken" in fixture.output, "in the log that people read"
    assert not list(fixture.project.rglob("*.log"))
    assert fixture.crawl("strict", **JOB) == 0, "it takes no _job, so it gets none"
    assert fixture.crawl("fixed", **JOB) == 0
    for spider in ("strict", "fixed"):
        assert fixture.crawl(spider, {"page": "2"}, **JOB) == 4
        assert (
            "the spider does not take these arguments: got an unexpected keyword"
            in fixture.summary()["message"]
        )


COLLECTORS = """
from scrapy.statscollectors import MemoryStatsCollector

class Texts(MemoryStatsCollector):
    def get_value(self, key, default=None, spider=None):
        found = super().get_value(key, default)
        if key == "log_count/CRITICAL":
            raise LookupError(key)
        return f"{found:,}" if key == "item_scraped_count" and found else found
"""
#: More items than a number without a thousands separator.
MANY = """
import os
import scrapy

class Many(scrapy.Spider):
    name = "many"

    def __init__(self, port):
        self.start_urls = [f"http://127.0.0.1:{port}/{n}" for n in range(2)]

    def parse(self, response):
        os.makedirs(f"out/{response.url[-1]}")
        with open(f"out/{response.url[-1]}/report.txt", "w") as report:
            report.write(response.url)
        for n in range(600):
            yield {"url": f"{response.url}/{n}"}
"""


@pytest.mark.parametrize(
    ("collector", "pages"),
    [("scrapy.statscollectors.DummyStatsCollector", None), ("demo.collectors.Texts", 2)],
)
def test_items_are_counted_in_the_feed_where_the_collector_does_not_say(
    scrapy_fixture: ScrapyFixture, collector: str, pages: int | None
) -> None:
    project(scrapy_fixture, MANY, f"STATS_CLASS = {collector!r}\n", collectors=COLLECTORS)
    assert scrapy_fixture.crawl("many") == 0
    summary = scrapy_fixture.summary()
    assert (summary["finish_reason"], summary["items"], summary.get("pages")) == (
        "finished",
        1200,
        pages,
    )
    told = "2 files in 'out' are not kept: write them to CRAWL_FILES_DIR"
    assert summary["fields"] == {"items": 1200, "shares": {"url": 1.0}, "note": told}
    assert told in scrapy_fixture.output.decode()


STORES = """
import json, os
import scrapy

class Shop(scrapy.Spider):
    name = "shop"

    def __init__(self, port):
        self.start_urls = [f"http://127.0.0.1:{port}/0"]

    def parse(self, response):
        yield {"url": response.url, "file_urls": [response.url + "/picture"]}


class Custom(Shop):
    name = "custom"
    custom_settings = {"FILES_STORE": "custom"}
"""
ADDON = """
from pathlib import Path

class Pictures:
    def update_settings(self, settings):
        settings.set("FILES_STORE", Path("addon/deep"), priority="addon")
        settings.set("FEEDS", {Path("addon.jsonl"): {"format": "jsonlines"}}, priority="addon")
"""
PIPELINE = 'ITEM_PIPELINES = {"scrapy.pipelines.files.FilesPipeline": 1}\n'


@pytest.mark.parametrize(
    ("spider", "settings", "option", "store"),
    [
        ("shop", 'FILES_STORE = "store"\n', None, "store"),
        ("shop", 'import pathlib\nFILES_STORE = pathlib.Path("a/path")\n', None, "a/path"),
        ("custom", 'FILES_STORE = "store"\n', None, "custom"),
        ("custom", 'FILES_STORE = "store"\n', "option", "option"),
        ("shop", 'ADDONS = {"demo.addon.Pictures": 1}\n', None, "addon/deep"),
    ],
)
def test_downloads_are_kept_wherever_their_folder_is_named(
    scrapy_fixture: ScrapyFixture, spider: str, settings: str, option: str | None, store: str
) -> None:
    fixture = scrapy_fixture
    project(fixture, STORES, PIPELINE + settings, addon=ADDON)
    given = json.dumps({"FILES_STORE": option} if option else {})
    assert fixture.crawl(spider, CRAWL_SETTINGS=given) == 0
    assert len(list((fixture.files / store / "full").iterdir())) == 1
    feed = fixture.files / ("addon.jsonl" if "ADDONS" in settings else "items.jsonl")
    assert len(feed.read_text().splitlines()) == 1
    assert {path.name for path in fixture.project.iterdir()} == {"demo", "scrapy.cfg"}
    assert "not kept" not in json.dumps(fixture.summary())


def test_pictures_are_kept(scrapy_fixture: ScrapyFixture) -> None:
    """Only the setting is checked, because Pillow is not a dependency of the tests."""
    spider = """
import scrapy

class Shop(scrapy.Spider):
    name = "shop"

    def __init__(self, port):
        self.start_urls = [f"http://127.0.0.1:{port}/0"]

    def parse(self, response):
        yield {"url": self.settings["IMAGES_STORE"]}
"""
    project(scrapy_fixture, spider, 'IMAGES_STORE = "images"\n')
    assert scrapy_fixture.crawl("shop") == 0
    assert items(scrapy_fixture) == [str(Path(scrapy_fixture.files) / "images")]
