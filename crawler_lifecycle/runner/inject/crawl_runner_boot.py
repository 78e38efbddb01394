"""Program that runs one spider of a Scrapy project without changes to the project.

The runner starts it in the project's folder: ``crawl_runner_boot.py <spider>``. Arguments and
settings are read as JSON from the environment, so that no value is parsed as an option. Exit code 4
means that the configuration can never work.
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
from typing import Any

BAD_CONFIGURATION = 4
_CHECK_SECONDS = 2.0
#: Seconds for which a stop signal is held back until the spider opens. After this time, the signal
#: is passed to Scrapy, although state may be lost.
_GATE_SECONDS = 20.0
#: Our components: setting, class, and order. ``KeptFiles`` comes first, because other extensions
#: read the settings that it changes. A start request passes the first spider middleware last.
_COMPONENTS = (
    ("EXTENSIONS_BASE", "crawl_runner_feeds.KeptFiles", -1_000_000),
    ("EXTENSIONS_BASE", "crawl_runner_stats.StatsFile", 0),
    ("EXTENSIONS_BASE", "crawl_runner_sites.LeasedRequests", 0),
    ("SPIDER_MIDDLEWARES_BASE", "crawl_runner_start.StartOnce", -1_000_000),
)
#: Arguments that a spider gets if it accepts them: ``retry_num`` of managers (see
#: ``domain/crawlers/crawler.py``), and the id of the job, as in scrapyd.
_GIVEN_TO_ALL = ("retry_num", "_job")


def _refuse(text: str) -> None:
    print(f"Bad configuration: {text}", file=sys.stderr, flush=True)
    path = os.environ.get("CRAWL_STATS_FILE")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": f"Bad configuration: {text}"}, file)
    sys.exit(BAD_CONFIGURATION)


def _settings() -> Any:
    """Return the project's settings. The run's settings override them, and the settings that the
    runner needs override both.
    """
    from scrapy.utils.project import get_project_settings

    settings = get_project_settings()
    limit = int(os.environ.get("CRAWL_MEMORY_LIMIT") or 0)
    ours: dict[str, object] = {"TELNETCONSOLE_ENABLED": False, "REMOTE_CONTROL_ENABLED": False}
    if limit:
        # This limit is lower than the cluster's, so that Scrapy ends cleanly before the cluster
        # kills it.
        ours["MEMUSAGE_ENABLED"] = True
        ours["MEMUSAGE_LIMIT_MB"] = max(1, int(limit * 0.85) // 2**20)
        ours["MEMUSAGE_CHECK_INTERVAL_SECONDS"] = _CHECK_SECONDS
    settings.setdict(ours, priority="cmdline")
    settings.setdict(json.loads(os.environ.get("CRAWL_SETTINGS") or "{}"), priority="cmdline")
    # Add our components to the base settings, so that the project's or spider's own EXTENSIONS do
    # not replace them.
    for name, component, order in _COMPONENTS:
        settings.set(name, {**settings.getdict(name), component: order}, priority="cmdline")
    # People read the log that the runner keeps. A log file that the project configures would leave
    # this log empty.
    settings.set("LOG_FILE", None, priority="cmdline")
    if os.environ.get("CRAWL_JOB_DIR"):
        settings.set("JOBDIR", os.environ["CRAWL_JOB_DIR"], priority="cmdline")
    return settings


def _process(settings: Any) -> Any:
    """Return the crawler process that ``scrapy crawl`` uses with these settings."""
    import scrapy.crawler

    asyncio_reactor = "asyncio" in str(settings.get("TWISTED_REACTOR") or "")
    new_style = hasattr(scrapy.crawler, "AsyncCrawlerProcess") and (
        (asyncio_reactor and not settings.getbool("FORCE_CRAWLER_PROCESS"))
        or not settings.getbool("TWISTED_REACTOR_ENABLED", True)
    )
    return (
        scrapy.crawler.AsyncCrawlerProcess(settings)
        if new_style
        else scrapy.crawler.CrawlerProcess(settings)
    )


class StopGate:
    """A signal handler that delays a stop until Scrapy can act on it.

    Measured with Scrapy 2.19: while the spider opens (0.1 s or more), Scrapy has its handlers but
    no running engine. A signal during this time only stops the reactor: then the exit code is 0,
    there is no close reason, and the state is not saved.
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
            # Older versions of Scrapy call this ``engine``.
            engine = known.get("_engine") or known.get("engine")
            if engine is not None and engine.running:
                return True
        return False


def _takes(function: Any, name: str) -> bool:
    takes = inspect.signature(function).parameters
    return name in takes or any(taken.kind is taken.VAR_KEYWORD for taken in takes.values())


def _given(spider: Any, args: dict[str, str]) -> dict[str, str]:
    """Return the arguments of the run, and those in ``_GIVEN_TO_ALL`` that this spider accepts."""
    known = {"_job": os.environ["SCRAPY_JOB"], **args} if os.environ.get("SCRAPY_JOB") else args
    made_by = (spider.from_crawler, spider.__init__)
    return {
        name: value
        for name, value in known.items()
        if name not in _GIVEN_TO_ALL or all(_takes(function, name) for function in made_by)
    }


def _check_arguments(spider: Any, args: dict[str, str]) -> str:
    """Return the reason why the spider does not accept these arguments; an empty string if it
    accepts them.

    If the project defines its own ``from_crawler``, that method may supply missing arguments, so
    only arguments that the method itself does not accept are refused. A spider can check its
    arguments in a class method ``check_arguments``.
    """
    why = ""
    completed = not spider.from_crawler.__module__.startswith("scrapy.")
    for function in (spider.from_crawler, spider.__init__):
        try:
            signature = inspect.signature(function)
            # Check this first, so that an unknown argument is reported before a missing one.
            signature.bind_partial(None, **args)
            signature.bind(None, **args)
        except TypeError as error:
            why = f"the spider does not take these arguments: {error}"
            if function == spider.from_crawler or not completed:
                _refuse(why)
    check = getattr(spider, "check_arguments", None)
    if check is not None:
        try:
            check(**{name: value for name, value in args.items() if name not in _GIVEN_TO_ALL})
        except ValueError as error:
            _refuse(str(error))
    return why


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
    args = _given(spider, args)
    why = _check_arguments(spider, args)
    StopGate.guard(process)
    crawler = process.create_crawler(spider)
    process.crawl(crawler, **args)
    process.start()
    if why and crawler.spider is None:
        _refuse(why)
    sys.exit(1 if getattr(process, "bootstrap_failed", False) else 0)


if __name__ == "__main__":
    main()
