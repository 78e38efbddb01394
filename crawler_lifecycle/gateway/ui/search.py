"""The search across everything, which is also a palette of commands: ``437`` opens a run, and
``start shop-437`` opens the form of a crawler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.bounds import whole
from crawler_lifecycle.domain.unknown import similar
from crawler_lifecycle.gateway.access.operations import may
from crawler_lifecycle.gateway.api.paging import Choice, RunFilters
from crawler_lifecycle.gateway.runs.fleet import INCIDENTS_MAX, Fleet
from crawler_lifecycle.gateway.runs.routes import RunViews
from crawler_lifecycle.gateway.ui.parts.forms import query_of
from crawler_lifecycle.gateway.ui.parts.incidents import incident_line
from crawler_lifecycle.gateway.ui.parts.rendering import answer, query
from crawler_lifecycle.store.store import Store

#: The maximum number of results of each kind.
SHOWN = 10
#: The addresses of a crawler's page and of its form, up to its name.
PAGE = "/crawlers/"
FORM = "/runs/new?crawler="
_START = re.compile(r"start\s+(\S.*)", re.IGNORECASE)


class SearchChoice(Choice):
    """Parameters of the search page."""

    q: str = Field(default="", max_length=200)


@dataclass(frozen=True, slots=True)
class SearchResults:
    """The results of one kind: words with their links, and the link to all results."""

    title: str
    results: list[tuple[str, str]]
    all_of_them: str | None

    @classmethod
    def of(cls, title: str, links: Iterable[tuple[str, str]], all_of_them: str) -> SearchResults:
        """Return the first results, without duplicate words. If there are more, include a link to
        all of them."""
        every = list(dict(links).items())
        return cls(title, every[:SHOWN], all_of_them if len(every) > SHOWN else None)


def add_search(app: FastAPI, store: Store, fleet: Fleet, views: RunViews, clock: Clock) -> None:
    """Add the page of the search across everything."""

    @app.get("/search")
    async def show_search(request: Request) -> Response:
        """Show the incidents, crawlers, managers, graphs, schedules, sites and runs that match the
        text. The number of a run leads to that run, and "start" with the name of a crawler leads to
        its form.
        """
        text = query_of(request, SearchChoice).q.strip()
        crawlers = {line.name: line.in_catalogue for line in (await fleet.read()).crawlers}
        return await run_in_threadpool(shown, request, text, crawlers)

    def shown(request: Request, text: str, crawlers: Mapping[str, bool]) -> Response:
        number = whole(text)
        if number is not None and store.runs.get_run(number) is not None:
            return RedirectResponse(f"/runs/{number}", 303)
        start = _START.fullmatch(text)
        startable = [name for name in crawlers if crawlers[name]] if may("pressStart") else []
        if start and start[1] in startable:
            return RedirectResponse(FORM + quote(start[1], safe=""), 303)
        wanted = start[1] if start else text
        near = similar(wanted, startable if start else crawlers) if wanted else None
        found = list(_named(store, wanted, crawlers)) if text else []
        runs, _ = views.listed(RunFilters.model_validate({"search": wanted, "page_size": SHOWN}))
        values: dict[str, Any] = {
            "now": clock(),
            "text": text,
            "near": near,
            "near_page": near and (FORM if start else PAGE) + quote(near, safe=""),
            "start": [name for name in startable if _has(name, wanted)][:SHOWN] if start else [],
            "starts": start is not None,
            "found": [kind for kind in found if kind.results],
            "runs": runs.runs if text else [],
            "note": runs.note if text else None,
            "more": "/runs" + query({"search": wanted}) if runs.next_page_token else None,
        }
        return answer(request, "search.html", **values)


def _named(store: Store, text: str, crawlers: Iterable[str]) -> Iterator[SearchResults]:
    """Yield the open incidents about the text, and the objects whose names contain it, by kind."""
    lines = [incident_line(row) for row in store.incidents.open_incidents(INCIDENTS_MAX)]
    about = [line for line in lines if _has(f"{line.sentence}\n{line.row.cause}", text)]
    managers, _ = store.managers.search(text, limit=SHOWN + 1)
    graphs, _ = store.graphs.search(text, limit=SHOWN + 1)
    asked = query({"search": text})
    sites = store.sites.list_sites(0, SHOWN + 1, search=text)
    schedules = sorted(row.name for row in store.schedules.every() if _has(row.name, text))
    yield SearchResults.of(
        "Incidents",
        [(line.sentence, f"/incidents/{line.row.incident_id}") for line in about],
        "/incidents",
    )
    yield SearchResults.of(
        "Crawlers",
        [(name, PAGE + quote(name, safe="")) for name in sorted(crawlers) if _has(name, text)],
        "/" + asked,
    )
    yield SearchResults.of(
        "Managers",
        [(f"{row.name} ({row.manager_id})", f"/managers/{row.manager_id}") for row in managers],
        "/managers" + asked,
    )
    yield SearchResults.of(
        "Graphs",
        [(row.key, f"/graphs/{quote(row.key, safe='')}") for row in graphs],
        "/graphs" + asked,
    )
    yield SearchResults.of(
        "Schedules",
        [(name, f"/schedules/{quote(name, safe='')}") for name in schedules],
        "/schedules" + asked,
    )
    yield SearchResults.of(
        "Sites",
        [(row.site, f"/sites/{quote(row.site, safe='')}") for row in sites],
        "/sites" + asked,
    )


def _has(name: str, text: str) -> bool:
    return text.casefold() in name.casefold()
