"""The web application: the pages at each address, and the sections that misbehave on purpose."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from functools import cache
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from examples.site import pages
from examples.site.models import Catalogue
from examples.site.pages import NoSuchPage, Pages


class Site:
    """The endpoints of one site and its memory of how often each page was visited since the start."""

    def __init__(self, catalogue: Catalogue, slow_seconds: float) -> None:
        self.catalogue = catalogue
        self.pages = Pages(catalogue)
        self.slow_seconds = slow_seconds
        self.requests: Counter[str] = Counter()
        self.refuses_until = 0.0
        """Until then, by the monotonic clock, each page is refused."""
        self._unsteady: Counter[int] = Counter()
        self._home = cache(self.pages.home)

    async def home(self, request: Request) -> Response:
        return HTMLResponse(self._home(_page(request)))

    async def categories(self, request: Request) -> Response:
        return HTMLResponse(self.pages.categories())

    async def category(self, request: Request) -> Response:
        return HTMLResponse(self.pages.category(request.path_params["topic"], _page(request)))

    async def service(self, request: Request) -> Response:
        return HTMLResponse(self.pages.service(request.path_params["service"], _page(request)))

    async def operation(self, request: Request) -> Response:
        return HTMLResponse(
            self.pages.operation(request.path_params["service"], request.path_params["operation"])
        )

    async def sections(self, request: Request) -> Response:
        return HTMLResponse(self.pages.sections())

    async def short_links(self, request: Request) -> Response:
        return HTMLResponse(self.pages.short_links())

    async def short_link(self, request: Request) -> Response:
        return self._redirect(request, pages.service_path(request.path_params["service"]), 302)

    async def former_short_link(self, request: Request) -> Response:
        """Redirect to the current short link, so that a crawler meets two redirects in a row."""
        return self._redirect(request, f"/go/{quote(request.path_params['service'])}", 301)

    def _redirect(self, request: Request, target: str, status: int) -> Response:
        if request.path_params["service"] not in self.catalogue:
            raise NoSuchPage(request.path_params["service"])
        return RedirectResponse(pages.relative(request.url.path, target), status_code=status)

    async def retired(self, request: Request) -> Response:
        return HTMLResponse(self.pages.retired())

    async def unsteady_list(self, request: Request) -> Response:
        return HTMLResponse(
            self.pages.numbered_list("/unsteady/", "Unsteady pages", pages.UNSTEADY_PAGES)
        )

    async def unsteady(self, request: Request) -> Response:
        """Fail for every seventh page at each odd visit, so that a retry helps and a second crawl
        meets the failure again.
        """
        number = _numbered(request, pages.UNSTEADY_PAGES)
        self._unsteady[number] += 1
        if number % pages.UNSTEADY_EVERY == 0 and self._unsteady[number] % 2 == 1:
            text = "This page is down at every other visit. Please try again."
            body = self.pages.problem(request.url.path, "Out of order", text)
            return HTMLResponse(body, status_code=503, headers={"Retry-After": "1"})
        return HTMLResponse(
            self.pages.numbered(
                request.url.path, f"Unsteady page {number}", "It works at the moment."
            )
        )

    async def slow_list(self, request: Request) -> Response:
        return HTMLResponse(self.pages.numbered_list("/slow/", "Slow pages", pages.SLOW_PAGES))

    async def slow(self, request: Request) -> Response:
        number = _numbered(request, pages.SLOW_PAGES)
        await asyncio.sleep(self.slow_seconds)
        text = f"This took {self.slow_seconds:g} seconds on purpose."
        return HTMLResponse(self.pages.numbered(request.url.path, f"Slow page {number}", text))

    async def private(self, request: Request) -> Response:
        text = "No crawler that obeys robots.txt has been here."
        return HTMLResponse(self.pages.problem("/private/", "Private", text))

    async def style(self, request: Request) -> Response:
        return Response(pages.STYLE, media_type="text/css")

    async def robots(self, request: Request) -> Response:
        return PlainTextResponse(
            f"User-agent: *\nDisallow: /private/\n\nSitemap: {request.base_url}sitemap.xml\n"
        )

    async def sitemap_index(self, request: Request) -> Response:
        """Return one sitemap for the sections and one for each service, so that no request must
        load every model.
        """
        base = str(request.base_url).rstrip("/")
        urls = [f"{base}/sitemap-sections.xml"]
        urls += [
            f"{base}{pages.service_path(service_id)}sitemap.xml"
            for service_id in self.catalogue.services
        ]
        return Response(pages.sitemap_index(urls), media_type="application/xml")

    async def sitemap_sections(self, request: Request) -> Response:
        base = str(request.base_url).rstrip("/")
        paths = [
            "/",
            "/categories/",
            *(f"/categories/{topic}/" for topic in sorted(self.catalogue.topics)),
        ]
        paths += pages.section_paths()
        paths += [f"/go/{service_id}" for service_id in self.catalogue.services]
        return Response(pages.sitemap(base + path for path in paths), media_type="application/xml")

    async def sitemap_service(self, request: Request) -> Response:
        base = str(request.base_url).rstrip("/")
        try:
            service = self.catalogue.service(request.path_params["service"])
        except KeyError as error:
            raise NoSuchPage(str(error)) from None
        paths = [
            pages.service_path(service.id),
            *(pages.operation_path(service.id, name) for name in service.operations),
        ]
        return Response(pages.sitemap(base + path for path in paths), media_type="application/xml")

    async def refuse(self, request: Request) -> Response:
        """Refuse each page for some seconds (``for``), as a site does whose crawlers are too
        fast.
        """
        text = request.query_params.get("for", "20")
        if not (text.isascii() and text.isdigit() and len(text) < 5):
            return PlainTextResponse("for: give 0 to 9999 seconds\n", 422)
        self.refuses_until = time.monotonic() + int(text)
        return PlainTextResponse(f"Each page is refused for {text} seconds.\n")

    async def health(self, request: Request) -> Response:
        """Report that the site is alive, and how often pages were requested. Tests can see whether
        a crawler avoided the private section.
        """
        return JSONResponse(
            {
                "status": "ok",
                "services": len(self.catalogue.services),
                "requests": dict(sorted(self.requests.items())),
            }
        )

    async def missing(self, request: Request, error: Exception) -> Response:
        body = self.pages.problem(request.url.path, "Not found", "There is no such page here.")
        return HTMLResponse(body, status_code=404)


class _Entrance:
    """Count requests by the first part of their path, and refuse pages while the site does so."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app = app
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            section = scope["path"].split("/")[1]
            self._site.requests[section if section in _SECTIONS else "other"] += 1
            rest = self._site.refuses_until - time.monotonic()
            if rest > 0 and section not in ("healthz", "refuse"):
                headers = {"Retry-After": str(math.ceil(rest))}
                response = PlainTextResponse("Too many requests.\n", 429, headers)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


