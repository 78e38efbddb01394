"""The spider of the crawler `shop`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scrapy
from scrapy.http import Response


class Shop(scrapy.Spider):
    """Reads the pages in the folder `pages`. Put the address of your site into `start_urls`."""

    name = "shop"
    start_urls = [(Path(__file__).parents[1] / "pages" / "index.html").as_uri()]  # noqa: RUF012

    def parse(self, response: Response, **kwargs: Any) -> Iterator[Any]:
        """Yield one item for each article, and then the pages that this page links to."""
        for article in response.css("article"):
            yield {
                "name": article.css("h2::text").get(),
                "price": float(article.css("b::text").get("0")),
            }
        yield from response.follow_all(css="a")
