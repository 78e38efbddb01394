"""The web pages of sites: a list, the tabs of each site, and the form of its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Literal

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.gateway.access.operations import caller_name, signed
from crawler_lifecycle.gateway.api.paging import Paging
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.ui.parts import forms as fields
from crawler_lifecycle.gateway.ui.parts.choosing import CAPACITY_TABS, Chooser
from crawler_lifecycle.gateway.ui.parts.forms import ActionForm, form, read, validated
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    RowPage,
    filters_of,
    held_sorts,
    list_page,
    windowed,
)
from crawler_lifecycle.gateway.ui.parts.notes import Outcome, go_back
from crawler_lifecycle.gateway.ui.parts.rendering import answer
from crawler_lifecycle.gateway.ui.parts.tabs import tabs_of
from crawler_lifecycle.subjects import (
    SITE,
    SITE_ROBOTS,
    SITE_RUN,
    At,
    Column,
    Link,
    Subject,
    at,
)
from crawler_lifecycle.web.problems import Problem, of_error

from ..domain.site import site_name
from ..ports import SiteRow
from .answers import CHART_HOURS, SiteName, rate_chart, statuses_of, use_of
from .commands import CLOSED_MAX_S, CloseSite, OpenSite, PutSite, SiteCommands, limit_text

_LIMITS = ("tasks", "requests_per_s", "connections", "rest_s", "hours", "not", "crawl_delay")
_KNOWN = ("site", "do", *_LIMITS)


class ListFilters(HeldFilters):
    """Filters in the address of the list."""

    show: Literal["closed", "limited", "busy"] | None = None


CHOOSER = Chooser(
    SITE,
    "/sites",
    "Name",
    sorts=held_sorts(SITE.columns),
    presets={
        "All": {},
        "Busy": {"show": "busy"},
        "Closed": {"show": "closed"},
        "With limits": {"show": "limited"},
    },
    intro="All runs on a site share its limits. A site that refuses a request is closed for all.",
    tabs=CAPACITY_TABS,
    links=[("pressPutSite", "/sites/new", "Set limits")],
)
BLOCKS = Chooser(
    Subject(
        "block",
        "block_id",
        columns=(
            Column("When", at("at")),
            Column(
                "By",
                lambda row: (
                    row["person"]
                    or (row["run_id"] and Link(f"run {row['run_id']}", f"/runs/{row['run_id']}"))
                ),
                fills=True,
            ),
            Column("Status", "status", right=True),
            Column("Retry-After (s)", "retry_after_s", right=True, leaves=2),
            Column("Closed until", lambda row: At(row["closed_until"]), leaves=1),
        ),
        empty="The site has refused no request in the last 30 days.",
    ),
    "",
    "Run, person, status",
    newest_first=True,
)


class SiteForm(ActionForm):
    """The form that closes or opens a site."""

    subject: ClassVar[Subject] = SITE
    acts = ("close", "open")
    apart = ("for_s",)
    for_s: float | None = Field(default=None, gt=0, le=CLOSED_MAX_S)


def add_form(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes that show and receive the form of a site's limits."""
    commands = SiteCommands(gateway.store.sites, gateway.store.caps, gateway.clock)

    @app.get("/sites/new", operation_id="showPutSite")
    def show_put(request: Request) -> Response:
        """Show the form for the limits of another site."""
        return shown(request, {}, None)

    @app.post("/sites/new", operation_id="pressPutSite")
    async def press_put(request: Request) -> Response:
        """Set or remove the limits of a site. A repeat changes nothing."""
        given = fields.typed(await form(request), _KNOWN)
        try:
            name = site_name(given.get("site", ""))
            if given.get("do") == "delete":
                done = await run_in_threadpool(commands.delete, name, caller_name())
            else:
                limits = {key: given[key].strip() for key in _LIMITS if key in given}
                body = signed(validated(PutSite, limits))
                done = await run_in_threadpool(commands.put, name, body)
        except (Problem, LifecycleError) as error:
            return await run_in_threadpool(shown, request, given, of_error(error))
        outcome = Outcome(f"site {name}", None, True, done.note or "")
        return go_back(request, "Limits", outcome, SITE.path(name))

    def shown(request: Request, given: Mapping[str, str], problem: Problem | None) -> Response:
        wrong = problem and fields.placed(problem, {name: name for name in _KNOWN})
        status = problem.status if problem else 200
        return answer(request, "site_form.html", status=status, given=given, wrong=wrong)


