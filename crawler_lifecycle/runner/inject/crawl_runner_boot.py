"""Program that runs one spider of a Scrapy project without a change to the project.

The runner starts it in the project's folder: ``crawl_runner_boot.py <spider>``. Arguments and settings come as JSON
from the environment, so that no value is parsed as an option. The exit code 4 means a configuration that can never
work.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

BAD_CONFIGURATION = 4
_CHECK_SECONDS = 2.0
#: Seconds that a stop waits for the spider to open. After them the stop goes to Scrapy although it may lose its state.
_GATE_SECONDS = 20.0
#: Arguments that every crawler may get although it does not declare them, as in ``domain/crawlers/crawler.py``.
_GIVEN_TO_ALL = ("retry_num",)


def _refuse(text: str) -> None:
    print(f"Bad configuration: {text}", file=sys.stderr, flush=True)
    path = os.environ.get("CRAWL_STATS_FILE")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": f"Bad configuration: {text}"}, file)
    sys.exit(BAD_CONFIGURATION)


def _settings() -> Any:
    """Return the project's settings, overridden by ours, and these by the settings of the run."""
    from scrapy.utils.project import get_project_settings

    settings = get_project_settings()
    # Our extension is in the base dictionary, so that EXTENSIONS of the project or spider do not replace it.
    base = {**settings.getdict("EXTENSIONS_BASE"), "crawl_runner_stats.StatsFile": 0}
    ours: dict[str, object] = {"EXTENSIONS_BASE": base, "TELNETCONSOLE_ENABLED": False, "REMOTE_CONTROL_ENABLED": False}
    if os.environ.get("CRAWL_JOB_DIR"):
        ours["JOBDIR"] = os.environ["CRAWL_JOB_DIR"]
    limit = int(os.environ.get("CRAWL_MEMORY_LIMIT") or 0)
    if limit:
        # With a lower limit Scrapy ends cleanly before the cluster kills it.
        ours["MEMUSAGE_ENABLED"] = True
        ours["MEMUSAGE_LIMIT_MB"] = max(1, int(limit * 0.85) // 2**20)
        ours["MEMUSAGE_CHECK_INTERVAL_SECONDS"] = _CHECK_SECONDS
    settings.setdict(ours, priority="cmdline")
    settings.setdict(json.loads(os.environ.get("CRAWL_SETTINGS") or "{}"), priority="cmdline")
    return settings


def _keep_feeds(settings: Any) -> None:
    """Put feeds and downloads with relative paths into the folder for the crawl's files; absolute paths stay.

    ``settings`` are those of a crawl, completed by its spider. For most feeds our storage changes the path, because
    only the storage knows it with its placeholders filled in. A ``Path`` key is changed here, because Scrapy makes it
    absolute earlier.
    """
    folder = os.environ.get("CRAWL_FILES_DIR")
    if not folder:
        return
    base = dict(settings.getdict("FEED_STORAGES_BASE"))
    for scheme in ("", "file"):
        if base.get(scheme) == "scrapy.extensions.feedexport.FileFeedStorage":
            base[scheme] = "crawl_runner_feeds.KeptFeed"
    settings.set("FEED_STORAGES_BASE", base, priority="cmdline")
    if os.environ.get("CRAWL_ITEMS") != "off" and not settings.getpriority("FEEDS") and not settings.get("FEED_URI"):
        # Our default has a low priority, so that an add-on can still replace it. It appends to an existing file, and
        # without items it leaves no file.
        ours = {"format": "jsonlines", "overwrite": False, "store_empty": False, "batch_item_count": 0}
        ours["crawl_default"] = True
        settings.set("FEEDS", {"items.jsonl": ours}, priority="command")
    feeds = settings.getdict("FEEDS")
    if any(isinstance(key, Path) for key in feeds):
        kept = {os.path.join(folder, key) if isinstance(key, Path) else key: value for key, value in feeds.items()}
        settings.set("FEEDS", kept, priority=settings.getpriority("FEEDS"))
    for name in ("FILES_STORE", "IMAGES_STORE"):
        store = settings.get(name)
        if store and "://" not in str(store):
            settings.set(name, os.path.join(folder, store), priority=settings.getpriority(name))


def _process(settings: Any) -> Any:
    """Return the crawler process that ``scrapy crawl`` uses with these settings."""
    import scrapy.crawler

    asyncio_reactor = "asyncio" in str(settings.get("TWISTED_REACTOR") or "")
    new_style = hasattr(scrapy.crawler, "AsyncCrawlerProcess") and (
        (asyncio_reactor and not settings.getbool("FORCE_CRAWLER_PROCESS"))
        or not settings.getbool("TWISTED_REACTOR_ENABLED", True)
    )
    return scrapy.crawler.AsyncCrawlerProcess(settings) if new_style else scrapy.crawler.CrawlerProcess(settings)


class StopGate:
    """A signal handler that delays a stop until Scrapy can act on it.

    Measured with Scrapy 2.19: while the spider opens (0.1 s or more), Scrapy has its handlers but no running engine. A
    signal in that time only stops the reactor: exit code 0, no closing reason, and the state is not saved.
    """

    def __init__(self, process: Any, original: Callable[[int, Any], None]) -> None:
        self._process = process
        self._original = original
        self._waiting = False
        self._wait_until = float("inf")

    @classmethod
    def guard(cls, process: Any) -> None:
        """Put a gate before Scrapy's own handlers, and handle SIGTERM and SIGINT from now on."""
        gate = None
        for name in ("_signal_shutdown_reactorless", "_signal_shutdown"):
            if hasattr(process, name):
                gate = cls(process, getattr(process, name))
                setattr(process, name, gate)
        if gate is not None:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, gate)

    def __call__(self, number: int, frame: Any) -> None:
        if self._engine_runs() or time.monotonic() >= self._wait_until:
            self._original(number, frame)
        elif not self._waiting:
            self._waiting = True
            self._wait_until = time.monotonic() + _GATE_SECONDS
            threading.Thread(target=self._send_again, args=(number,), daemon=True).start()

    def _send_again(self, number: int) -> None:
        while not self._engine_runs() and time.monotonic() < self._wait_until:
            time.sleep(0.01)
        os.kill(os.getpid(), number)  # Python runs signal handlers only in the main thread

    def _engine_runs(self) -> bool:
        for crawler in list(self._process.crawlers):
            known = vars(crawler)
            engine = known.get("_engine") or known.get("engine")  # older versions of Scrapy: ``engine``
            if engine is not None and engine.running:
                return True
        return False


