"""A spider that yields one item for each address in the sitemap, even if the address could not be
fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from scrapy import Request
from scrapy.http import Response
from scrapy.spiders import SitemapSpider

from apidocs.items import CheckedLink
from apidocs.spiders import base_url, host_of, positive

REDIRECTS = (301, 302, 303, 307, 308)
PROBLEMS = (401, 403, 404, 410, 429, 500, 502, 503, 504)


class LinksSpider(SitemapSpider):
    """Checks every address in the sitemaps of the site, and reports dead links, redirects, and
    addresses that only worked after a retry.

    ``-a site=URL``: the site (required)
    ``-a max_links=100``: the maximum number of entries of each sitemap
    """

    name = "sitemap"
    # Scrapy would follow a redirect, and drop the request if its target is already known. Here,
    # each address gets its own item. Server errors are retried before they arrive here, so they are
    # final.
    handle_httpstatus_list = (*REDIRECTS, *PROBLEMS)
    sitemap_rules = (("", "parse_link"),)

    def __init__(
        self, site: str | None = None, max_links: str | int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.site = base_url(site)
        self.allowed_domains = [host_of(self.site)]
        self.sitemap_urls = [f"{self.site}sitemap.xml"]
        self.max_links = positive("max_links", max_links)

    def sitemap_filter(self, entries: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
        """Yield the entries up to the limit."""
        return islice(entries, self.max_links)

    def parse_link(self, response: Response) -> Iterator[CheckedLink | Request]:
        """Yield the item about the answer for one address.

        The target of a redirect is checked like any other address.
        """
        location = response.headers.get("Location") if response.status in REDIRECTS else None
        target = response.urljoin(location.decode("latin-1")) if location else None
        yield CheckedLink(
            url=response.url,
            status=response.status,
            location=target,
            retries=response.meta.get("retry_times", 0),
            size=len(response.body),
        )
        if target:
            yield Request(target, callback=self.parse_link)
