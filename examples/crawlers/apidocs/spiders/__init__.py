"""The spiders, and the functions that they share."""

from __future__ import annotations

from urllib.parse import urlsplit

from scrapy.http import Response
from scrapy.http.response.text import TextResponse


def base_url(site: str | None) -> str:
    """Return the address of the site to crawl, with a slash at its end.

    Without an address, the crawl cannot start.
    """
    if not site:
        raise ValueError("give the site to crawl: -a site=http://127.0.0.1:8400")
    parts = urlsplit(site)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not the address of a site: {site!r}")
    return site.rstrip("/") + "/"


def host_of(site: str) -> str:
    """Return the host to which a crawl of the site is confined."""
    return urlsplit(site).hostname or ""


def positive(name: str, value: str | int | None) -> int | None:
    """Return the whole number above zero that a spider argument contains, or None without the
    argument.
    """
    if value is None or value == "":
        return None
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} must be a whole number greater than zero, not {value!r}")
    return number


def page(response: Response) -> TextResponse:
    """Return the response as text."""
    if not isinstance(response, TextResponse):
        raise TypeError(f"{response.url} is not a page of text")
    return response
