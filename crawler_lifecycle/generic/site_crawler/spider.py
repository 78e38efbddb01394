"""The spider that follows the links of one site."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime, timezone
from typing import Any, Self
from urllib.parse import urljoin

from lxml import etree  # type: ignore[import-untyped]
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider
from scrapy.http import HtmlResponse, Response
from scrapy.utils.response import get_base_url, get_meta_refresh

from .page import lines_of, too_much, words_of
from .scope import CHAIN_MAX, URL_MAX, Redirects, Scope

REDIRECTS = (301, 302, 303, 307, 308)
#: The maximum length of a string from a page, such as the title.
TEXT_MAX = 500
#: Scrapy's close reason for a crawl that reached its limit, here ``max_pages``.
CUT_OFF = "closespider_pagecount"
#: The close reason of a crawl whose first address cannot be used. It counts as a failure.
NO_START = "start_error"

# ``smart_strings=False`` creates plain strings, which saves memory, because a page may have very
# many links.
_LINKS = etree.XPath(
    "//a/@href | //area/@href | //frame/@src | //iframe/@src | //link[@rel='next' or "
    "@rel='prev']/@href",
    smart_strings=False,
)

logger = logging.getLogger(__name__)


class SiteSpider(Spider):
    """Follows every link on the host of the start URL, and creates an item for each HTML page,
    whatever its status.

    ``-a start=URL`` the first URL (required) ``-a max_pages=10000`` maximum number of URLs to
    request, including dead links and redirects ``-a max_depth=3`` maximum number of links from the
    start to a page ``-a allow=REGEX``, ``-a deny=REGEX`` follow only addresses that match ``allow``
    and do not match ``deny`` ``-a delay=0.5`` seconds between two requests ``-a save=html`` (or
    ``text``) also keep each page with status 200, as HTML or only its text
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
        save: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        limits = {"max_pages": max_pages, "max_depth": max_depth, "allow": allow, "deny": deny}
        self.scope = Scope.read(start, **limits, delay=delay, save=save)
        # If there is a job folder, Scrapy replaces this with the stored state. A resumed crawl then
        # does not request the same addresses again, and its limit includes them.
        self.state: dict[str, Any] = {}

    @classmethod
    def check_arguments(cls, **args: str) -> None:
        """Raise ``ValueError`` if a crawl cannot start with these arguments.

        The runner calls this before a crawl.
        """
        Scope.read(**args)

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.settings.set("DOWNLOAD_DELAY", spider.scope.delay, priority="spider")
        crawler.signals.connect(spider.on_idle, signal=signals.spider_idle)
        return spider

    async def start(self) -> AsyncIterator[Request]:
        if not self._asked():  # a resumed crawl has already requested the start
            request = self._request(self.scope.start, 0, None)
            self._asked().add(self._mark(request))
            yield request

    # --- responses

    def parse(self, response: Response, **kwargs: Any) -> Iterator[Any]:
        """Handle a response: follow a redirect within the site, create an item from a page, or
        record the request as skipped.
        """
        if response.status in REDIRECTS:
            yield from self._redirected(response)
            return
        item, inner, why = self._read(response)
        if item is None:
            yield self._skipped(response.request, why)
            self._must_not_be_start(response.request, why)
            return
        yield item
        if response.status >= 400:
            self._must_not_be_start(response.request, f"status {response.status}")
            return
        yield from self._follow(response, inner)

    def failed(self, failure: Any) -> Iterator[Any]:
        """Record a request as skipped, because it got no usable response or robots.txt does not
        allow the request.
        """
        why = f"{type(failure.value).__name__}: {failure.value}"[:TEXT_MAX]
        yield self._skipped(failure.request, why)
        self._must_not_be_start(failure.request, why)

    def _read(self, response: Response) -> tuple[dict[str, Any] | None, list[str], str]:
        """Return the item of a page and its links within the site, or the reason why there is no
        item.
        """
        if not isinstance(response, HtmlResponse):
            kind = (response.headers.get("Content-Type") or b"no content type").decode("latin-1")[
                :100
            ]
            return None, [], f"not an HTML page: {response.status}, {kind}"
        try:
            why = too_much(response.text)
            if why is not None:
                return None, [], why
            inner, outer = self._links(response)
            item = {
                "kind": "page",
                **self._item(response),
                "links": len(inner),
                "external_links": len(outer),
            }
        except Exception as error:  # an error of the parser must not hide the page
            logger.exception("the page %s cannot be read", response.url)
            return None, [], f"cannot be read: {type(error).__name__}: {error}"[:TEXT_MAX]
        return item, inner, ""

    def _must_not_be_start(self, request: Request | None, why: str) -> None:
        """End the crawl if this request is the start, or a target of the start's redirects."""
        assert request is not None
        if request.meta["hops"] == 0:
            message = f"the start {self.scope.start} cannot be used: {why}"
            logger.error("%s", message)
            assert self.crawler.stats is not None
            self.crawler.stats.set_value("message", message)
            raise CloseSpider(NO_START)

    def _redirected(self, response: Response) -> Iterator[Any]:
        """Follow a redirect, or record the request as skipped, with the reason.

        If the redirect's target has already been requested, do nothing.
        """
        assert response.request is not None
        location = (response.headers.get("Location") or b"").decode("latin-1")
        target = self.scope.target(response.url, location) if location else None
        refused = self._refused(response, location, target)
        for request, why in refused:
            yield self._skipped(request, why)
            self._must_not_be_start(request, why)
        if not refused and target is not None:
            # A redirect is not a link, so the depth stays the same.
            yield from self._ask(
                response, [target], response.meta["hops"], response.meta["chain"] + 1
            )

    def _refused(
        self, response: Response, location: str, target: str | None
    ) -> list[tuple[Request, str]]:
        """Return the requests to skip because of this redirect, with reasons: the request itself,
        or all requests in the same redirect loop.

        The result is empty if the redirect is to be followed, or if its target has already been
        requested.
        """
        request = response.request
        status = response.status
        shown = (target or location)[:TEXT_MAX]
        assert request is not None
        start = response.meta["hops"] == 0
        if target is None:
            return [(request, f"{status} redirects to no valid URL: {shown!r}")]
        if not self.scope.inside(target):
            return [(request, f"{status} redirects to a different site: {shown}")]
        if len(target) > URL_MAX:
            return [
                (
                    request,
                    f"{status} redirects to a URL longer than {URL_MAX} characters: {shown}",
                )
            ]
        if not start and not self.scope.wanted(target):
            return [(request, f"{status} redirects to a URL that allow or deny excludes: {shown}")]
        mark = self._mark(request)
        other = self._mark(self._request(target, 0, None))
        caught = Redirects(self.state).add(
            mark, other, (request.url, request.meta["hops"], request.meta["from"])
        )
        if caught:
            return [
                (self._request(*each), f"{status} redirects into a loop: {shown}")
                for each in caught
            ]
        if other in self._asked():
            return []
        if response.meta["chain"] >= CHAIN_MAX:
            return [(request, f"more than {CHAIN_MAX} redirects in a row, the last to {shown}")]
        if start and len(self._asked()) >= self.scope.max_pages:
            return [
                (
                    request,
                    f"max_pages={self.scope.max_pages} was reached through redirects, the last "
                    f"one to "
                    f"{shown}",
                )
            ]
        return []

    def _item(self, response: HtmlResponse) -> dict[str, Any]:
        title = " ".join("".join(response.xpath("(//title)[1]//text()").getall()).split())
        return {
            "url": response.url,
            "status": response.status,
            "title": title[:TEXT_MAX],
            "description": (
                response.xpath("(//meta[@name='description'])[1]/@content").get() or ""
            )[:TEXT_MAX],
            "language": (response.xpath("/html/@lang").get() or "")[:TEXT_MAX],
            "words": words_of(response.selector.root),
            "bytes": len(response.body),
            "depth": response.meta["hops"],
            "referrer": response.meta["from"],
            "fetched_at": datetime.now(timezone.utc).isoformat(),  # noqa: UP017
            **self._kept(response),
        }

    def _kept(self, response: HtmlResponse) -> dict[str, Any]:
        """Return the content to keep and the name of its file; both are empty if the page is not
        kept.

        The same address always gives the same name, even after a resume.
        """
        if not self.scope.save or response.status != 200:
            return {}
        assert response.request is not None
        text = self.scope.save == "text"
        body = (
            "\n".join(lines_of(response.selector.root)).encode(errors="replace")
            if text
            else response.body
        )
        return {
            "file": f"pages/{self._mark(response.request).hex()}.{'txt' if text else 'html'}",
            "body": body,
        }

    # --- links

    def _links(self, response: HtmlResponse) -> tuple[list[str], list[str]]:
        """Return the addresses of a page's links, excluding duplicates: first those on this site,
        then those on other sites.
        """
        base = get_base_url(response)
        found = dict.fromkeys(_LINKS(response.selector.root))
        _, refresh = get_meta_refresh(response, ignore_tags=("script", "noscript"))
        if refresh:
            found[urljoin(base, refresh)] = None
        targets = dict.fromkeys(filter(None, (self.scope.target(base, link) for link in found)))
        inside = {target: self.scope.inside(target) for target in targets}
        return [target for target in targets if inside[target]], [
            target for target in targets if not inside[target]
        ]

    def _follow(self, response: Response, targets: list[str]) -> Iterator[Request]:
        hops = response.meta["hops"] + 1
        if self.scope.max_depth is None or hops <= self.scope.max_depth:
            yield from self._ask(response, filter(self.scope.wanted, targets), hops)

    def _ask(
        self, response: Response, targets: Iterable[str], hops: int, chain: int = 0
    ) -> Iterator[Request]:
        """Yield requests for addresses that have not been requested yet, up to the limit."""
        asked = self._asked()
        for target in targets:
            request = self._request(target, hops, response.url, chain)
            mark = self._mark(request)
            if mark in asked:
                continue
            if len(asked) >= self.scope.max_pages:
                self.state["cut_off"] = True
                return
            asked.add(mark)
            yield request

    def _request(self, address: str, hops: int, referrer: str | None, chain: int = 0) -> Request:
        # This spider filters repeated addresses itself and does not use Scrapy's filter, because
        # only addresses that pass the filter count towards the spider's limit.
        meta = {"hops": hops, "from": referrer, "chain": chain}
        return Request(
            address, callback=self.parse, errback=self.failed, meta=meta, dont_filter=True
        )

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
        """End the crawl as truncated if only its limit is the reason why it has no more
        requests.
        """
        if self.state.get("cut_off"):
            logger.warning(
                "max_pages=%d was reached, and there are more URLs", self.scope.max_pages
            )
            raise CloseSpider(CUT_OFF)
