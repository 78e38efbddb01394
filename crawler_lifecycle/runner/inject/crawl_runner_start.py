"""Spider middleware: a resumed crawl does not send again the start requests of its earlier
attempts.

Scrapy keeps waiting requests in the job folder, and runs the spider's ``start`` again when it
resumes. Its filter of duplicates does not help, because by default start requests bypass it. So we
record each start request that Scrapy's scheduler takes, in the job folder too, and drop as many
equal ones. The setting ``CRAWL_START_AGAIN`` turns this off: a session of cookies ends with the
process, and then a spider has to log in again.
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

#: Bytes of a fingerprint in the record.
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
        # Another scheduler may forget its requests. issubclass() is true for each class with the
        # same methods.
        ours = Scheduler in load_object(crawler.settings["SCHEDULER"]).__mro__
        if not folder or not ours or crawler.settings.getbool("CRAWL_START_AGAIN"):
            raise NotConfigured
        return cls(crawler, os.path.join(folder, "start.seen"))

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for found in start:
            if self._is_new(found):
                yield found

    def process_start_requests(self, start_requests: Iterable[Any], spider: Any) -> Iterator[Any]:
        """Do the same for Scrapy before 2.13."""
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
