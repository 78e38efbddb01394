"""Item pipeline that writes the supporting files of a crawl."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Self, TextIO

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem

NAMES = {"page": "items.jsonl", "skipped": "skipped.jsonl"}


class ItemsFile:
    """Writes ``items.jsonl``, ``skipped.jsonl`` and kept pages into the folder CRAWL_FILES_DIR, if
    the variable is set.

    Each line is written at once, so the files are useful even after the crawl was killed. A skipped
    address is not an item: it is dropped after it is written, so that Scrapy does not count it.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._open: dict[str, TextIO] = {}

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        name = os.environ.get("CRAWL_FILES_DIR")
        pipeline = cls(Path(name) if name else None)
        crawler.signals.connect(pipeline.spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(pipeline.spider_closed, signal=signals.spider_closed)
        return pipeline

    def spider_opened(self) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            for kind, name in NAMES.items():
                self._open[kind] = (self._folder / name).open("a", encoding="utf-8", buffering=1)

    def process_item(self, item: dict[str, Any]) -> dict[str, Any]:
        """Write the item. Raises ``DropItem`` for a skipped address."""
        kind = item.pop("kind")
        body = item.pop("body", None)
        if body is not None and self._folder is not None:
            file = self._folder / item["file"]
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(body)
        if kind in self._open:
            # Addresses and titles may contain lone surrogates, which UTF-8 cannot encode. JSON
            # escapes keep them.
            self._open[kind].write(json.dumps(item) + "\n")
        if kind == "skipped":
            raise DropItem(f"{item['url']} was skipped: {item['why']}", log_level="INFO")
        return item

    def spider_closed(self) -> None:
        for stream in self._open.values():
            stream.close()
