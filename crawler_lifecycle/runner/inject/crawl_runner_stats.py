"""Scrapy extension that writes the counters about once a second, and at the end the reason why the spider closed.

Scrapy imports it inside the user's process, so it uses only the standard library and Scrapy's public signals. A thread
writes the file, so that it works with every reactor and without one. The counters are:

- pages: responses received, without robots.txt
- items: items scraped
- errors: log records of level ERROR and above; an exception in a spider's callback makes one
- bytes: response bytes

If a spider sets the stat ``message``, its text is shown to people. When the spider closes, ``scrapystats`` contains all
its numbers, the most important ones first.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from datetime import datetime, timezone
from typing import Any

from scrapy import signals
from scrapy.exceptions import NotConfigured

_SOURCES = {
    "pages": ("response_received_count", "-robotstxt/response_count"),
    "items": ("item_scraped_count",),
    "errors": ("log_count/ERROR", "log_count/CRITICAL"),
    "bytes": ("downloader/response_bytes",),
}
_SECONDS = 1.0
#: Beginnings of the names that come first. The other statistics follow by name, up to the limit.
_FIRST = (
    "item_scraped_count",
    "response_received_count",
    "item_dropped_count",
    "log_count/",
    "elapsed_time_seconds",
    "spider_exceptions/",
    "downloader/response_status_count/",
    "downloader/response_",
    "downloader/request_",
    "downloader/exception_",
    "retry/",
    "scrapy-zyte-api/",
    "zyte_api_proxy/",
    "scheduler/",
)
#: The most bytes of JSON for all statistics, and characters of a name: the runner's limits (``contract.py``).
_ALL_MAX, _NAME_MAX = 8192, 120


class StatsFile:
    """A writer of ``CRAWL_STATS_FILE``, which replaces the whole file each time."""

    def __init__(self, crawler: Any, path: str) -> None:
        self._stats = crawler.stats
        self._path = path
        self._reason: str | None = None
        self._highest: dict[str, int] = {}
        self._done = threading.Event()
        self._writing = threading.Lock()
        crawler.signals.connect(self._opened, signal=signals.spider_opened)
        crawler.signals.connect(self._closed, signal=signals.spider_closed)
        crawler.signals.connect(self._stopped, signal=signals.engine_stopped)

    @classmethod
    def from_crawler(cls, crawler: Any) -> StatsFile:
        path = os.environ.get("CRAWL_STATS_FILE")
        if not path:
            raise NotConfigured
        return cls(crawler, path)

    def _opened(self) -> None:
        self._write()
        threading.Thread(target=self._loop, name="crawl-stats", daemon=True).start()

    def _loop(self) -> None:
        while not self._done.wait(_SECONDS):
            self._write()

    def _closed(self, reason: str) -> None:
        self._reason = str(reason)[:200]
        self._write()

    def _stopped(self) -> None:
        self._done.set()
        self._write()

    def _write(self) -> None:
        with self._writing:
            get = self._stats.get_value
            record: dict[str, object] = {}
            for name, keys in _SOURCES.items():
                found = sum(-int(get(k[1:], 0) or 0) if k.startswith("-") else int(get(k, 0) or 0) for k in keys)
                # Scrapy counts a robots.txt as a response a moment before it counts it as a robots.txt. The highest
                # value is kept, because no counter may become smaller.
                self._highest[name] = record[name] = max(found, self._highest.get(name, 0))
            message = get("message")
            if isinstance(message, str) and message:
                record["message"] = message[:1000]
            record["updated_at"] = datetime.now(timezone.utc).isoformat()  # noqa: UP017 - images may have Python 3.9
            if self._reason is not None:
                record["finish_reason"] = self._reason
                record["scrapystats"] = self._numbers()
            beside = f"{self._path}.tmp"
            with contextlib.suppress(OSError):  # a full disk must not end the crawl
                with open(beside, "w", encoding="utf-8") as file:
                    json.dump(record, file)
                os.replace(beside, self._path)

    def _numbers(self) -> dict[str, float]:
        """Return the collector's numbers that fit; none when a project's own collector cannot provide them."""
        try:
            found = {name: number for name, number in dict(self._stats.get_stats()).items() if _is_number(name, number)}
        except Exception as error:  # the project's own code; the close reason must still be written
            print(f"The statistics cannot be read: {error!r}"[:300], flush=True)
            return {}
        kept: dict[str, float] = {}
        left = _ALL_MAX - 2
        for name in sorted(found, key=_rank):
            left -= len(json.dumps({name: found[name]}))  # two braces, in place of a comma and a space
            if left < 0:
                break
            kept[name] = found[name]
        return kept


def _is_number(name: object, value: object) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX or isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _rank(name: str) -> tuple[int, str]:
    return next((rank for rank, begin in enumerate(_FIRST) if name.startswith(begin)), len(_FIRST)), name
