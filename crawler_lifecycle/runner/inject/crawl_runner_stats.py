"""Scrapy extension that writes the counters about once per second, and at the end the reason why
the spider closed.

Scrapy imports it in the user's process, so it uses only the standard library and Scrapy's public
signals. A thread writes the file, so it works with any reactor or none. The counters are:

- pages: responses received, excluding robots.txt
- items: items scraped
- errors: log records of level ERROR and above, such as those of exceptions in callbacks
- bytes: response bytes

A counter that the project's stats collector does not have is left out. If a spider sets the stat
``message``, people see its value. When the spider closes, ``scrapystats`` is set to all numbers in
its stats, the most important ones first, and ``saved`` states whether the job folder contains
everything that a resume needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
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
#: Statistics whose names begin with one of these prefixes come first. All others follow by name,
#: up to the limit.
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
#: The limits for the number of statistics, the characters of a name, and a number. The runner has
#: the same limits, and a limit for the total size (``contract.py``).
_ALL_MAX = 300
_NAME_MAX = 120
_NUMBER_MAX = 2**63 - 1


class StatsFile:
    """A writer of ``CRAWL_STATS_FILE``, which replaces the whole file each time."""

    def __init__(self, crawler: Any, path: str) -> None:
        self._crawler = crawler
        self._scheduler: Any = None
        self._saved: bool | None = None
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
        engine = self._crawler.engine
        # older versions of Scrapy call this ``slot``
        slot = getattr(engine, "_slot", None) or engine.slot
        self._scheduler = slot.scheduler
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
        self._saved = self._is_saved()
        self._write()

    def _is_saved(self) -> bool | None:
        """Return whether the job folder contains all waiting requests; ``None`` if the project uses
        its own scheduler.
        """
        if getattr(self._scheduler, "dqs", None) is None:
            return None
        try:
            with open(os.path.join(self._scheduler.dqdir, "active.json"), encoding="utf-8") as file:
                json.load(file)  # Scrapy writes it last
            pickle.dumps(getattr(self._crawler.spider, "state", None))
            lost = len(self._scheduler.mqs)
            problem = lost and f"Scrapy cannot serialize {lost} waiting requests"
        except Exception as error:  # the project's own objects may raise any error
            problem = f"The state of the crawl is not saved: {error!r}"[:300]
        if problem:
            print(f"{problem}. A resume starts from the beginning.", flush=True)
        return not problem

    def _write(self) -> None:
        with self._writing:
            record: dict[str, object] = {}
            # Otherwise nothing is counted, as with DummyStatsCollector.
            if self._get("start_time") is not None:
                for name, keys in _SOURCES.items():
                    self._count(name, keys)
                record.update(self._highest)
            message = self._get("message")
            if isinstance(message, str) and message:
                record["message"] = message[:1000]
            record["updated_at"] = datetime.now(timezone.utc).isoformat()  # noqa: UP017
            if self._reason is not None:
                record["finish_reason"] = self._reason
                record["scrapystats"] = self._numbers()
            if self._saved is not None:
                record["saved"] = self._saved
            beside = f"{self._path}.tmp"
            with contextlib.suppress(OSError):  # a full disk must not end the crawl
                with open(beside, "w", encoding="utf-8") as file:
                    json.dump(record, file)
                os.replace(beside, self._path)

    def _get(self, name: str) -> Any:
        """Return a value of the collector; ``None`` if it is missing, or if a project's own
        collector raises an error.
        """
        try:
            return self._crawler.stats.get_value(name)
        except Exception:  # the close reason must still be written
            return None

    def _count(self, name: str, keys: tuple[str, ...]) -> None:
        """Set a counter to the sum of its values.

        If one of the values is not a number, the counter is unknown. The highest sum so far is
        kept, because no counter may decrease: Scrapy counts a robots.txt among the responses a
        moment before it counts the file as a robots.txt.
        """
        found = 0
        try:
            for key in keys:
                value = int(self._get(key.removeprefix("-")) or 0)
                found += -value if key.startswith("-") else value
        except (TypeError, ValueError, OverflowError):
            self._highest.pop(name, None)
        else:
            self._highest[name] = min(max(found, self._highest.get(name, 0)), _NUMBER_MAX)

    def _numbers(self) -> dict[str, float]:
        """Return the first numbers in the collector. The result is empty if a project's own
        collector cannot provide them.
        """
        try:
            told = dict(self._crawler.stats.get_stats())
            found = {name: number for name, number in told.items() if _is_number(name, number)}
        except Exception as error:  # the project's own code; the close reason must still be written
            print(f"The statistics cannot be read: {error!r}"[:300], flush=True)
            return {}
        return {name: found[name] for name in sorted(found, key=_rank)[:_ALL_MAX]}


def _is_number(name: object, value: object) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX or isinstance(value, bool):
        return False
    # False for NaN too.
    return isinstance(value, (int, float)) and -_NUMBER_MAX <= value <= _NUMBER_MAX


def _rank(name: str) -> tuple[int, str]:
    return next(
        (rank for rank, begin in enumerate(_FIRST) if name.startswith(begin)), len(_FIRST)
    ), name
