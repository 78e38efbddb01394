"""The web pages of a crawler: its overview and its other tabs."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from statistics import median
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.code_changes import brought_since, code_changes
from crawler_lifecycle.domain.coverage import FIELDS_MAX, RUNS
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.results import comparable, is_good, run_seconds, usual
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.unknown import similar
from crawler_lifecycle.gateway.runs.commands import mapping_of
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.fleet import LIVE_MAX, WEEK, crawler_state
from crawler_lifecycle.gateway.ui.parts.charts import chart
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.crawler_fields import Versions
from crawler_lifecycle.gateway.ui.parts.formats import number
from crawler_lifecycle.gateway.ui.parts.incidents import incidents_about
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    filters_of,
    held,
    held_sorts,
    list_page,
)
from crawler_lifecycle.gateway.ui.parts.rendering import answer
from crawler_lifecycle.gateway.ui.parts.tabs import tabs_of
from crawler_lifecycle.gateway.ui.runs.columns import TAGS, crawler_link, parent_link
from crawler_lifecycle.gateway.ui.runs.commands import CHOOSER, RunList
from crawler_lifecycle.gateway.ui.runs.figures import COUNTERS
from crawler_lifecycle.ports.runs import BriefRun, Ends, RunRow
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.subjects import SCHEDULE
from crawler_lifecycle.web.problems import Problem

#: The number of newest runs that the pages of a crawler compare.
EACH = 50
#: The maximum number of reasons for failures on the page.
REASONS = 8
#: The maximum number of starters on the page.
LISTED_MAX = 20
#: The periods, in days, for which the page counts good runs.
DAYS = (7, 30)

CrawlerName = Annotated[str, Path(max_length=200)]


class CrawlerTab(StrEnum):
    """The tabs of a crawler that show no list."""

    FAILURES = "failures"
    FIELDS = "fields"
    ARGUMENTS = "arguments"


RUNS_OF = replace(
    CHOOSER,
    subject=replace(
        CHOOSER.subject,
        columns=[
            TAGS if column.title == "Crawler" else column for column in CHOOSER.subject.columns
        ],
        empty="This crawler has no runs yet. Start one, and it is listed here.",
    ),
    about="Tag, flow, argument, number",
    facets={name: word for name, word in CHOOSER.facets.items() if name != "crawler"},
)
_COLUMNS = [column for column in SCHEDULE.columns if column.title != "Begins"]
SCHEDULES_OF = Chooser(
    replace(
        SCHEDULE,
        columns=_COLUMNS,
        empty="No schedule starts this crawler. A schedule starts it at set times.",
    ),
    "",
    "Name, times, state, reason",
    sorts=held_sorts(_COLUMNS),
    links=[("pressPutSchedule", "/schedules/new", "Create one")],
)


@dataclass(eq=False)
class CrawlerPages:
    """Reads the data of a crawler's tabs.

    ``schedules`` returns the schedules that start a crawler, judged by the known crawlers, and
    ``versions`` the versions of its code, newest first.
    """

    store: Store
    runs: RunList
    crawlers: Crawlers
    clock: Clock
    schedules: Callable[[str, Container[str]], list[dict[str, Any]]]
    versions: Versions

    async def read(self, name: str) -> dict[str, Any]:
        """Return the values that all tabs of a crawler need. Raises ``Problem`` 404 for a crawler
        that is not in the catalogue and has no runs.
        """
        known, away = await self.crawlers.last()
        newest = await run_in_threadpool(self.store.runs.list_runs, crawler=name, limit=1)
        if not newest and name not in known:
            near = similar(name, known)
            fix = f"did you mean {near}?" if near else away or "the home page lists all crawlers"
            raise Problem(
                404,
                "unknown_crawler",
                f"There is no crawler {name[:100]!r}, and it has no runs; {fix}",
            )
        last = newest[0] if newest else None
        values = await run_in_threadpool(self._head, name, known, last)
        return values | {"away": away}

    def _head(
        self, name: str, known: Mapping[str, CrawlerDefinition], last: RunRow | None
    ) -> dict[str, Any]:
        path = crawler_link(name).path
        crawler = known.get(name)
        incidents = incidents_about(self.store, f"crawlers/{name}")
        about = [line.row for line in incidents if line.state is not None]
        live = [line for line in self.store.runs.live_runs(LIVE_MAX) if line.crawler == name]
        state = crawler_state(name, about, live, last, in_catalogue=crawler is not None).state
        values: dict[str, Any] = {
            "head": "crawler_head.html",
            "name": name,
            "crawler": crawler,
            "last": last,
            "now": self.clock(),
            "state": state,
            "incidents": incidents,
            "rate": self.rate(name, DAYS[-1]),
            "schedules": self.schedules(name, known),
            "runs_path": f"{path}/runs",
            "args": mapping_of(last.request.get("args")) if last else {},
            "versions": self.versions(name, crawler),
        }
        ends = values["rate"][1]
        arguments = {*(crawler.args if crawler else ()), *values["args"]}
        counts = {
            "Overview": None,
            "Runs": self.runs.counted(crawler=name),
            "Failures": number(ends.failed - ends.stopped),
            "Fields": None,
            "Versions": number(len(values["versions"])),
            "Schedules": number(len(values["schedules"])),
            "Arguments": number(len(arguments)),
        }
        return values | {"tabs": tabs_of(path, counts)}

    def newest(self, name: str) -> list[BriefRun]:
        """Return the newest runs of a crawler, newest first. This call blocks."""
        return self.store.runs.brief_runs(EACH, crawler=name)

    def rate(self, name: str, days: int) -> tuple[int, Ends, dict[str, Any]]:
        """Return how runs of the last ``days`` ended, after the number of days and before the
        filters of the list of these runs. This call blocks.
        """
        hour = self.clock().replace(minute=0, second=0, microsecond=0)
        since = hour - timedelta(days=days)
        ends = self.store.runs.ends_of(name, since, REASONS)
        return days, ends, {"created_from": since.isoformat()}

    def overview(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values that only the overview needs. This call blocks."""
        name = values["name"]
        runs = self.newest(name)
        ended = [run for run in runs if RunStatus(run.status).terminal]
        good = comparable(ended[0], ended[1:]) if ended else []
        figures: dict[str, tuple[float | None, float | None]] = {}
        for run in ended[:1]:
            figures = {name: (getattr(run, name), usual(good, name)) for name in COUNTERS}
            figures["duration"] = (run_seconds(run), usual(good, "duration"))
        rates = [self.rate(name, days) for days in DAYS[:-1]]
        run_ids = [run.run_id for run in runs]
        changes = code_changes(run_ids, self.store.runs.codes_of(run_ids))
        since = brought_since(changes[0], runs) if changes else None
        before = next((row["version"] for row in values["versions"] if row["before"]), None)
        shares = self.store.runs.good_shares([name], self.clock() - WEEK)
        return {
            "runs": runs,
            "good": shares.get(name),
            "since": since,
            "back": before if changes else None,
            "chart": chart(runs, EACH, usual(good), changes),
            "rates": [*rates, values["rate"]],
            "figures": figures,
            "good_runs": len(good),
        }

    def coverage(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values that only the tab of fields needs. This call blocks."""
        runs = self.newest(values["name"])
        found = fields([run for run in runs if is_good(run)], values["crawler"])
        return {"fields": found, "read": len(runs), "each": EACH}


def add_crawlers(app: FastAPI, pages: CrawlerPages, runs: RunList) -> None:
    """Add the web pages of a crawler."""

    @app.get("/crawlers/{crawler}")
    async def show_crawler(crawler: CrawlerName, request: Request) -> Response:
        """Show one crawler, even if it has left the catalogue: its last runs, and what is usual."""
        values = await pages.read(crawler)
        values |= await run_in_threadpool(pages.overview, values)
        return answer(request, "crawler.html", **values)

    @app.get("/crawlers/{crawler}/runs")
    async def show_crawler_runs(crawler: CrawlerName, request: Request) -> Response:
        """List the runs of one crawler that match the filters in the address, newest first."""
        values = await pages.read(crawler)
        return await runs.shown(request, RUNS_OF, {"crawler": crawler}, tab="Runs", **values)

    @app.post("/crawlers/{crawler}/runs")
    async def press_crawler_runs(crawler: CrawlerName, request: Request) -> Response:
        """Carry out an action on selected runs of one crawler."""
        return await runs.pressed(request, partial(show_crawler_runs, crawler))

    @app.get("/crawlers/{crawler}/schedules")
    async def show_crawler_schedules(crawler: CrawlerName, request: Request) -> Response:
        """List the schedules, managers and graphs that start one crawler."""
        filters = filters_of(request, HeldFilters)
        values = await pages.read(crawler)
        newest = await run_in_threadpool(pages.newest, crawler)
        parents = dict.fromkeys(run.parent for run in newest)
        starters = filter(None, map(parent_link, parents))
        values |= {"template": "crawler_schedules.html", "tab": "Schedules"}
        values["starters"] = list(starters)[:LISTED_MAX]
        find = held(SCHEDULES_OF, values["schedules"])
        return await run_in_threadpool(
            partial(list_page, **values), request, SCHEDULES_OF, filters, find
        )

    @app.get("/crawlers/{crawler}/{tab}")
    async def show_crawler_tab(crawler: CrawlerName, tab: CrawlerTab, request: Request) -> Response:
        """Show why runs of one crawler failed, how its items are filled, or its arguments."""
        values = await pages.read(crawler)
        if tab is CrawlerTab.FIELDS:
            values |= await run_in_threadpool(pages.coverage, values)
        return answer(request, f"crawler_{tab}.html", **values)


def fields(good: Sequence[BriefRun], crawler: CrawlerDefinition | None) -> list[dict[str, Any]]:
    """Return how well these good runs fill each field of their items.

    For each field: the share of items in the last run that fill it, the usual share, the expected
    minimum, and a line through all shares in units of the SVG. ``good`` is sorted from newest to
    oldest.
    """
    known = [run.fields for run in good if run.fields is not None]
    expected = crawler.expected.parts if crawler is not None else {}
    if not known:
        return []
    by_share = sorted(known[0].shares, key=lambda name: -known[0].shares[name])
    found = []
    for name in list(dict.fromkeys([*expected, *by_share]))[:FIELDS_MAX]:
        shares = [figures.share(name) for figures in known]
        before = [share for share in shares[1 : RUNS + 1] if share is not None]
        middle = median(before) if before else None
        least = expected[name] * middle if name in expected and middle is not None else None
        drawn = [(EACH - n, share) for n, share in enumerate(shares) if share is not None]
        points = " ".join(f"{2 * x},{15 - 14 * share:.3g}" for x, share in reversed(drawn))
        found.append(
            {"name": name, "share": shares[0], "usual": middle, "least": least, "points": points}
        )
    return found
