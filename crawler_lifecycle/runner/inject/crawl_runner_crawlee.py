"""HTTP client for Crawlee (Python) that keeps the limits of sites, which all runs share.

A request for robots.txt gets the file that one task fetches for all.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from crawl_runner_leases import SiteLeases
from crawl_runner_retry_after import response_wait
from crawl_runner_robots import RobotsFile, SharedRobots, redirect_target
from crawl_runner_turns import known_robots, turn_at
from crawlee import HttpHeaders
from crawlee.http_clients import HttpClient, HttpCrawlingResult, ImpitHttpClient

_CLOSED_PORT = "http://127.0.0.1:9/"
_REDIRECTS_MAX = 20
#: Headers that are only for the first site, and those of a body.
_PRIVATE = ("authorization", "cookie", "proxy-authorization")
_OF_BODY = ("content-encoding", "content-language", "content-length", "content-type")


class LeasedHttpClient(HttpClient):  # type: ignore[misc]
    """Sends requests with another client, each as soon as its site allows it.

    A request waits in the crawler's ``navigation_timeout``, which therefore has to be longer than
    the pauses of the sites. ``timeout`` limits each request itself. A ``client`` must not follow
    redirects by itself, because each one waits for its own site.

    Without ``CRAWL_LEASES_URL``, outside of a task, requests do not wait.
    """

    def __init__(
        self, client: HttpClient | None = None, timeout: timedelta = timedelta(minutes=1)
    ) -> None:
        super().__init__()
        ours = functools.partial(ImpitHttpClient, follow_redirects=False, http3=False)
        self._client = client or ours()
        self._new: Callable[[], HttpClient] = (lambda: client) if client else ours
        self._timeout = timeout
        self._prepared = False
        self._leases = SiteLeases.from_environment()
        self._robots = None if self._leases is None else SharedRobots(self._leases)

    async def crawl(self, request: Any, *, statistics: Any = None, **options: Any) -> Any:
        given = {"method": request.method, "headers": request.headers, "payload": request.payload}
        async with self._last(_Hop(request.url, {**options, **given})) as (url, response):
            request.loaded_url = url
        if statistics:
            statistics.register_status_code(response.status_code)
        return HttpCrawlingResult(http_response=response)

    async def send_request(self, url: str, **options: Any) -> Any:
        parts = urlsplit(url)
        if self._robots is not None and parts.path == "/robots.txt" and not parts.query:
            known = await known_robots(self._robots, parts.scheme, parts.netloc)
            if known is not None:
                return _SharedResponse(known)
        async with self._last(_Hop(url, options)) as (_, response):
            return response

    @asynccontextmanager
    async def stream(self, url: str, **options: Any) -> AsyncIterator[Any]:
        async with self._last(_Hop(url, options), stream=True) as (_, response):
            yield response

    async def cleanup(self) -> None:
        await self._client.cleanup()

    @asynccontextmanager
    async def _last(self, hop: _Hop, *, stream: bool = False) -> AsyncIterator[tuple[str, Any]]:
        """Send a request and those to which it is redirected. Yield the last URL and its response,
        during whose turn the block is executed.

        Raises ``RuntimeError`` if there are too many redirects.
        """
        for _ in range(_REDIRECTS_MAX + 1):
            async with self._turn(hop, stream=stream) as response:
                after = hop.after(response)
                if after is None:
                    yield hop.url, response
                    return
            hop = after
        raise RuntimeError(f"more than {_REDIRECTS_MAX} redirects, the last one to {hop.url}")

    @asynccontextmanager
    async def _turn(self, hop: _Hop, *, stream: bool) -> AsyncIterator[Any]:
        """Send a request in a turn of its host, which ends with the block. Yield the response."""
        parts = urlsplit(hop.url)
        host = parts.hostname
        if self._leases is None or self._robots is None or host is None:
            async with self._sent(hop, stream=stream, closes=False) as response:
                yield response
            return
        self._robots.visit(parts.scheme, parts.netloc)
        if not self._prepared:
            self._prepared = True
            # The first request loads libraries, for up to 0.1 s, and would be late in its turn.
            with contextlib.suppress(Exception):
                await self._client.send_request(_CLOSED_PORT, timeout=timedelta(seconds=1))
        lane = await turn_at(self._leases, host)
        status = None
        retry_after = None
        try:
            closes = self._leases.is_exclusive(host)
            async with self._sent(hop, stream=stream, closes=closes) as response:
                status = response.status_code
                headers = response.headers
                retry_after = response_wait(headers.get("retry-after"), headers.get("date"))
                self._robots.note(parts.scheme, parts.netloc, headers.get)
                yield response
        finally:
            self._leases.end(host, lane, status, retry_after)

    @asynccontextmanager
    async def _sent(self, hop: _Hop, *, stream: bool, closes: bool) -> AsyncIterator[Any]:
        """Send a request. Yield the response. If ``closes``, its connection ends with the block."""
        client = self._client
        timeout = min(hop.options.get("timeout") or self._timeout, self._timeout)
        options = {**hop.options, "timeout": timeout}
        if closes:
            options["headers"] = {**hop.headers, "connection": "close"}
            if hop.url.startswith("https:"):
                # HTTP/2 knows no such header. Its connections end with their client.
                client = self._new()
        try:
            if stream:
                async with client.stream(hop.url, **options) as response:
                    yield response
            else:
                yield await client.send_request(hop.url, **options)
        finally:
            if client is not self._client:
                await client.cleanup()


class _Hop(NamedTuple):
    """A request: its URL, and the options of ``HttpClient.send_request``."""

    url: str
    options: dict[str, Any]

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.options.get("headers") or {})

    def after(self, response: Any) -> _Hop | None:
        """Return the request to which a response redirects; ``None`` if there is none."""
        status = response.status_code
        url = redirect_target(self.url, status, response.headers.get("location"))
        if url is None:
            return None
        before = urlsplit(self.url)
        after = urlsplit(url)
        changed: dict[str, Any] = {}
        dropped: set[str] = set()
        method = self.options.get("method", "GET")
        if (status in (301, 302) and method == "POST") or (
            status == 303 and method not in ("GET", "HEAD")
        ):
            changed = {"method": "GET", "payload": None}
            dropped.update(_OF_BODY)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            dropped.update(_PRIVATE)
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in dropped
        }
        return _Hop(url, {**self.options, **changed, "headers": headers})


class _SharedResponse:
    """The robots.txt that one task fetches for all, as Crawlee reads responses."""

    http_version = "HTTP/1.1"

    def __init__(self, file: RobotsFile) -> None:
        self.status_code = file.status
        self.headers = HttpHeaders()
        self._body: bytes = file.body

    async def read(self) -> bytes:
        return self._body
