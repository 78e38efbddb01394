"""The web page with the versions of a crawler."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.gateway.access.operations import caller_name
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.ui.crawlers import CrawlerName
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.forms import form, typed
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    filters_of,
    held,
    held_sorts,
    list_page,
)
from crawler_lifecycle.gateway.ui.parts.notes import Outcome, go_back
from crawler_lifecycle.gateway.ui.runs.columns import crawler_link
from crawler_lifecycle.subjects import CRAWLER_VERSION
from crawler_lifecycle.web.problems import Problem

VERSIONS_OF = Chooser(
    CRAWLER_VERSION,
    "",
    "Version, digest, person, note",
    sorts=held_sorts(CRAWLER_VERSION.columns),
)


def add_crawler_versions(app: FastAPI, gateway: Gateway) -> None:
    """Add the page with the versions of a crawler."""
    pages = gateway.crawler_pages
    versions = gateway.crawler_versions

    @app.get("/packages")
    async def show_packages() -> Response:
        """Redirect to the crawlers, which execute packages."""
        return RedirectResponse("/", 307)

    @app.get("/packages/{package}")
    async def show_package(package: CrawlerName) -> Response:
        """Redirect to the versions of the first crawler that executes this package."""
        known, away = await gateway.crawlers.last()
        names = sorted(name for name, crawler in known.items() if crawler.package == package)
        if not names:
            fix = away or "crawlctl package list shows all packages"
            detail = f"no crawler executes a package {package[:100]!r}; {fix}"
            raise Problem(404, "package_not_found", detail)
        return RedirectResponse(f"{crawler_link(names[0]).path}/versions", 307)

    @app.get("/crawlers/{crawler}/versions")
    async def show_crawler_versions(crawler: CrawlerName, request: Request) -> Response:
        """List the versions of one crawler, newest first."""
        filters = filters_of(request, HeldFilters)
        values = await pages.read(crawler)
        values |= {"template": "crawler_versions.html", "tab": "Versions"}
        find = held(VERSIONS_OF, values["versions"])
        return await run_in_threadpool(
            partial(list_page, **values), request, VERSIONS_OF, filters, find
        )

    @app.post("/crawlers/{crawler}/versions")
    async def press_crawler_versions(crawler: CrawlerName, request: Request) -> Response:
        """Make a version of one crawler the one that new runs execute."""
        version = typed(await form(request), ("version",)).get("version", "")
        entry = (await gateway.crawlers.last())[0].get(crawler)
        by = caller_name()
        try:
            changed = await run_in_threadpool(versions.use, crawler, entry, version, by)
            text = "New runs execute it." if changed else "It was already in use."
            outcome = Outcome(f"version {version}", None, True, text)
        except LifecycleError as error:
            outcome = Outcome(f"version {version}", None, False, str(error))
        return go_back(request, "Use", outcome, crawler_link(crawler).path)