def _check_arguments(spider: Any, args: dict[str, str]) -> dict[str, str]:
    """Return the spider's arguments, without those that managers give to every crawler if the spider lacks them.

    Arguments that can never work end the program. A spider may check them in a class method ``check_arguments``.
    """
    try:
        signature = inspect.signature(spider.__init__)
        takes = signature.parameters.values()
        if not any(one.kind is one.VAR_KEYWORD or one.name in _GIVEN_TO_ALL for one in takes):
            args = {name: value for name, value in args.items() if name not in _GIVEN_TO_ALL}
        signature.bind(None, **args)
    except TypeError as error:
        _refuse(f"the spider does not take these arguments: {error}")
    check = getattr(spider, "check_arguments", None)
    if check is not None:
        try:
            check(**{name: value for name, value in args.items() if name not in _GIVEN_TO_ALL})
        except ValueError as error:
            _refuse(str(error))
    return args


def main() -> None:
    name = sys.argv[1]
    args = json.loads(os.environ.get("CRAWL_ARGS") or "{}")
    try:
        process = _process(_settings())
    except (ImportError, SyntaxError) as error:
        traceback.print_exc()
        _refuse(f"the project cannot be imported: {type(error).__name__}: {error}")
    try:
        spider = process.spider_loader.load(name)
    except KeyError:
        known = ", ".join(sorted(process.spider_loader.list())) or "none"
        _refuse(f"there is no spider {name!r} in this project; its spiders are: {known}")
    args = _check_arguments(spider, args)
    StopGate.guard(process)
    crawler = process.create_crawler(spider)
    _keep_feeds(crawler.settings)
    process.crawl(crawler, **args)
    process.start()
    sys.exit(1 if getattr(process, "bootstrap_failed", False) else 0)


if __name__ == "__main__":
    main()
