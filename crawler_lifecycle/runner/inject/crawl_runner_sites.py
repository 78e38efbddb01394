"""Scrapy extension that keeps the limits of sites, which all runs share.

A request waits where it leaves Scrapy, behind delays, AutoThrottle and all middleware, so that it
begins at the time that its lease allows. Redirects and retries also pass through here. A request
for robots.txt gets the file that one task fetches for all. When the crawl ends, requests that are
still waiting are returned to Scrapy's scheduler, so that a resume sends them.

The setting ``SITES_BAN_STATUSES`` lists the statuses that close a site for all runs, by default
429. A 503 with ``Retry-After`` always does.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import threading
import time
import weakref
from typing import Any

from crawl_runner_leases import SiteLeases
from crawl_runner_retry_after import response_wait
from crawl_runner_robots import KNOWN_S, RobotsFile, SharedRobots
from scrapy import signals
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.exceptions import IgnoreRequest, NotConfigured
from scrapy.http import Response
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.httpobj import urlparse_cached
from twisted.internet.defer import Deferred

#: Seconds between two checks whether the crawl is ending, while requests wait.
_CHECK_S = 0.5
#: Headers of responses that are reported, in Scrapy's form.
_NOTED = frozenset({b"Retry-After", b"Tdm-Reservation"})
#: Scrapy's own handlers, which close a connection after its request if a header says so. Browsers
#: do not accept this header.
_OWN_HANDLERS = re.compile(r"scrapy\.core\.downloader\.handlers\.(?!http2)")


class LeasedRequests:
    """Delays each request until its site allows it, and reports what the site answers."""

    def __init__(self, crawler: Any) -> None:
        bans = crawler.settings.getlist("SITES_BAN_STATUSES", [429])
        leases = SiteLeases.from_environment(bans=_statuses(bans), wake=self._wake)
        if leases is None:
            raise NotConfigured
        self._leases = leases
        agent = crawler.settings["ROBOTSTXT_USER_AGENT"] or crawler.settings["USER_AGENT"]
        self._robots = SharedRobots(leases, agent)
        self._crawler = crawler
        self._waiting: set[_Wait] = set()
        self._from_scheduler: Any = weakref.WeakSet()
        """Requests that a resumed crawl would send, because they came from the job folder."""
        self._thread = threading.get_ident()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: Any = None
        self._due = 0.0
        crawler.signals.connect(self._opened, signal=signals.spider_opened)
        crawler.signals.connect(leases.close, signal=signals.engine_stopped)

    @classmethod
    def from_crawler(cls, crawler: Any) -> LeasedRequests:
        return cls(crawler)

    def _opened(self) -> None:
        try:
            # The timers of Twisted's reactor cost several times as much.
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a reactor without asyncio
            from twisted.internet import reactor

            self._later: Any = reactor.callLater
            self._from_thread: Any = reactor.callFromThread
        else:
            self._loop = loop
            self._later = loop.call_later
            self._from_thread = loop.call_soon_threadsafe
        downloader = self._crawler.engine.downloader
        self._wrap_handlers(downloader.handlers)
        for found in downloader.middleware.middlewares:
            if isinstance(found, RobotsTxtMiddleware):
                judge: Any = found
                judge.process_request_2 = functools.partial(
                    self._judge, judge, judge.process_request_2
                )
        if self._crawler.settings.get("JOBDIR"):
            scheduler = self._slot().scheduler
            scheduler.next_request = functools.partial(self._next, scheduler.next_request)

    def _slot(self) -> Any:
        engine = self._crawler.engine
        # Older versions of Scrapy call this ``slot``.
        return getattr(engine, "_slot", None) or getattr(engine, "slot", None)

    def _wrap_handlers(self, handlers: Any) -> None:
        known = self._crawler.settings.getwithbase("DOWNLOAD_HANDLERS")
        own = {scheme for scheme, kind in known.items() if _OWN_HANDLERS.match(str(kind))}
        self._closes_connections = own & {"http", "https"}
        if hasattr(handlers, "download_request_async"):
            original = handlers.download_request_async
            handlers.download_request_async = functools.partial(self._download, original)
        else:
            original = handlers.download_request
            handlers.download_request = functools.partial(self._download_deferred, original)

    def _download_deferred(self, original: Any, request: Any, *spider: Any) -> Any:
        async def download(request: Any) -> Any:
            return await maybe_deferred_to_future(original(request, *spider))

        return deferred_from_coro(self._download(download, request))

    async def _download(self, original: Any, request: Any) -> Any:
        parts = urlparse_cached(request)
        host = parts.hostname
        if parts.scheme not in ("http", "https") or not host:
            return await original(request)
        self._robots.visit(parts.scheme, parts.netloc)
        if parts.path == "/robots.txt" and not parts.query:
            known = await self._known(parts.scheme, parts.netloc)
            if known is not None:
                return Response(request.url, known.status, body=known.body, request=request)
        lane = None if self._leases.is_free(host) else await self._begun(host, request)
        if (
            lane is not None
            and parts.scheme in self._closes_connections
            and self._leases.is_exclusive(host)
        ):
            request.headers["Connection"] = "close"
        status = None
        retry_after = None
        try:
            response = await original(request)
            status = response.status

            if not _NOTED.isdisjoint(response.headers):

                def header(name: str) -> str:
                    return (response.headers.get(name) or b"").decode("latin-1")

                self._robots.note(parts.scheme, parts.netloc, header)
                retry_after = response_wait(header("Retry-After"), header("Date"))
            return response
        finally:
            self._leases.end(host, lane, status, retry_after, _proxy_of(request))

    # --- robots.txt -------------------------------------------------------------------------------

    async def _known(self, scheme: str, authority: str) -> RobotsFile | None:
        """Return the robots.txt that one task fetches for all; ``None`` if it is not known in
        time.
        """
        until = time.monotonic() + KNOWN_S
        found: Any = Deferred()

        def end(file: RobotsFile | None) -> None:
            if not found.called:
                found.callback(file)

        def check() -> None:
            slot = self._slot()
            if time.monotonic() > until or slot is None or slot.closing:
                end(None)
            elif not found.called:
                self._later(_CHECK_S, check)

        self._robots.when_known(scheme, authority, functools.partial(self._in_loop, end))
        check()
        return await maybe_deferred_to_future(found)

    def _judge(
        self, middleware: Any, original: Any, rules: Any, request: Any, *spider: Any
    ) -> None:
        """Count a request that robots.txt does not allow."""
        parts = urlparse_cached(request)
        if rules is None:
            # Of the requests that wait for robots.txt, Scrapy 2.13 to 2.19 gives the rules only to
            # the first two.
            known = getattr(middleware, "_parsers", {}).get(parts.netloc)
            rules = None if isinstance(known, Deferred) else known
        try:
            original(rules, request, *spider)
        except IgnoreRequest:
            self._leases.refuse(parts.hostname or "")
            raise

    # --- waiting ----------------------------------------------------------------------------------

    async def _begun(self, host: str, request: Any) -> int | None:
        """Wait until the request may begin, and return its lane.

        Raises ``IgnoreRequest`` if the crawl ends first.
        """
        while True:
            wait = _Wait(host, self._loop)
            self._waiting.add(wait)
            self._leases.begin(host, wait.begin)
            try:
                if not wait.latest:
                    await wait.turn
                # The process may have been frozen, or busy for a long time.
                if time.monotonic() <= wait.latest:
                    return wait.lane
                self._leases.abandon(host, wait.lane)
            except IgnoreRequest:
                self._give_back(request)
                raise
            except BaseException:  # Scrapy cancelled the request
                if not self._leases.cancel(host, wait.begin):
                    self._leases.abandon(host, wait.lane)
                raise
            finally:
                self._waiting.discard(wait)

    def _wake(self) -> None:
        if threading.get_ident() == self._thread:
            self._begin_due()
        else:
            self._in_loop(self._begin_due)

    def _in_loop(self, function: Any, *args: Any) -> None:
        """Call a function of Scrapy's thread from another thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._from_thread(function, *args)

    def _begin_due(self, *, timed: bool = False) -> None:
        """Begin the requests whose time has come, and set a timer for the next one."""
        if timed:
            self._timer = None
        delay = self._leases.begin_due()
        if not self._waiting and delay is None:
            return
        slot = self._slot()
        if slot is None or slot.closing:
            self._end_waiting()
            return
        delay = _CHECK_S if delay is None else min(delay, _CHECK_S)
        due = time.monotonic() + delay
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._later(delay, functools.partial(self._begin_due, timed=True))

    # --- the end of the crawl ---------------------------------------------------------------------

    def _end_waiting(self) -> None:
        """End the waiting of all requests, because Scrapy ends a crawl when none is in progress."""
        for wait in list(self._waiting):
            if self._leases.cancel(wait.host, wait.begin):
                wait.fail(IgnoreRequest(f"The crawl ended before {wait.host} was free"))

    def _next(self, original: Any) -> Any:
        request = original()
        if request is not None:
            self._from_scheduler.add(request)
        return request

    def _give_back(self, request: Any) -> None:
        """Give a request that did not begin back to the scheduler, for a resumed crawl."""
        if request in self._from_scheduler:
            self._slot().scheduler.enqueue_request(request.replace(dont_filter=True))
            request.errback = None  # it did not fail


