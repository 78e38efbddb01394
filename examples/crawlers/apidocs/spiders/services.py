"""One item per service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response

from apidocs.items import Service
from apidocs.spiders import base_url, host_of, page


class ServicesSpider(Spider):
    """Crawls from the front page through the list of services.

    ``-a site=URL``: the site (required)
    """

    name = "services"

    def __init__(self, site: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.site = base_url(site)
        self.allowed_domains = [host_of(self.site)]

    async def start(self) -> AsyncIterator[Request]:
        # The start request passes through the duplicate filter, unlike Scrapy's default. Therefore,
        # a resumed crawl does not start again at the front page.
        yield Request(self.site, callback=self.parse)

    def parse(self, response: Response, **kwargs: Any) -> Iterator[Request]:
        """Yield requests for the services on a part of the list, and for the next part."""
        text = page(response)
        yield from text.follow_all(css="ul.services > li > a", callback=self.parse_service)
        yield from text.follow_all(css="a[rel=next]", callback=self.parse)

    def parse_service(self, response: Response) -> Iterator[Service]:
        """Yield the item of the page of a service."""
        text = page(response)

        def fact(name: str) -> str:
            return str(text.css(f"dl.facts dd.{name} ::text").get("")).strip()

        yield Service(
            id=fact("id"),
            title=str(text.css("h1::text").get("")),
            url=text.url,
            protocol=fact("protocol"),
            api_version=fact("version"),
            category=fact("category"),
            operations=int(fact("operations")),
            description_length=len(
                " ".join("".join(text.css(".documentation ::text").getall()).split())
            ),
        )
