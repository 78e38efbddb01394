"""One item per operation."""

from __future__ import annotations

import re
import string
from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response

from apidocs.items import Operation
from apidocs.spiders import base_url, host_of, page, positive


class OperationsSpider(Spider):
    """Crawls from the front page through the services to their operations.

    ``-a site=URL``: the site (required)
    ``-a letters=a-f``: only services whose id begins with one of these letters, also in the form
    ``aeiou`` or ``a-c,x``
    ``-a service=sqs``: only this service
    ``-a max_pages=100``: the number of operation pages after which the crawl ends as finished
    """

    name = "operations"

    def __init__(
        self,
        site: str | None = None,
        letters: str | None = None,
        service: str | None = None,
        max_pages: str | int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.site = base_url(site)
        self.allowed_domains = [host_of(self.site)]
        self.letters = letters_of(letters)
        self.service = service or None
        self.max_pages = positive("max_pages", max_pages)
        # Scrapy replaces this with the stored state if a job directory is in use, so the count
        # survives a resume.
        self.state: dict[str, Any] = {}

    async def start(self) -> AsyncIterator[Request]:
        # The start request passes through the duplicate filter, unlike Scrapy's default. Therefore,
        # a resumed crawl does not start again at the front page.
        if self.service:
            yield Request(f"{self.site}services/{self.service}/", callback=self.parse_service)
        else:
            yield Request(self.site, callback=self.parse)

    def parse(self, response: Response, **kwargs: Any) -> Iterator[Request]:
        """Yield requests for the wanted services on a part of the list, and for the next part."""
        text = page(response)
        for link in text.css("ul.services > li"):
            if link.css("code::text").get("")[:1].lower() in self.letters:
                yield from text.follow_all(link.css("a"), callback=self.parse_service)
        yield from text.follow_all(css="a[rel=next]", callback=self.parse)

    def parse_service(self, response: Response) -> Iterator[Request]:
        """Yield requests for the operations on a part of a service's list, and for the next part."""
        text = page(response)
        for request in text.follow_all(css="ul.operations > li > a", callback=self.parse_operation):
            if self._enough():
                return
            yield request
        if not self._enough(take=False):
            yield from text.follow_all(css="a[rel=next]", callback=self.parse_service)

    def parse_operation(self, response: Response) -> Iterator[Operation]:
        """Yield the item of the page of an operation."""
        text = page(response)

        def column(table: str, condition: str = "") -> list[str]:
            return text.xpath(f'//table[@class="{table}"]/tbody/tr{condition}/th//text()').getall()

        yield Operation(
            service=text.url.rsplit("/", 2)[1],
            operation=str(text.css("h1::text").get("")),
            url=text.url,
            request=str(text.css("dl.facts dd.request code::text").get("")),
            deprecated=text.css("dl.facts dd.state::text").get() == "deprecated",
            inputs=column("parameters"),
            required=column("parameters", '[td[2] = "required"]'),
            outputs=column("answer"),
            errors=column("errors"),
        )

    def _enough(self, take: bool = True) -> bool:
        """Return whether the page limit is used up. If it is not, count one page."""
        if self.max_pages is None:
            return False
        taken = int(self.state.get("pages", 0))
        if taken >= self.max_pages:
            return True
        if take:
            self.state["pages"] = taken + 1
        return False


def letters_of(text: str | None) -> frozenset[str]:
    """Return the letters that a text such as ``a-f``, ``aeiou`` or ``a-c,x`` selects, or all
    letters and digits if there is no text.
    """
    if not text:
        return frozenset(string.ascii_lowercase + string.digits)
    letters: set[str] = set()
    for part in text.lower().replace(" ", "").split(","):
        if ends := re.fullmatch(r"([a-z])-([a-z])", part):
            letters.update(chr(code) for code in range(ord(ends[1]), ord(ends[2]) + 1))
        elif re.fullmatch(r"[a-z]+", part):
            letters.update(part)
        else:
            raise ValueError(f"letters must look like a-f, aeiou or a-c,x, not {text!r}")
    if not letters:
        raise ValueError(f"there is no letter in {text!r}")
    return frozenset(letters)
