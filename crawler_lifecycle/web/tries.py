"""Counters of wrong tokens for each address, and the token buckets that limit all rates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable

from .problems import Problem

#: A caller can use up this many seconds of its rate at once.
BURST_S = 5.0
#: The limit for wrong tokens from one address: the maximum number at once.
WRONG_MAX = 10.0
#: The number of further ones per second after that.
WRONG_PER_S = 1 / 6
#: The maximum number of callers to remember. Above that, full buckets are removed.
REMEMBERED = 10_000


class Bucket:
    """A token bucket.

    It holds ``size`` tokens. By default, it holds the tokens of ``BURST_S`` seconds, but at least
    one.
    """

    def __init__(self, rate: float, now: float, size: float | None = None) -> None:
        self._rate = rate
        self._size = size or max(rate * BURST_S, 1.0)
        self._left = self._size
        self._at = now

    def take(self, now: float) -> float:
        """Take one token. Return 0.0, or the seconds until a token is available."""
        self._left = min(self._size, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate

    def full(self, now: float) -> bool:
        return self._left + (now - self._at) * self._rate >= self._size


class Buckets:
    """A bucket for each key. If there are too many buckets, full ones are removed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[Hashable, Bucket] = {}

    def take(self, key: Hashable, rate: float, size: float | None = None) -> float:
        """Take one token. Return 0.0, or the seconds until a token is available."""
        now = self._clock()
        if key not in self._buckets and len(self._buckets) >= REMEMBERED:
            self._buckets = {
                known: bucket for known, bucket in self._buckets.items() if not bucket.full(now)
            }
            if len(self._buckets) >= REMEMBERED:
                del self._buckets[next(iter(self._buckets))]
        return self._buckets.setdefault(key, Bucket(rate, now, size)).take(now)


class Tries:
    """A counter of wrong tokens for each address, in one process.

    A valid token is always accepted, because nobody can guess one, and because all callers behind a
    proxy have the same address.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = Buckets(clock)

    def wrong(self, address: str) -> None:
        """Count a wrong token. Raises ``Problem`` 429 if too many have come from this address
        before.
        """
        if wait := self._buckets.take(address, WRONG_PER_S, WRONG_MAX):
            detail = (
                f"Too many wrong tokens came from {address}; send a valid one, or wait "
                f"{math.ceil(wait)} s"
            )
            raise too_many("rate_limited", detail, wait)


def address_of(client: tuple[str, int] | None) -> str:
    """Return the address of the client that sent a request, or an empty string if it is not
    known."""
    return client[0] if client else ""


def too_many(code: str, detail: str, wait: float) -> Problem:
    """Return a 429 problem. ``Retry-After`` is the time until the next allowed try."""
    return Problem(429, code, detail, headers={"Retry-After": str(max(1, math.ceil(wait)))})
