"""Runs one spider of a Scrapy project without touching the project.

Started by the runner as a program of its own, in the project's folder: ``crawl_runner_boot.py <spider>``. Arguments
and settings come as JSON from the environment, so that no value is ever parsed as an option. Ends with 4 for a
configuration that can never work.
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
#: A spider that takes longer to open is stopped the hard way.
_GATE_SECONDS = 20.0
#: Arguments that a crawler may be given without having declared them: as ``domain/crawlers/crawler.py`` has it.
_GIVEN_TO_ALL = ("retry_num",)


def _refuse(text: str) -> None:
    print(f"Bad configuration: {text}", file=sys.stderr, flush=True)
    path = os.environ.get("CRAWL_STATS_FILE")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": f"Bad configuration: {text}"}, file)
    sys.exit(BAD_CONFIGURATION)


def _settings() -> Any:
    """The project's settings with ours over them and the run's own over all."""
    from scrapy.utils.project import get_project_settings

    settings = get_project_settings()
    # In the base dictionary, so that the EXTENSIONS of project or spider neither replace ours nor lose theirs.
    base = {**settings.getdict("EXTENSIONS_BASE"), "crawl_runner_stats.StatsFile": 0}
    ours: dict[str, object] = {"EXTENSIONS_BASE": base, "TELNETCONSOLE_ENABLED": False, "REMOTE_CONTROL_ENABLED": False}
    if os.environ.get("CRAWL_JOB_DIR"):
        ours["JOBDIR"] = os.environ["CRAWL_JOB_DIR"]
    limit = int(os.environ.get("CRAWL_MEMORY_LIMIT") or 0)
    if limit:
        # Scrapy ends itself cleanly a little before the cluster would kill it.
        ours["MEMUSAGE_ENABLED"] = True
        ours["MEMUSAGE_LIMIT_MB"] = max(1, int(limit * 0.85) // 2**20)
        ours["MEMUSAGE_CHECK_INTERVAL_SECONDS"] = _CHECK_SECONDS
    settings.setdict(ours, priority="cmdline")
    settings.setdict(json.loads(os.environ.get("CRAWL_SETTINGS") or "{}"), priority="cmdline")
    return settings


def _keep_feeds(settings: Any) -> None:
    """Put feeds and downloads with relative paths into the folder for the crawl's files; absolute paths stay.

    Called for the settings of a crawl as its spider completed them. A feed's address is read by its storage, after
    the names in it were filled in, so the storage does it; only ``Path`` keys Scrapy makes absolute before.
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
        # An add-on may still set others. A file that is there is written on, and none stays empty.
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
    """The crawler process that ``scrapy crawl`` would use with these settings."""
    import scrapy.crawler

    asyncio_reactor = "asyncio" in str(settings.get("TWISTED_REACTOR") or "")
    new_style = hasattr(scrapy.crawler, "AsyncCrawlerProcess") and (
        (asyncio_reactor and not settings.getbool("FORCE_CRAWLER_PROCESS"))
        or not settings.getbool("TWISTED_REACTOR_ENABLED", True)
    )
    return scrapy.crawler.AsyncCrawlerProcess(settings) if new_style else scrapy.crawler.CrawlerProcess(settings)


class StopGate:
    """Holds a stop back until Scrapy can act on it.

    Measured with 2.19: a signal between the installation of Scrapy's handlers and the start of its engine (0.1 s and
    more, the time in which the spider opens) only stops the reactor: exit 0, no closing reason, no flushed state.
    """

    def __init__(self, process: Any, original: Callable[[int, Any], None]) -> None:
        self._process = process
        self._original = original
        self._held = False
        self._held_until = float("inf")

    @classmethod
    def guard(cls, process: Any) -> None:
        """Put a gate before Scrapy's own handlers, and keep the signals for them from now on."""
        gate = None
        for name in ("_signal_shutdown_reactorless", "_signal_shutdown"):
            if hasattr(process, name):
                gate = cls(process, getattr(process, name))
                setattr(process, name, gate)
        if gate is not None:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, gate)

    def __call__(self, number: int, frame: Any) -> None:
        if self._engine_runs() or time.monotonic() >= self._held_until:
            self._original(number, frame)
        elif not self._held:
            self._held = True
            self._held_until = time.monotonic() + _GATE_SECONDS
            threading.Thread(target=self._send_again, args=(number,), daemon=True).start()

    def _send_again(self, number: int) -> None:
        while not self._engine_runs() and time.monotonic() < self._held_until:
            time.sleep(0.01)
        os.kill(os.getpid(), number)  # handlers run in the main thread only

    def _engine_runs(self) -> bool:
        for crawler in list(self._process.crawlers):
            known = vars(crawler)
            engine = known.get("_engine") or known.get("engine")  # older versions have the second
            if engine is not None and engine.running:
                return True
        return False


def _check_arguments(spider: Any, args: dict[str, str]) -> dict[str, str]:
    """The arguments for the spider: all but those which managers give to every crawler, where it does not take them.

    Refuses arguments that can never work; a spider may check them in a class method ``check_arguments``.
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
        _refuse(f"no spider {name!r} in this project; there are: {known}")
    args = _check_arguments(spider, args)
    StopGate.guard(process)
    crawler = process.create_crawler(spider)
    _keep_feeds(crawler.settings)
    process.crawl(crawler, **args)
    process.start()
    sys.exit(1 if getattr(process, "bootstrap_failed", False) else 0)


if __name__ == "__main__":
    main()
