"""The walk through one site."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timezone
from typing import Any, Self
from urllib.parse import urljoin

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider
from scrapy.http import HtmlResponse, Response
from scrapy.utils.response import get_base_url, get_meta_refresh

from .scope import Scope

REDIRECTS = (301, 302, 303, 307, 308)
#: Cut, because a page may name anything as its title.
TEXT_MAX = 500
#: The outcome of a crawl that was cut off by ``max_pages``: Scrapy's own word for it.
CUT_OFF = "closespider_pagecount"
#: The outcome of a crawl whose first address cannot be had. It counts as a failure.
NO_START = "start_error"

_LINKS = "//a/@href | //area/@href | //frame/@src | //iframe/@src | //link[@rel='next' or @rel='prev']/@href"
_WORDS = "//body//text()[not(ancestor::script or ancestor::style or ancestor::template or ancestor::noscript)]"

logger = logging.getLogger(__name__)


class SiteSpider(Spider):
    """Follows every link on the start's host; an item for each HTML page, whatever its status.

    ``-a start=URL`` (required)
    ``-a max_pages=10000`` at most so many addresses are asked for, dead links and redirects included
    ``-a max_depth=3`` no further than so many links from the start
    ``-a allow=REGEX``, ``-a deny=REGEX`` which addresses are followed
    ``-a delay=0.5`` seconds between two requests
    """

    name = "site"

    def __init__(
        self,
        start: str | None = None,
        max_pages: str | None = None,
        max_depth: str | None = None,
        allow: str | None = None,
        deny: str | None = None,
        delay: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.scope = Scope.read(start, max_pages, max_depth, allow, deny, delay)
        # Scrapy replaces this with the stored state when a job folder is in use, so that a resumed crawl knows which
        # addresses were asked for, and keeps to its limit.
        self.state: dict[str, Any] = {}

    @classmethod
    def check_arguments(cls, **args: str) -> None:
        """Raises ``ValueError`` for arguments with which no crawl can start. The runner asks before it starts one."""
        Scope.read(**args)

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.settings.set("DOWNLOAD_DELAY", spider.scope.delay, priority="spider")
        crawler.signals.connect(spider.on_idle, signal=signals.spider_idle)
        return spider

    async def start(self) -> AsyncIterator[Request]:
        if not self._asked():  # not after a resume: the start was asked for then
            request = self._request(self.scope.start, 0, None)
            self._asked().add(self._mark(request))
            yield request

    # --- answers

    def parse(self, response: Response, **kwargs: Any) -> Iterator[Any]:
        """Any answer: a redirect is followed if it stays, a page becomes an item, the rest is on record as skipped."""
        if response.status in REDIRECTS:
            yield from self._redirected(response)
            return
        if not isinstance(response, HtmlResponse):
            kind = (response.headers.get("Content-Type") or b"no content type").decode("latin-1")[:100]
            yield self._skipped(response.request, f"no HTML page: {response.status}, {kind}")
            self._must_not_be_start(response, f"it is no HTML page: {response.status}, {kind}")
            return
        try:
            inner, outer = self._links(response)
            item = {"kind": "page", **self._item(response), "links": len(inner), "external_links": len(outer)}
        except Exception as error:  # whatever a parser trips over in one page must not hide that page
            logger.exception("the page %s cannot be read", response.url)
            yield self._skipped(response.request, f"cannot be read: {type(error).__name__}: {error}"[:TEXT_MAX])
            self._must_not_be_start(response, "it cannot be read")
            return
        yield item
        if response.status >= 400:
            self._must_not_be_start(response, f"status {response.status}")
            return
        yield from self._follow(response, inner)

    def failed(self, failure: Any) -> Iterator[Any]:
        """No answer, none that could be taken, or not allowed by robots.txt."""
        why = f"{type(failure.value).__name__}: {failure.value}"[:TEXT_MAX]
        yield self._skipped(failure.request, why)
        if failure.request.meta["hops"] == 0:
            logger.error("the start %s cannot be had: %s", failure.request.url, why)
            raise CloseSpider(NO_START)

    def _must_not_be_start(self, response: Response, why: str) -> None:
        if response.meta["hops"] == 0:
            logger.error("the start %s cannot be used: %s", response.url, why)
            raise CloseSpider(NO_START)

    def _redirected(self, response: Response) -> Iterator[Any]:
        location = (response.headers.get("Location") or b"").decode("latin-1")
        target = self.scope.target(response.url, location) if location else None
        if target is None:
            yield self._skipped(response.request, f"{response.status} leads nowhere: {location[:TEXT_MAX]!r}")
        elif not self.scope.inside(target):
            yield self._skipped(response.request, f"{response.status} leads out of the site: {target[:TEXT_MAX]}")
        else:
            yield from self._follow(response, [target])
            return
        self._must_not_be_start(response, f"{response.status} to {location[:TEXT_MAX]!r}")

    def _item(self, response: HtmlResponse) -> dict[str, Any]:
        title = " ".join("".join(response.xpath("(//title)[1]//text()").getall()).split())
        words = sum(len(text.split()) for text in response.xpath(_WORDS).getall())
        return {
            "url": response.url,
            "status": response.status,
            "title": title[:TEXT_MAX],
            "description": (response.xpath("(//meta[@name='description'])[1]/@content").get() or "")[:TEXT_MAX],
            "language": (response.xpath("/html/@lang").get() or "")[:TEXT_MAX],
            "words": words,
            "bytes": len(response.body),
            "depth": response.meta["hops"],
            "referrer": response.meta["from"],
            "fetched_at": datetime.now(timezone.utc).isoformat(),  # noqa: UP017 - images may have Python 3.9
        }

    # --- links

    def _links(self, response: HtmlResponse) -> tuple[list[str], list[str]]:
        """The addresses a page leads to, each once, in its order: those of this site, and the others."""
        base = get_base_url(response)
        found = response.xpath(_LINKS).getall()
        _, refresh = get_meta_refresh(response, ignore_tags=("script", "noscript"))
        if refresh:
            found.append(urljoin(base, refresh))
        targets = dict.fromkeys(filter(None, (self.scope.target(base, link) for link in found)))
        inner = [target for target in targets if self.scope.inside(target)]
        return inner, [target for target in targets if not self.scope.inside(target)]

    def _follow(self, response: Response, targets: list[str]) -> Iterator[Request]:
        hops = response.meta["hops"] + 1
        if self.scope.max_depth is not None and hops > self.scope.max_depth:
            return
        asked = self._asked()
        for target in targets:
            if not self.scope.wanted(target):
                continue
            request = self._request(target, hops, response.url)
            mark = self._mark(request)
            if mark in asked:
                continue
            if len(asked) >= self.scope.max_pages:
                self.state["cut_off"] = True
                return
            asked.add(mark)
            yield request

    def _request(self, address: str, hops: int, referrer: str | None) -> Request:
        # What was asked for is known here, because the limit counts it; Scrapy's own filter would count apart.
        meta = {"hops": hops, "from": referrer}
        return Request(address, callback=self.parse, errback=self.failed, meta=meta, dont_filter=True)

    def _mark(self, request: Request) -> bytes:
        assert self.crawler.request_fingerprinter is not None
        return self.crawler.request_fingerprinter.fingerprint(request)[:12]

    def _asked(self) -> set[bytes]:
        asked: set[bytes] = self.state.setdefault("asked", set())
        return asked

    @staticmethod
    def _skipped(request: Request | None, why: str) -> dict[str, Any]:
        assert request is not None
        return {"kind": "skipped", "url": request.url, "why": why, "referrer": request.meta["from"]}

    # --- the end

    def on_idle(self) -> None:
        """Nothing left to do: whether that is because of the limit."""
        if self.state.get("cut_off"):
            logger.warning("max_pages=%d was reached, there is more to follow", self.scope.max_pages)
            raise CloseSpider(CUT_OFF)
