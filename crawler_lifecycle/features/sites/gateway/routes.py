"""Routes of sites."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import PlainTextResponse

from crawler_lifecycle.gateway.access.operations import caller_name, signed
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.commands import CommandResult
from crawler_lifecycle.gateway.runs.requests import BodyOf, OptionalBodyOf
from crawler_lifecycle.web.problems import Problem

from ..domain.robots import ORIGIN_MAX, origin_of
from ..ports import SiteRow
from .answers import ChangedSite, Hours, Site, SiteFilters, SiteName, SitePage, site_of
from .commands import CloseSite, OpenSite, PutSite, SiteCommands

Origin = Annotated[str, Query(max_length=ORIGIN_MAX)]
#: A text is never shown as anything else, because a site wrote it.
_TEXT = {
    "Content-Type": "text/plain; charset=utf-8",
    "Content-Disposition": 'attachment; filename="robots.txt"',
    "X-Content-Type-Options": "nosniff",
}


def add_sites(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of sites."""
    store = gateway.store.sites
    commands = SiteCommands(store, gateway.store.caps, gateway.clock)

    def changed(done: CommandResult[SiteRow]) -> ChangedSite:
        if done.fresh:
            # The access log shows what changed.
            present_call().about.append(("site", done.row.site, done.note, True))
        return ChangedSite(**asdict(done.row), note=done.note)

    @app.get("/v1/sites", **documents(SitePage))
    def list_sites(filters: Annotated[SiteFilters, Query()], request: Request) -> Response:
        """The sites that runs have visited or that have limits, by name. A token of one project
        gets the sites of its newest 1,000 runs.
        """
        found = partial(store.list_sites, search=filters.search, show=filters.show)
        rows, token = filters.read_by_offset("site", found)
        return conditional(request, SitePage(sites=rows, next_page_token=token))

    @app.get("/v1/sites/{site}")
    def get_site(site: SiteName, asked: Annotated[Hours, Query()]) -> Site:
        """One site: its limits and state, its requests, its blocks, and its runs."""
        return site_of(store, commands.find(site), asked.minutes)

    @app.get("/v1/sites/{site}/robots", response_class=PlainTextResponse)
    def get_robots(site: SiteName, origin: Origin) -> Response:
        """The robots.txt of one origin of a site, as a task fetched it."""
        name = commands.find(site).site
        text = store.robots_text(name, origin_of(origin)[0])
        if text is None:
            detail = f"no task has fetched the robots.txt of {origin}; give an origin of {name}"
            raise Problem(404, "site_not_found", detail)
        return Response(text, headers=_TEXT)

    @app.put("/v1/sites/{site}")
    def put_site(site: SiteName, body: BodyOf[PutSite]) -> ChangedSite:
        """Replace the limits of a site: of a domain with all its hosts, of one host, of a pattern
        such as `*.blogs.example`, or of `*`, which stands for all sites without limits of their
        own.
        """
        return changed(commands.put(site, signed(body)))

    @app.delete("/v1/sites/{site}")
    def delete_site(site: SiteName) -> ChangedSite:
        """Remove the limits of a site. Then those of `*` apply to it."""
        return changed(commands.delete(site, caller_name()))

    @app.post("/v1/sites/{site}/close")
    def close_site(site: SiteName, body: BodyOf[CloseSite]) -> ChangedSite:
        """Close a site for all runs: no task starts on it, and those that execute pause."""
        done = commands.close(site, signed(body))
        return ChangedSite(**asdict(done.row), note=done.note)

    @app.post("/v1/sites/{site}/open")
    def open_site(site: SiteName, body: OptionalBodyOf[OpenSite]) -> ChangedSite:
        """Open a closed site for all runs."""
        done = commands.open(site, signed(body))
        return ChangedSite(**asdict(done.row), note=done.note)
