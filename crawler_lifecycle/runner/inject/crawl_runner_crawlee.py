"""HTTP client for Crawlee (Python) that keeps the limits of sites, which all runs share.

A request for robots.txt gets the file that one task fetches for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from crawl_runner_leases import SiteLeases
from crawl_runner_robots import RobotsFile, SharedRobots
from crawl_runner_turns import known_robots, retry_after_s, turn_at
from crawlee import HttpHeaders
from crawlee.http_clients import HttpClient, ImpitHttpClient

_CLOSED_PORT = "http://127.0.0.1:9/"


class LeasedHttpClient(HttpClient):  # type: ignore[misc]
    """Sends requests with another client, each as soon as its site allows it.

    A request waits in the crawler's ``navigation_timeout``, which therefore has to be longer than
    the pauses of the sites. ``timeout`` limits the request itself. A redirect counts for the host
    of its first request.

    Without ``CRAWL_LEASES_URL``, outside of a task, requests do not wait.
    """

    def __init__(
        self, client: HttpClient | None = None, timeout: timedelta = timedelta(minutes=1)
    ) -> None:
        super().__init__()
        self._client = client or ImpitHttpClient()
        self._timeout = timeout
        self._prepared = False
        self._leases = SiteLeases.from_environment()
        self._robots = None if self._leases is None else SharedRobots(self._leases)

    async def crawl(self, request: Any, **options: Any) -> Any:
        async with self._turn(request.url) as responses:
            headers = self._headers(request.url, request.headers)
            request = request.model_copy(update={"headers": HttpHeaders(headers)})
            result = await self._client.crawl(request, **self._limited(options))
            responses.append(result.http_response)
        return result

    async def send_request(self, url: str, **options: Any) -> Any:
        parts = urlsplit(url)
        if self._robots is not None and parts.path == "/robots.txt" and not parts.query:
            known = await known_robots(self._robots, parts.scheme, parts.netloc)
            if known is not None:
                return _SharedResponse(known)
        async with self._turn(url) as responses:
            options["headers"] = self._headers(url, options.get("headers"))
            response = await self._client.send_request(url, **self._limited(options))
            responses.append(response)
        return response

    @asynccontextmanager
    async def stream(self, url: str, **options: Any) -> AsyncIterator[Any]:
        async with self._turn(url) as responses:
            options["headers"] = self._headers(url, options.get("headers"))
            async with self._client.stream(url, **self._limited(options)) as response:
                responses.append(response)
                yield response

    async def cleanup(self) -> None:
        await self._client.cleanup()

    def _limited(self, options: dict[str, Any]) -> dict[str, Any]:
        timeout = options.get("timeout") or self._timeout
        return {**options, "timeout": min(timeout, self._timeout)}

    def _headers(self, url: str, given: Mapping[str, str] | None) -> dict[str, str]:
        """Return the headers of a request. Where connections are limited, its own ends with it."""
        headers = dict(given or {})
        host = urlsplit(url).hostname
        if self._leases is not None and host is not None and self._leases.is_exclusive(host):
            headers["connection"] = "close"
        return headers

    @asynccontextmanager
    async def _turn(self, url: str) -> AsyncIterator[list[Any]]:
        """Hold a lane of the site while a request is sent. The caller adds its response."""
        responses: list[Any] = []
        parts = urlsplit(url)
        host = parts.hostname
        if self._leases is None or self._robots is None or host is None:
            yield responses
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
            yield responses
        finally:
            for response in responses:
                status = response.status_code
                headers = response.headers
                retry_after = retry_after_s(headers.get("retry-after"), headers.get("date"))
                self._robots.note(parts.scheme, parts.netloc, headers.get)
            self._leases.end(host, lane, status, retry_after)


class _SharedResponse:
    """The robots.txt that one task fetches for all, as Crawlee reads responses."""

    http_version = "HTTP/1.1"

    def __init__(self, file: RobotsFile) -> None:
        self.status_code = file.status
        self.headers = HttpHeaders()
        self._body: bytes = file.body

    async def read(self) -> bytes:
        return self._body
