"""Limits of one caller: a rate for reads, a rate for writes, and how many requests and streams at once."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from crawler_lifecycle.web.problems import Problem

#: Seconds of its rate that a caller may use in one go.
BURST_S = 5.0
#: Requests being served at once for all callers together; streams do not count among them.
REQUESTS_MAX = 500
STREAMS_MAX = 2000
#: Wrong tokens at the login from one address: so many at once, and then so many a second.
WRONG_MAX, WRONG_PER_S = 10.0, 1 / 6
#: Crawlers come and go, each as a caller of its own; beyond this many, buckets that are full again are forgotten.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Quota:
    """What one caller gets."""

    reads_per_s: float = 100.0
    writes_per_s: float = 20.0
    requests_at_once: int = 50
    streams_at_once: int = 20


class _Bucket:
    """Tokens that fill up with time, at most ``BURST_S`` seconds' worth and never fewer than one."""

    def __init__(self, rate: float, now: float, size: float | None = None) -> None:
        self._rate = rate
        self._size = size or max(rate * BURST_S, 1.0)
        self._left = self._size
        self._at = now

    def take(self, now: float) -> float:
        """Take one; 0.0, or the seconds until there is one."""
        self._left = min(self._size, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate

    def full(self, now: float) -> bool:
        return self._left + (now - self._at) * self._rate >= self._size


class RateLimits:
    """The counts of one gateway process. Used from its event loop alone, so nothing is locked.

    Without a quota, or for a caller without a name (an open gateway), only the totals of the process count.
    """

    def __init__(self, quota: Quota | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._quota = quota
        self._clock = clock
        self._buckets: dict[tuple[str, bool], _Bucket] = {}
        self._requests: dict[str, int] = {}
        self._streams: dict[str, int] = {}
        self._serving = {False: 0, True: 0}

    def spend(self, caller: str | None, *, writes: bool) -> None:
        """Count one request. Raises ``Problem`` 429 with ``Retry-After`` when the caller is over its rate."""
        if self._quota is None or caller is None:
            return
        now = self._clock()
        rate = self._quota.writes_per_s if writes else self._quota.reads_per_s
        key = (caller, writes)
        if key not in self._buckets:
            self._forget(now)
            self._buckets[key] = _Bucket(rate, now)
        wait = self._buckets[key].take(now)
        if wait:
            what = "requests that change something" if writes else "requests that read"
            detail = f"More than {rate:g} {what} a second with this token; wait {math.ceil(wait)} s"
            raise _too_many("rate_limited", detail, wait)

    @contextlib.contextmanager
    def slot(self, caller: str | None, *, stream: bool) -> Iterator[None]:
        """Hold one of the caller's places, from the head of a request on. Raises ``Problem`` 429 when it has none."""
        if self._quota is None or caller is None:
            yield
            return
        counts = self._streams if stream else self._requests
        most = self._quota.streams_at_once if stream else self._quota.requests_at_once
        if counts.get(caller, 0) >= most:
            what = "streams are open" if stream else "requests are being served"
            detail = f"{most} {what} with this token; wait until one of them has ended"
            raise _too_many("too_many_at_once", detail, 1.0)
        counts[caller] = counts.get(caller, 0) + 1
        try:
            yield
        finally:
            counts[caller] -= 1
            if not counts[caller]:
                del counts[caller]

    @contextlib.contextmanager
    def serve(self, *, stream: bool) -> Iterator[None]:
        """Hold one of the process's places, once a request is complete. Raises ``Problem`` 503 when there is none."""
        most = STREAMS_MAX if stream else REQUESTS_MAX
        if self._serving[stream] >= most:
            detail = f"{most} {'streams' if stream else 'requests'} are being served; try again in a moment"
            raise Problem(503, "overloaded", detail, headers={"Retry-After": "2"})
        self._serving[stream] += 1
        try:
            yield
        finally:
            self._serving[stream] -= 1

    def _forget(self, now: float) -> None:
        if len(self._buckets) >= _REMEMBERED:
            self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.full(now)}


class Tries:
    """Wrong tokens at the login, counted by the address that they came from."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._wait_until: dict[str, float] = {}

    def check(self, address: str) -> None:
        """Raise ``Problem`` 429 when too many wrong tokens came from there."""
        wait = self._wait_until.get(address, 0.0) - self._clock()
        if wait > 0:
            detail = f"Too many wrong tokens came from {address}; wait {math.ceil(wait)} s"
            raise _too_many("rate_limited", detail, wait)

    def wrong(self, address: str) -> None:
        """Count a wrong token."""
        now = self._clock()
        if len(self._buckets) >= _REMEMBERED:
            self._buckets = {known: bucket for known, bucket in self._buckets.items() if not bucket.full(now)}
            self._wait_until = {known: until for known, until in self._wait_until.items() if until > now}
        if len(self._buckets) >= _REMEMBERED:
            del self._buckets[next(iter(self._buckets))]
        bucket = self._buckets.setdefault(address, _Bucket(WRONG_PER_S, now, WRONG_MAX))
        self._wait_until[address] = now + bucket.take(now)


class Serving:
    """ASGI middleware behind the bodies: what is not complete yet takes no place, however slowly it comes."""

    def __init__(self, app: ASGIApp, *, limits: RateLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = scope.get("lifecycle.stream")
        if stream is None:  # health, and what is no request at all
            await self._app(scope, receive, send)
            return
        with self._limits.serve(stream=stream):
            await self._app(scope, receive, send)


def _too_many(code: str, detail: str, wait: float) -> Problem:
    return Problem(429, code, detail, headers={"Retry-After": str(max(1, math.ceil(wait)))})