class _Wait:
    """The waiting of one request, in asyncio if there is a loop. That is cheaper than Twisted."""

    def __init__(self, host: str, loop: asyncio.AbstractEventLoop | None) -> None:
        self.host = host
        self.turn: Any
        if loop is None:
            deferred: Deferred[None] = Deferred()
            self.turn = maybe_deferred_to_future(deferred)
            self._end: Any = deferred.callback
            self._fail: Any = deferred.errback
        else:
            self.turn = loop.create_future()
            self._end = self.turn.set_result
            self._fail = self.turn.set_exception
        self.lane: int | None = None
        self.latest = 0.0

    def begin(self, lane: int | None, latest: float) -> None:
        self.lane = lane
        self.latest = latest
        with contextlib.suppress(asyncio.InvalidStateError):  # Scrapy cancelled the request
            self._end(None)

    def fail(self, error: Exception) -> None:
        with contextlib.suppress(asyncio.InvalidStateError):  # Scrapy cancelled the request
            self._fail(error)


def _proxy_of(request: Any) -> str | None:
    """Return the host and port of the request's proxy, without user and password."""
    proxy = request.meta.get("proxy")
    if not isinstance(proxy, str) or not proxy:
        return None
    address = proxy.rpartition("@")[2].rpartition("//")[2]
    return address.partition("/")[0].lower() or None


def _statuses(given: Any) -> list[int]:
    try:
        return [int(status) for status in given]
    except (TypeError, ValueError):
        raise ValueError(
            f"SITES_BAN_STATUSES: {given!r} is not valid; give status codes such as [403, 429]"
        ) from None
