"""Limits for each caller: the rates of reads and writes, and the numbers of concurrent requests and
streams.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import KW_ONLY, dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from crawler_lifecycle.web.problems import Problem
from crawler_lifecycle.web.shares import PROCESS, Owner, Shares
from crawler_lifecycle.web.tries import Buckets, too_many

from .tokens import Caller

#: The maximum number of concurrent requests of all callers together, not counting streams. Each
#: project can use half of them, and so can all crawlers together.
REQUESTS_MAX = 500
#: The same limit for streams.
STREAMS_MAX = 2000
_WHAT = {False: "requests are being served", True: "streams are open"}


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits for one token. Each session with it can use half of its requests and streams."""

    max_reads_per_s: float = 100.0
    max_writes_per_s: float = 20.0
    max_concurrent_requests: int = 50
    max_concurrent_streams: int = 20


class RateLimits:
    """The counters of one gateway process.

    They need no lock, because only the event loop uses them. Without a quota, or for a caller
    without a name (on an open gateway), only the limits of the whole process apply.
    """

    def __init__(self, quota: Quota | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._quota = quota
        self._buckets = Buckets(clock)
        self._open = {False: Shares(), True: Shares()}
        """The open requests and the open streams."""

    def spend(self, caller: str | None, *, writes: bool) -> None:
        """Count one request.

        Raises ``Problem`` 429 with ``Retry-After`` if the caller has sent too many requests.
        """
        if self._quota is None or caller is None:
            return
        rate = self._quota.max_writes_per_s if writes else self._quota.max_reads_per_s
        what = "write" if writes else "read"
        self._take((caller, writes), rate, f"{what} requests per second with this token")

    def spend_freely(self, sender: str, operation: str | None, rate: float) -> None:
        """Count one request that needs no role.

        Raises ``Problem`` 429 if this caller or address has sent too many.
        """
        self._take((sender, operation), rate, f"such requests per second from {sender}")

    def _take(self, key: Hashable, rate: float, what: str) -> None:
        if wait := self._buckets.take(key, rate):
            detail = f"More than {rate:g} {what}; wait {math.ceil(wait)} s"
            raise too_many("rate_limited", detail, wait)

    @contextlib.contextmanager
    def slot(self, caller: Caller | None, *, stream: bool) -> Iterator[None]:
        """Count an open request or stream for the session, the token and the project.

        Raises ``Problem`` 429 if one of them has too many open.
        """
        most_of_all = STREAMS_MAX if stream else REQUESTS_MAX
        owners: dict[Owner, int] = {}
        if self._quota is not None and caller is not None:
            most = (
                self._quota.max_concurrent_streams
                if stream
                else self._quota.max_concurrent_requests
            )
            if caller.login is not None:
                owners["login", caller.login] = (most + 1) // 2
            owners["token", caller.key] = most
            group = ("crawlers", "") if caller.role is None else ("project", caller.project)
            owners[group] = most_of_all // 2
        full = self._open[stream].take(owners)
        if full is not None:
            what = _WHAT[stream]
            detail = (
                f"{owners[full]} {what} for the same {full[0]}; wait until one of them has ended"
            )
            raise too_many("too_many_at_once", detail, 1.0)
        try:
            yield
        finally:
            self._open[stream].give_back(owners)

    @contextlib.contextmanager
    def serve(self, *, stream: bool) -> Iterator[None]:
        """Count a request or stream towards the limits of the process, after its body has been
        read.

        Raises ``Problem`` 503 if too many are open.
        """
        most = STREAMS_MAX if stream else REQUESTS_MAX
        if self._open[stream].take({PROCESS: most}) is not None:
            detail = f"{most} {_WHAT[stream]}; try again in a moment"
            raise Problem(503, "overloaded", detail, headers={"Retry-After": "2"})
        try:
            yield
        finally:
            self._open[stream].give_back([PROCESS])


@dataclass(eq=False)
class Serving:
    """ASGI middleware that counts the requests of the process.

    It runs after the body was read, so that slow senders do not take the slots of everyone else.
    """

    app: ASGIApp
    _: KW_ONLY
    limits: RateLimits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = scope.get("lifecycle.stream")
        if stream is None:  # a health check, or not a request
            await self.app(scope, receive, send)
            return
        with self.limits.serve(stream=stream):
            await self.app(scope, receive, send)
