"""The home page: whether all is well, what needs attention, and all crawlers, worst first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from markupsafe import Markup
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.domain.crawlers.state import CrawlerState
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.projects import ALL
from crawler_lifecycle.domain.results import comparable, usual
from crawler_lifecycle.gateway.access.operations import caller_name, may
from crawler_lifecycle.gateway.api.paging import SearchParameters, one_of, order
from crawler_lifecycle.gateway.cursors import PAGE_MAX
from crawler_lifecycle.gateway.health import Health, HealthReport
from crawler_lifecycle.gateway.runs.fleet import (
    INCIDENTS_MAX,
    LIVE_MAX,
    WEEK,
    CrawlerResults,
    Fleet,
    FleetCrawler,
    FleetReport,
)
from crawler_lifecycle.gateway.ttl_cache import TtlCache
from crawler_lifecycle.gateway.ui.parts.charts import bar_paths
from crawler_lifecycle.gateway.ui.parts.choosing import LIVE, Chooser
from crawler_lifecycle.gateway.ui.parts.formats import lasting, number, visible
from crawler_lifecycle.gateway.ui.parts.incidents import incident_line
from crawler_lifecycle.gateway.ui.parts.lists import RowPage, filters_of, list_page, page_of
from crawler_lifecycle.gateway.ui.parts.rendering import ALONE, answer, query
from crawler_lifecycle.gateway.ui.runs.columns import crawler_link
from crawler_lifecycle.gateway.ui.runs.commands import PageFilters
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.subjects import CellLine, Column, Count, Document, Note, Subject, at

#: The number of crawlers on one page.
PAGE = 100
#: The number of last runs of a crawler that are shown as bars.
BARS = 20
#: The number of incidents that are shown at first. The others are folded.
SHOWN = 8
#: Seconds that a page waits for the state of the parts, and for the counts in the navigation.
WAIT_S = 0.3
RAIL_WAIT_S = 0.1
RAIL_S = 5.0


#: The title of the column for each order.
SORTS = {
    "crawler": "Crawler",
    "state": "State",
    "last_run": "Last run",
    "good": "Good, 7 d",
    "items": "Items",
}
#: The field of a crawler for each order that needs no further reading.
FIELDS = {"crawler": "name", "state": "rank", "last_run": "last_run_at"}
#: The maximum number of crawlers, worst first, whose results are read for an order.
RESULTS_MAX = 2_000


class FleetFilters(SearchParameters):
    """Filters in the address of the home page. Without ``sort``, the crawlers in the worst state
    come first."""

    sort: Annotated[str, order(SORTS)] | None = None
    state: Annotated[str, one_of({state: state for state in CrawlerState})] | None = None
    page_size: int = Field(default=PAGE, ge=1, le=PAGE_MAX)


def crawler_rows(
    found: Sequence[FleetCrawler], results: Mapping[str, CrawlerResults], now: datetime
) -> list[dict[str, Any]]:
    """Return the documents that the columns of crawlers read. Rows have numbers, because names can
    contain any character.
    """
    rows = []
    for number_of_row, crawler in enumerate(found, 1):
        result = results[crawler.name]
        ended = result.ended
        row = {
            **asdict(crawler),
            "crawler_id": number_of_row,
            "at": now,
            "paths": bar_paths(result.last[:BARS], 20, 8),
            "runs": len(result.last[:BARS]),
            "good": result.good,
            "items": result.items,
            "usual": usual(comparable(ended[0], ended[1:])) if ended else None,
        }
        rows.append(row)
    return rows


def fitting(report: FleetReport, filters: FleetFilters) -> list[FleetCrawler]:
    """Return the crawlers that match the filters, worst first."""
    text = (filters.search or "").casefold()
    found = []
    for crawler in report.crawlers:
        searched = f"{crawler.name}\n{crawler.why}\n{crawler.state}".casefold()
        if text in searched and filters.state in (None, crawler.state):
            found.append(crawler)
    return found


def ordered(
    fleet: Fleet, report: FleetReport, crawlers: Sequence[FleetCrawler], sort: str | None
) -> tuple[list[FleetCrawler], str | None]:
    """Return the crawlers, which are worst first, in this order, and a note about crawlers whose
    value was not read.

    Those without a value come last, and those with equal values stay worst first. This call blocks.
    """
    if sort is None:
        return list(crawlers), None
    by = sort.removeprefix("-")
    note = None
    read: Mapping[str, float] = {}
    if by not in FIELDS:
        first = crawlers[:RESULTS_MAX]
        if by == "good":
            names = [crawler.name for crawler in first]
            read = fleet.store.runs.good_shares(names, report.at - WEEK)
        else:
            read = fleet.items(report, first)
        if len(crawlers) > RESULTS_MAX:
            note = f"Only the {RESULTS_MAX:,} crawlers in the worst states are in this order."

    def value(crawler: FleetCrawler) -> Any:
        return getattr(crawler, FIELDS[by]) if by in FIELDS else read.get(crawler.name)

    known = [crawler for crawler in crawlers if value(crawler) is not None]
    unknown = [crawler for crawler in crawlers if value(crawler) is None]
    known.sort(key=value, reverse=sort.startswith("-"))
    return known + unknown, note


def _state(row: Document) -> Any:
    since = lasting(row["since"], row["at"]) if row["since"] else ""
    words = Markup("{} since {}").format(row["state"], since) if since else row["state"]
    style = row["state"].replace(" ", "-")
    return Markup('<span class="pill {}">{}</span>').format(style, words)


def _bars(row: Document) -> Any:
    runs = row["runs"]
    if not runs:
        return None
    paths = [Markup('<path class="{}" d="{}"/>').format(*path) for path in row["paths"].items()]
    return Markup(
        '<svg viewBox="0 0 160 20" width="160" height="20" role="img" '
        'aria-label="The last {} runs"><g transform="translate({})">{}</g></svg>'
    ).format(runs, 160 - 8 * runs, Markup("").join(paths))


def _start(row: Document) -> Any:
    if not row["in_catalogue"] or not may("pressStart"):
        return Markup("")
    link = Markup('<a href="/runs/new{}">Start<span class="hidden"> {}</span></a>')
    return link.format(query({"crawler": row["name"]}), visible(row["name"]))


CRAWLER = Subject(
    "crawler",
    "name",
    columns=(
        Column("Crawler", lambda row: crawler_link(row["name"])),
        Column("State", _state),
        Column("Last 20 runs", _bars, leaves=3),
        Column("Last run", at("last_run_at"), leaves=3),
        Column(
            "Good, 7 d",
            lambda row: None if row["good"] is None else f"{100 * row['good']:.0f} %",
            right=True,
            leaves=2,
        ),
        Column(
            "Items",
            lambda row: CellLine(
                [
                    Count(row["items"]),
                    Note(row["usual"] and f"of ~{number(int(row['usual']))}"),
                ]
            ),
            right=True,
        ),
        Column("Why", "why", fills=True),
        Column("Start", _start, leaves=1),
    ),
    empty="The catalogue has no crawler yet. Declare the first one in crawlers.yaml, and it is "
    "shown here.",
)
CHOOSER = Chooser(
    CRAWLER,
    "/",
    "Name, state, reason",
    facets={"state": "State"},
    values={"state": list(CrawlerState)},
    sorts=SORTS,
    largest=("last_run", "items"),
    title="Fleet",
)


def summary(report: FleetReport, health: HealthReport | None) -> list[tuple[str, str | None, bool]]:
    """Return the parts of the summary line: the words, their link, and whether they report a
    problem.
    """
    states = Counter(crawler.state for crawler in report.crawlers)
    heard = sum(not row.is_muted(report.at) for row in report.incidents)
    unwell = [part for part in health.parts if part.level in ("warn", "bad")] if health else []
    ended = report.day["completed"] + report.day["failed"]
    words: list[tuple[str, str | None, bool]] = []
    if not report.incidents and health is not None and health.level == "ok":
        words.append(("Everything works", None, False))
    if heard:
        need = f"{number(heard)} need{'s' * (heard == 1)} attention"
        words.append((need, "/incidents", True))
    words.append((count(len(report.crawlers), "crawler"), None, False))
    for state, verb in (
        (CrawlerState.FAILS, "fail{}"),
        (CrawlerState.FLAKY, "{} flaky"),
        (CrawlerState.LESS, "bring{} less"),
        (CrawlerState.FAILED_LAST, "failed in the last run"),
    ):
        if many := states[state]:
            form = ("is" if many == 1 else "are") if verb[0] == "{" else "s" * (many == 1)
            words.append(
                (
                    f"{number(many)} {verb.format(form)}",
                    "/" + query({"state": state.value}),
                    state is CrawlerState.FAILS,
                )
            )
    if unwell:
        words.append((f"{count(len(unwell), 'part')} unwell", "/parts", True))
    live = f"{count(report.live_runs, 'run')}{'+' * (report.live_runs >= LIVE_MAX)} live"
    words.append((live, "/runs" + query({"status": LIVE}), False))
    today = f"{count(report.day.total(), 'run')} in 24 h"
    if ended:
        today += f", {100 * report.day['completed'] / ended:.1f} % completed"
    since = {"created_from": report.day_from.isoformat()}
    return [*words, (today, "/runs" + query(since), False)]


def add_fleet(app: FastAPI, fleet: Fleet, health: Health) -> None:
    """Add the home page, and the page of all parts."""

    @app.get("/")
    async def show_fleet(request: Request) -> Response:
        """Show what needs attention, and all crawlers. An old address of the list of runs
        redirects to that list.
        """
        if request.query_params.keys() & (
            PageFilters.model_fields.keys() - FleetFilters.model_fields.keys()
        ):
            return RedirectResponse(f"/runs?{request.url.query}", 307)
        filters = filters_of(request, FleetFilters)
        report, parts = await asyncio.gather(fleet.read(), health.read_within(WAIT_S))
        return await run_in_threadpool(shown, request, filters, report, parts)

    def shown(
        request: Request, filters: FleetFilters, report: FleetReport, parts: HealthReport | None
    ) -> Response:
        matching = fitting(report, filters)
        crawlers, note = ordered(fleet, report, matching, filters.sort)

        def found(asked: FleetFilters) -> RowPage:
            page = page_of(crawlers, asked)
            results = fleet.results(report, [crawler.name for crawler in page.rows])
            return replace(page, rows=crawler_rows(page.rows, results, report.at), note=note)

        muted = [row for row in report.incidents if row.is_muted(report.at)]
        heard = [row for row in report.incidents if not row.is_muted(report.at)]
        # What all share, such as a closed site or a full pool, may be the reason for the others.
        heard.sort(key=lambda row: (row.project != ALL, row.level))
        values: dict[str, Any] = {
            "summary": summary(report, parts),
            "incidents": [incident_line(row) for row in heard],
            "muted": [incident_line(row) for row in muted],
            "most": SHOWN,
            "away": report.away,
            "me": caller_name(),
            "health": parts,
        }
        return list_page(
            request, CHOOSER, filters, found, now=report.at, template="fleet.html", **values
        )

    @app.get("/crawlers")
    async def show_crawlers() -> Response:
        """Redirect to the home page, which lists all crawlers."""
        return RedirectResponse("/", 307)

    @app.get("/parts")
    async def show_parts(request: Request) -> Response:
        """Show the state of each part of the installation, and the incidents about parts."""
        report = await health.read()
        found = []
        with suppress(LifecycleError):  # the report says that the database is down
            rows = await run_in_threadpool(fleet.store.incidents.open_incidents, INCIDENTS_MAX)
            lines = [incident_line(row) for row in rows]
            found = [line for line in lines if line.page == "/parts"]
        return answer(request, "health.html", health=report, incidents=found, now=report.at)


def rail_counts(app: FastAPI, store: Store) -> None:
    """Make the pages that are added from now on show counts next to the links in the navigation."""

    def read() -> Counter[str]:
        counts = Counter(live=store.runs.count_runs(LIVE, LIVE_MAX))
        for kind, incidents in store.incidents.open_counts(heard=True).items():
            counts[kind.partition("_")[0]] += incidents
        return counts

    app.state.rail = TtlCache(partial(run_in_threadpool, read), RAIL_S)
    app.router.dependencies.append(Depends(_keep_rail))


async def _keep_rail(request: Request) -> None:
    """Read the counts for a page."""
    if request.method == "GET" and ALONE not in request.scope:
        with suppress(LifecycleError):
            request.state.rail = (
                await request.app.state.rail.own.read_within(RAIL_WAIT_S) or Counter()
            )