_SECTIONS = frozenset(
    ("services", "categories", "go", "retired", "unsteady", "slow", "private", "healthz")
)


def create_app(services: int = 0, slow_seconds: float = 1.0) -> ASGIApp:
    """Return a site with this number of services (0 = all installed services)."""
    site = Site(Catalogue(services), slow_seconds)
    app = Starlette(
        routes=[
            Route("/", site.home),
            Route("/categories/", site.categories),
            Route("/categories/{topic}/", site.category),
            Route("/services/{service}/", site.service),
            Route("/services/{service}/sitemap.xml", site.sitemap_service),
            Route("/services/{service}/{operation}", site.operation),
            Route("/sections/", site.sections),
            Route("/go/", site.short_links),
            Route("/go/{service}", site.short_link),
            Route("/go/old/{service}", site.former_short_link),
            Route("/retired/", site.retired),
            Route("/unsteady/", site.unsteady_list),
            Route("/unsteady/{number}", site.unsteady),
            Route("/slow/", site.slow_list),
            Route("/slow/{number}", site.slow),
            Route("/private/", site.private),
            Route("/style.css", site.style),
            Route("/robots.txt", site.robots),
            Route("/sitemap.xml", site.sitemap_index),
            Route("/sitemap-sections.xml", site.sitemap_sections),
            Route("/healthz", site.health),
            # Crawlers send no POST, so they cannot cause it.
            Route("/refuse", site.refuse, methods=["POST"]),
        ],
        exception_handlers={NoSuchPage: site.missing, 404: site.missing},
    )
    return _Entrance(app, site)


def _page(request: Request) -> int:
    """Return the requested number of a part of a list."""
    text = request.query_params.get("page", "1")
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise NoSuchPage(f"page {text}")
    return int(text)


def _numbered(request: Request, count: int) -> int:
    text: str = request.path_params["number"]
    if (
        text.isascii()
        and text.isdigit()
        and len(text) < 6
        and 1 <= int(text) <= count
        and text == str(int(text))
    ):
        return int(text)
    raise HTTPException(404)