def add_sites(app: FastAPI, gateway: Gateway) -> None:
    """Add the web pages of sites."""
    store = gateway.store.sites
    clock = gateway.clock
    commands = SiteCommands(store, gateway.store.caps, clock)

    @app.get("/sites")
    def show_sites(request: Request) -> Response:
        """List the sites that runs have visited or that have limits."""
        filters = filters_of(request, ListFilters)

        def found(asked: ListFilters) -> RowPage:
            rows, token = asked.read_by_offset(
                "site", partial(store.list_sites, search=filters.search, show=asked.show)
            )
            return RowPage(list(map(asdict, rows)), token)

        return list_page(request, CHOOSER, filters, windowed(CHOOSER, found), now=clock())

    def head(site: str) -> dict[str, Any]:
        """Return the values that all tabs of a site need. Raises ``Problem`` 404."""
        row = commands.find(site)
        counts = {"Overview": None, "Blocks": None, "Runs": None, "Limits": None}
        return {
            "head": "site_head.html",
            "site": row,
            "doc": asdict(row),
            "now": clock(),
            "tabs": tabs_of(SITE.path(row.site), counts),
        }

    @app.get("/sites/{site}")
    def show_site(site: SiteName, request: Request) -> Response:
        """Show the state of one site, and its requests in the last hours."""
        values = head(site)
        row: SiteRow = values["site"]
        minutes = store.minutes(row.site, CHART_HOURS * 60)
        values["chart"] = rate_chart(minutes, row.rate, values["now"])
        values["use"] = use_of(row, minutes)
        values["statuses"] = statuses_of(minutes)
        values["proxies"] = store.proxies(row.site)
        values["robots"] = [asdict(found) for found in store.robots(row.site)]
        return answer(request, "site.html", listed=SITE_ROBOTS, **values)

    @app.get("/sites/{site}/blocks")
    def show_site_blocks(site: SiteName, request: Request) -> Response:
        """List what closed and opened a site, newest first."""
        filters = filters_of(request, HeldFilters)
        values = head(site)
        name = values["site"].site

        def found(asked: Paging) -> RowPage:
            blocks = partial(store.blocks, name)
            rows, token = asked.read("block", blocks, attrgetter("block_id"))
            return RowPage(list(map(asdict, rows)), token)

        sorts = held_sorts(BLOCKS.subject.columns)
        chooser = replace(BLOCKS, path=SITE.path(name, "/blocks"), sorts=sorts)
        find = windowed(chooser, found)
        return list_page(request, chooser, filters, find, template="site_blocks.html", **values)

    @app.get("/sites/{site}/runs")
    def show_site_runs(site: SiteName, request: Request) -> Response:
        """Show the runs whose tasks execute on a site, and those that wait for it."""
        values = head(site)
        rows = [asdict(row) for row in store.site_runs(values["site"].site)]
        return answer(request, "site_runs.html", rows=rows, listed=SITE_RUN, **values)

    @app.get("/sites/{site}/limits")
    def show_site_limits(site: SiteName, request: Request) -> Response:
        """Show the limits of a site, with their form."""
        values = head(site)
        row: SiteRow = values["site"]
        given = {name: limit_text(value) for name, value in row.limits.items()}
        values |= {"given": {"site": row.site, **given}, "wrong": None}
        return answer(request, "site_limits.html", **values)

    @app.post("/sites/{site}")
    async def press_site(site: SiteName, request: Request) -> Response:
        """Close or open a site."""
        asked = read(SiteForm, await form(request))
        name = site_name(site)
        act = partial(run_in_threadpool, _carried_out, commands, name, asked)
        return await fields.carry_out(request, gateway.once, asked, name, act)


def _carried_out(commands: SiteCommands, name: str, asked: SiteForm) -> str:
    """Carry out the action of the form. Return a sentence about the result."""
    if asked.do == "close":
        done = commands.close(
            name, signed(validated(CloseSite, {"for_s": asked.for_s, "reason": asked.reason}))
        )
    else:
        done = commands.open(name, signed(validated(OpenSite, {"reason": asked.reason})))
    return asked.sentence(done.fresh, done.note if done.fresh else None)
