"""Limits for each caller: rates of reads and of writes, and numbers of requests and streams at the same time."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from crawler_lifecycle.web.problems import Problem
from crawler_lifecycle.web.tries import Buckets, too_many

#: The most requests at the same time for all callers together, without streams.
REQUESTS_MAX = 500
STREAMS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits for one caller."""

    reads_per_s: float = 100.0
    writes_per_s: float = 20.0
    requests_at_once: int = 50
    streams_at_once: int = 20


class RateLimits:
    """The counters of one gateway process.

    They need no lock, because only the event loop uses them. Without a quota, or for a caller without a name (on an
    open gateway), only the limits of the whole process apply.
    """

    def __init__(self, quota: Quota | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._quota = quota
        self._buckets = Buckets(clock)
        self._requests: dict[str, int] = {}
        self._streams: dict[str, int] = {}
        self._serving = {False: 0, True: 0}

    def spend(self, caller: str | None, *, writes: bool) -> None:
        """Count one request. Raises ``Problem`` 429 with ``Retry-After`` if the caller sent too many."""
        if self._quota is None or caller is None:
            return
        rate = self._quota.writes_per_s if writes else self._quota.reads_per_s
        if wait := self._buckets.take((caller, writes), rate):
            what = "requests that change something" if writes else "requests that read"
            detail = f"More than {rate:g} {what} a second with this token; wait {math.ceil(wait)} s"
            raise too_many("rate_limited", detail, wait)

    def spend_freely(self, sender: str, operation: str | None, rate: float) -> None:
        """Count one request that needs no role. Raises ``Problem`` 429 if this caller or address sent too many."""
        if wait := self._buckets.take((sender, operation), rate):
            detail = f"More than {rate:g} such requests a second from {sender}; wait {math.ceil(wait)} s"
            raise too_many("rate_limited", detail, wait)

    @contextlib.contextmanager
    def slot(self, caller: str | None, *, stream: bool) -> Iterator[None]:
        """Count an open request or stream of this caller. Raises ``Problem`` 429 if the caller has too many."""
        if self._quota is None or caller is None:
            yield
            return
        counts = self._streams if stream else self._requests
        most = self._quota.streams_at_once if stream else self._quota.requests_at_once
        if counts.get(caller, 0) >= most:
            what = "streams are open" if stream else "requests are being served"
            detail = f"{most} {what} with this token; wait until one of them has ended"
            raise too_many("too_many_at_once", detail, 1.0)
        counts[caller] = counts.get(caller, 0) + 1
        try:
            yield
        finally:
            counts[caller] -= 1
            if not counts[caller]:
                del counts[caller]

    @contextlib.contextmanager
    def serve(self, *, stream: bool) -> Iterator[None]:
        """Count a request or stream of this process after its body is read. Raises ``Problem`` 503 for too many."""
        most = STREAMS_MAX if stream else REQUESTS_MAX
        if self._serving[stream] >= most:
            detail = f"{most} {'streams' if stream else 'requests'} are being served; try again in a moment"
            raise Problem(503, "overloaded", detail, headers={"Retry-After": "2"})
        self._serving[stream] += 1
        try:
            yield
        finally:
            self._serving[stream] -= 1


class Serving:
    """ASGI middleware that counts served requests. It runs after the body is read, so slow senders do not count."""

    def __init__(self, app: ASGIApp, *, limits: RateLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = scope.get("lifecycle.stream")
        if stream is None:  # a health check, or not a request
            await self._app(scope, receive, send)
            return
        with self._limits.serve(stream=stream):
            await self._app(scope, receive, send)
