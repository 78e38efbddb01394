"""Spider middleware that prevents a resumed crawl from repeating the start requests that its
earlier attempts sent.

Scrapy keeps waiting requests in the job folder, and runs the spider's ``start`` again when it
resumes. Scrapy's duplicate filter does not help, because by default start requests bypass it. So we
record in the job folder each start request that Scrapy's scheduler accepts, and drop the same
number of equal requests. The setting ``CRAWL_START_AGAIN`` turns this middleware off, for example
for a spider that has to log in again because its session cookies ended with the process.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from scrapy import Request
from scrapy.core.scheduler import Scheduler
from scrapy.exceptions import NotConfigured
from scrapy.utils.misc import load_object

#: Size of a recorded fingerprint in bytes.
_SIZE = 8


class StartOnce:
    """The record of start requests in one job folder."""

    def __init__(self, crawler: Any, path: str) -> None:
        self._fingerprint = crawler.request_fingerprinter.fingerprint
        self._record = open(path, "a+b", buffering=0)  # noqa: SIM115
        self._record.seek(0)
        self._earlier = Counter(iter(lambda: self._record.read(_SIZE), b""))

    @classmethod
    def from_crawler(cls, crawler: Any) -> StartOnce:
        folder = crawler.settings.get("JOBDIR")
        # A project's own scheduler may not keep its requests. issubclass() is true for each class
        # with the same methods.
        ours = Scheduler in load_object(crawler.settings["SCHEDULER"]).__mro__
        if not folder or not ours or crawler.settings.getbool("CRAWL_START_AGAIN"):
            raise NotConfigured
        return cls(crawler, os.path.join(folder, "start.seen"))

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for found in start:
            if self._is_new(found):
                yield found

    def process_start_requests(self, start_requests: Iterable[Any], spider: Any) -> Iterator[Any]:
        """Do the same as ``process_start``, for Scrapy before 2.13."""
        return filter(self._is_new, start_requests)

    def _is_new(self, found: Any) -> bool:
        if not isinstance(found, Request):
            return True
        mark = hashlib.blake2b(self._fingerprint(found), digest_size=_SIZE).digest()
        if self._earlier[mark] > 0:
            self._earlier[mark] -= 1
            return False
        self._record.write(mark)
        return True
