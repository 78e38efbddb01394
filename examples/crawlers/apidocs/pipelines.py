"""The supporting files of a crawl, for people who want to see them after it has ended."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, Self, TextIO

from itemadapter import ItemAdapter
from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Request, Response

SAMPLE_PAGES = 5


class SupportingFiles:
    """Writes the files of a crawl to the folder that CRAWL_FILES_DIR names. Without this variable,
    it is disabled.

    ``items.jsonl`` and ``urls.txt`` grow line by line, so they are useful even after a crawl that
    was killed, and a resumed crawl appends to them. ``pages/`` contains the first few pages in
    their original form. ``summary.json`` is written when the crawl ends in an orderly way,
    including after a stop.
    """

    def __init__(self, crawler: Crawler, folder: Path) -> None:
        self._crawler = crawler
        self._folder = folder
        self._items: TextIO | None = None
        self._urls: TextIO | None = None
        self._samples = 0
        self._types: Counter[str] = Counter()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the pipeline for a crawler. Scrapy calls this method. Signals report the ends and
        the responses of a crawl.
        """
        folder = os.environ.get("CRAWL_FILES_DIR")
        if not folder:
            raise NotConfigured("CRAWL_FILES_DIR is not set: no supporting files")
        pipeline = cls(crawler, Path(folder))
        crawler.signals.connect(pipeline.spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(pipeline.response_received, signal=signals.response_received)
        crawler.signals.connect(pipeline.spider_closed, signal=signals.spider_closed)
        return pipeline

    def spider_opened(self) -> None:
        pages = self._folder / "pages"
        pages.mkdir(parents=True, exist_ok=True)
        self._samples = sum(1 for _ in pages.iterdir())
        self._items = (self._folder / "items.jsonl").open("a", encoding="utf-8", buffering=1)
        self._urls = (self._folder / "urls.txt").open("a", encoding="utf-8", buffering=1)

    def process_item(self, item: Any) -> Any:
        """Add the item to the file, and pass the item on."""
        if self._items is not None:
            self._items.write(json.dumps(ItemAdapter(item).asdict(), ensure_ascii=False) + "\n")
            self._types[type(item).__name__] += 1
        return item

    def response_received(self, response: Response, request: Request) -> None:
        if self._urls is not None:
            self._urls.write(f"{response.status} {response.url}\n")
        if self._samples < SAMPLE_PAGES and b"text/html" in (
            response.headers.get("Content-Type") or b""
        ):
            self._samples += 1
            slug = re.sub(r"[^A-Za-z0-9]+", "-", response.url.partition("://")[2]).strip("-")[-80:]
            (self._folder / "pages" / f"{self._samples:02}-{slug}.html").write_bytes(response.body)

    def spider_closed(self, spider: Spider, reason: str) -> None:
        for stream in (self._items, self._urls):
            if stream is not None:
                stream.close()
        stats = self._crawler.stats.get_stats() if self._crawler.stats else {}
        summary = {
            "spider": spider.name,
            "site": getattr(spider, "site", None),
            "finish_reason": reason,
            "items": dict(self._types),
            "responses": {
                name.rpartition("/")[2]: count
                for name, count in sorted(stats.items())
                if name.startswith("downloader/response_status_count/")
            },
            "forbidden_by_robots": stats.get("robotstxt/forbidden", 0),
        }
        unfinished = self._folder / "summary.json.tmp"
        unfinished.write_text(
            json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        unfinished.replace(self._folder / "summary.json")
