"""Wrong tokens, counted by the address that they came from; and the buckets that all rates are counted with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable

from .problems import Problem

#: Seconds of its rate that a caller may use in one go.
BURST_S = 5.0
#: Wrong tokens from one address: the most at once, and then the most a second.
WRONG_MAX, WRONG_PER_S = 10.0, 1 / 6
#: Callers come and go; beyond this many, buckets that are full again are forgotten.
REMEMBERED = 10_000


class Bucket:
    """Tokens that fill up with time, at most ``BURST_S`` seconds' worth and never fewer than one."""

    def __init__(self, rate: float, now: float, size: float | None = None) -> None:
        self._rate = rate
        self._size = size or max(rate * BURST_S, 1.0)
        self._left = self._size
        self._at = now

    def take(self, now: float) -> float:
        """Take one. Returns 0.0, or the seconds until one is available."""
        self._left = min(self._size, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate

    def full(self, now: float) -> bool:
        return self._left + (now - self._at) * self._rate >= self._size


class Buckets:
    """A bucket for each key; those that are full again are forgotten when there are very many."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[Hashable, Bucket] = {}

    def take(self, key: Hashable, rate: float, size: float | None = None) -> float:
        """Take one. Returns 0.0, or the seconds until one is available."""
        now = self._clock()
        if key not in self._buckets and len(self._buckets) >= REMEMBERED:
            self._buckets = {known: bucket for known, bucket in self._buckets.items() if not bucket.full(now)}
            if len(self._buckets) >= REMEMBERED:
                del self._buckets[next(iter(self._buckets))]
        return self._buckets.setdefault(key, Bucket(rate, now, size)).take(now)


class Tries:
    """Wrong tokens at every door of one process, counted by the address that they came from.

    A right one always gets in: nobody guesses it, and behind a proxy all callers have one address.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = Buckets(clock)

    def wrong(self, address: str) -> None:
        """Count a wrong token. Raises ``Problem`` 429 when too many came from there before."""
        if wait := self._buckets.take(address, WRONG_PER_S, WRONG_MAX):
            detail = f"Too many wrong tokens came from {address}; send a right one, or wait {math.ceil(wait)} s"
            raise too_many("rate_limited", detail, wait)


def address_of(client: tuple[str, int] | None) -> str:
    """Return the host that a request came from, as ASGI says it."""
    return client[0] if client else ""


def too_many(code: str, detail: str, wait: float) -> Problem:
    """The error 429, with the time of the next allowed try."""
    return Problem(429, code, detail, headers={"Retry-After": str(max(1, math.ceil(wait)))})
