"""The first page: whether all is well, what needs attention, and all crawlers, the worst first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.domain.crawlers.state import CrawlerState
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.access.operations import caller_name
from crawler_lifecycle.gateway.api.paging import Choice
from crawler_lifecycle.gateway.health import Health, HealthReport
from crawler_lifecycle.gateway.runs.fleet import (
    LIVE_MAX,
    Fleet,
    FleetCrawler,
    FleetReport,
)
from crawler_lifecycle.gateway.ttl_cache import TtlCache
from crawler_lifecycle.gateway.ui.parts.charts import bar_paths
from crawler_lifecycle.gateway.ui.parts.choosing import LIVE
from crawler_lifecycle.gateway.ui.parts.forms import query_of
from crawler_lifecycle.gateway.ui.parts.incidents import incident_line
from crawler_lifecycle.gateway.ui.parts.rendering import ALONE, answer, number, query
from crawler_lifecycle.gateway.ui.runs.commands import PageFilters
from crawler_lifecycle.ports.runs import ShortRun
from crawler_lifecycle.store.store import Store

#: Crawlers on one page, and the last runs and the days of each that are shown.
PAGE = 100
EACH = 20
DAYS = 7
#: Incidents that are shown at once. The others are folded.
SHOWN = 8
#: Seconds that a page waits for the state of the parts, and for the counts in the rail.
WAIT_S = 0.3
RAIL_WAIT_S = 0.1
RAIL_S = 5.0


class FleetFilters(Choice):
    """Filters in the address of the first page."""

    search: str | None = Field(default=None, max_length=200)
    order: Literal["sick", "name", "items"] = "sick"
    page: Annotated[int, Field(ge=1, le=10_000)] = 1


@dataclass(frozen=True, slots=True)
class CrawlerLine:
    """The row of a crawler."""

    crawler: FleetCrawler
    paths: Mapping[str, str]
    runs: int
    """The number of runs in the chart."""
    good: float | None
    """The share of good runs."""
    items: int | None
    """The items of the last run that ended."""
    usual: float | None
    """The median of the items of the good runs before."""


def crawler_lines(store: Store, found: Sequence[FleetCrawler], now: datetime) -> list[CrawlerLine]:
    """Return the rows of these crawlers. Blocks."""
    names = [crawler.name for crawler in found]
    runs: dict[str, list[ShortRun]] = {name: [] for name in names}
    for run in store.runs.recent_runs(names, EACH, ShortRun):
        runs[run.crawler].append(run)
    good = store.runs.good_shares(names, now - timedelta(days=DAYS))
    lines = []
    for crawler in found:
        last = runs[crawler.name]
        ended = [run for run in last if RunStatus(run.status).terminal]
        before = [
            run.items
            for run in ended[1:]
            if run.status == RunStatus.COMPLETED and run.lacks is None and run.items is not None
        ]
        paths = bar_paths(last, 20, 8)
        items = ended[0].items if ended else None
        usual = median(before) if before else None
        lines.append(CrawlerLine(crawler, paths, len(last), good.get(crawler.name), items, usual))
    return lines


def fitting(report: FleetReport, filters: FleetFilters) -> list[FleetCrawler]:
    """Return the crawlers that contain the text, in the order of the filters."""
    text = (filters.search or "").strip().casefold()
    found = [
        crawler
        for crawler in report.crawlers
        if text in crawler.name.casefold()
        or text in crawler.why.casefold()
        or text in crawler.state
    ]
    if filters.order == "name":
        found.sort(key=attrgetter("name"))
    elif filters.order == "items":
        found.sort(key=lambda crawler: -(crawler.items or 0))
    return found


def summary(report: FleetReport, health: HealthReport | None) -> list[tuple[str, str | None, bool]]:
    """Return the parts of the line about everything: the words, their link, and whether they are
    bad.
    """
    states = Counter(crawler.state for crawler in report.crawlers)
    stopped = sum(row.kind == "schedule_paused" for row in report.incidents)
    unwell = [part for part in health.parts if part.level in ("warn", "bad")] if health else []
    ended = report.day["completed"] + report.day["failed"]
    words: list[tuple[str, str | None, bool]] = []
    if not report.incidents and health is not None and health.level == "ok":
        words.append(("Everything works", None, False))
    words.append((count(len(report.crawlers), "crawler"), None, False))
    for state, verb in (
        (CrawlerState.FAILS, "fail{}"),
        (CrawlerState.FLAKY, "{} flaky"),
        (CrawlerState.LESS, "bring{} less"),
        (CrawlerState.FAILED_LAST, "failed at the last run"),
    ):
        if many := states[state]:
            form = ("is" if many == 1 else "are") if verb[0] == "{" else "s" * (many == 1)
            words.append(
                (
                    f"{number(many)} {verb.format(form)}",
                    "/" + query({"search": state.value}),
                    state is CrawlerState.FAILS,
                )
            )
    if stopped:
        words.append((f"{count(stopped, 'schedule')} stopped", "/schedules", True))
    if unwell:
        words.append((f"{count(len(unwell), 'part')} unwell", "/parts", True))
    live = f"{count(report.live_runs, 'run')}{'+' * (report.live_runs >= LIVE_MAX)} live"
    words.append((live, "/runs" + query({"status": LIVE}), False))
    today = f"{count(report.day.total(), 'run')} in 24 h"
    if ended:
        today += f", {100 * report.day['completed'] / ended:.1f} % good"
    since = {"created_from": report.day_from.isoformat()}
    return [*words, (today, "/runs" + query(since), False)]


def add_fleet(app: FastAPI, store: Store, fleet: Fleet, health: Health) -> None:
    """Add the first page, and the page of all parts."""

    @app.get("/")
    async def show_fleet(request: Request) -> Response:
        """Show what needs attention, and all crawlers. An old address of the list of runs leads to
        that list.
        """
        if request.query_params.keys() & (PageFilters.model_fields.keys() - {"search"}):
            return RedirectResponse(f"/runs?{request.url.query}", 307)
        filters = query_of(request, FleetFilters)
        report, parts = await asyncio.gather(fleet.read(), health.read_within(WAIT_S))
        return await run_in_threadpool(shown, request, filters, report, parts)

    def shown(
        request: Request, filters: FleetFilters, report: FleetReport, parts: HealthReport | None
    ) -> Response:
        found = fitting(report, filters)
        pages = max(-(-len(found) // PAGE), 1)
        page = min(filters.page, pages)
        asked = filters.model_dump(exclude_defaults=True, exclude={"page"})
        muted = [row for row in report.incidents if row.is_muted(report.at)]
        heard = [row for row in report.incidents if not row.is_muted(report.at)]
        lines = crawler_lines(store, found[(page - 1) * PAGE : page * PAGE], report.at)
        values: dict[str, Any] = {
            "summary": summary(report, parts),
            "incidents": [incident_line(row) for row in heard],
            "muted": [incident_line(row) for row in muted],
            "most": SHOWN,
            "lines": lines,
            "total": len(found),
            "first": (page - 1) * PAGE,
            "pages": [
                (word, "/" + query({**asked, "page": to}))
                for word, to in (("Before", page - 1), ("Next", page + 1))
                if 1 <= to <= pages
            ],
            "orders": [
                (word, "/" + query({**asked, "order": order}), order == filters.order)
                for order, word in (("sick", "Sick first"), ("name", "Name"), ("items", "Items"))
            ],
            "filters": filters,
            "away": report.away,
            "me": caller_name(),
            "health": parts,
        }
        return answer(request, "fleet.html", now=report.at, **values)

    @app.get("/crawlers")
    async def show_crawlers() -> Response:
        """Lead to the first page, which lists all crawlers."""
        return RedirectResponse("/", 307)

    @app.get("/parts")
    async def show_parts(request: Request) -> Response:
        """Show the state of each part of the installation."""
        report = await health.read()
        return answer(request, "health.html", health=report, now=report.at)


def rail_counts(app: FastAPI, store: Store) -> None:
    """Let the pages that are added from now on show counts at the links to all pages."""

    def read() -> Counter[str]:
        counts = Counter(live=store.runs.count_runs(LIVE, LIVE_MAX))
        for kind, incidents in store.incidents.open_counts().items():
            counts[kind.partition("_")[0]] += incidents
        return counts

    kept = TtlCache(partial(run_in_threadpool, read), RAIL_S)

    async def keep(request: Request) -> None:
        if request.method == "GET" and ALONE not in request.scope:
            with suppress(LifecycleError):
                request.state.rail = await kept.own.read_within(RAIL_WAIT_S) or Counter()

    app.router.dependencies.append(Depends(keep))
