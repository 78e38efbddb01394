"""``Retry-After``: waits as long as a server asks for, within bounds."""

from __future__ import annotations

import logging
import time
from email.utils import parsedate_to_datetime
from typing import Any, Self

from scrapy.crawler import Crawler
from scrapy.http import Request, Response
from scrapy.utils.asyncio import call_later

#: The longest pause that one answer can ask for, and all of them together, in seconds.
PAUSE_MAX_S, PAUSES_MAX_S = 60.0, 600.0

logger = logging.getLogger(__name__)


def seconds_of(header: bytes | None, now: float) -> float:
    """The pause that a ``Retry-After`` asks for, as seconds or as a date; 0 for none and for what is neither."""
    text = (header or b"").decode("latin-1").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:9]), PAUSE_MAX_S)
    try:
        return min(max(parsedate_to_datetime(text).timestamp() - now, 0.0), PAUSE_MAX_S)
    except (TypeError, ValueError, OverflowError, IndexError):
        return 0.0


class RetryAfter:
    """Pauses the whole crawl when a server says 429 or 503 and names a time.

    The engine pauses, no request waits: what is to be asked again lies in the queue, so a stop meanwhile is an
    ordinary one and a resume asks for it. Comes before Scrapy's own retry, whose count of attempts holds.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._paused = 0.0
        self._until = 0.0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def process_response(self, request: Request, response: Response, spider: Any = None) -> Response:
        """As it is; with a pause if it asks for one."""
        if response.status in (429, 503):
            now = time.monotonic()
            pause = seconds_of(response.headers.get("Retry-After"), time.time())
            longer = max(now + pause - max(self._until, now), 0.0)  # others may have asked already
            if longer > 0 and self._paused + longer <= PAUSES_MAX_S:
                self._pause(now, pause, longer)
        return response

    def _pause(self, now: float, pause: float, longer: float) -> None:
        logger.info("the server asks to be left alone for %.0f s (Retry-After)", pause)
        self._paused, self._until = self._paused + longer, now + pause
        if self._crawler.engine is not None:
            self._crawler.engine.pause()
            call_later(pause, self._go_on)

    def _go_on(self) -> None:
        if time.monotonic() >= self._until - 0.01 and self._crawler.engine is not None:
            self._crawler.engine.unpause()
