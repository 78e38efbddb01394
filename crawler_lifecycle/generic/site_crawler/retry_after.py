"""Middleware for the header ``Retry-After``: the crawl waits as long as a server requests, up to a
limit.
"""

from __future__ import annotations

import logging
import time
from email.utils import parsedate_to_datetime
from typing import Any, Self

from scrapy.crawler import Crawler
from scrapy.http import Request, Response
from scrapy.utils.asyncio import call_later

#: The longest pause for one response, and for all responses of a crawl together, in seconds.
PAUSE_MAX_S = 60.0
PAUSES_MAX_S = 600.0

logger = logging.getLogger(__name__)


def seconds_of(header: bytes | None, now: float) -> float:
    """Return the pause that a ``Retry-After`` requests, up to ``PAUSE_MAX_S``.

    The header contains seconds or a date. Return 0 for a missing or invalid header.
    """
    text = (header or b"").decode("latin-1").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:9]), PAUSE_MAX_S)
    try:
        return min(max(parsedate_to_datetime(text).timestamp() - now, 0.0), PAUSE_MAX_S)
    except (TypeError, ValueError, OverflowError, IndexError):
        return 0.0


class RetryAfter:
    """Pauses the whole crawl if a server responds with 429 or 503 with a ``Retry-After``.

    The engine pauses, and the request to be retried stays in the queue. So a stop during the pause
    works as usual, and a resumed crawl sends the request. Scrapy's own retry middleware runs after
    this middleware and counts the attempts.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._paused = 0.0
        self._until = 0.0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def process_response(
        self, request: Request, response: Response, spider: Any = None
    ) -> Response:
        """Return the response unchanged. If the response requests a pause, start the pause."""
        if response.status in (429, 503):
            now = time.monotonic()
            pause = seconds_of(response.headers.get("Retry-After"), time.time())
            # An earlier response may have started a pause.
            longer = max(now + pause - max(self._until, now), 0.0)
            if longer > 0 and self._paused + longer <= PAUSES_MAX_S:
                self._pause(now, pause, longer)
        return response

    def _pause(self, now: float, pause: float, longer: float) -> None:
        logger.info("the crawl pauses for %.0f s, as the server requests (Retry-After)", pause)
        self._paused, self._until = self._paused + longer, now + pause
        if self._crawler.engine is not None:
            self._crawler.engine.pause()
            call_later(pause, self._go_on)

    def _go_on(self) -> None:
        if time.monotonic() >= self._until - 0.01 and self._crawler.engine is not None:
            self._crawler.engine.unpause()
