"""The web page of a crawler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from statistics import median
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.coverage import FIELDS_MAX, RUNS
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.names import graph_key_of, names_of_workflow
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.unknown import similar
from crawler_lifecycle.gateway.runs.commands import mapping_of
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.recent import brought_less
from crawler_lifecycle.gateway.ui.parts.charts import chart, run_kind, run_seconds
from crawler_lifecycle.gateway.ui.parts.rendering import answer, query
from crawler_lifecycle.ports.runs import BriefRun
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.subjects import GRAPH
from crawler_lifecycle.web.problems import Problem

#: The number of runs on the page of a crawler.
EACH = 50
#: The number of newest good runs that are compared with earlier ones.
NEWEST = 10
#: The minimum number of earlier good runs for this comparison.
BEFORE_MIN = 5
#: The maximum number of reasons for failures on the page.
REASONS = 8
#: The maximum number of schedules or starters on the page.
LISTED_MAX = 20
#: The periods, in days, for which the page counts good runs.
DAYS = (7, 30)


def add_crawlers(
    app: FastAPI,
    store: Store,
    crawlers: Crawlers,
    clock: Clock,
    schedules: Callable[[str], list[dict[str, Any]]],
) -> None:
    """Add the web page of a crawler."""

    @app.get("/crawlers/{crawler}")
    async def show_crawler(
        crawler: Annotated[str, Path(max_length=200)], request: Request
    ) -> Response:
        """Show one crawler, even if it has left the catalogue: its last runs, and their
        outcomes.
        """
        known, away = await crawlers.last()
        runs = await run_in_threadpool(store.runs.brief_runs, EACH, crawler=crawler)
        if not runs and crawler not in known:
            near = similar(crawler, known)
            fix = f"did you mean {near}?" if near else away or "the first page lists all crawlers"
            raise Problem(
                404,
                "unknown_crawler",
                f"There is no crawler {crawler[:100]!r}, and it has no runs; {fix}",
            )
        return await run_in_threadpool(shown, request, crawler, known.get(crawler), runs, away)

    def shown(
        request: Request,
        name: str,
        crawler: CrawlerDefinition | None,
        runs: list[BriefRun],
        away: str | None,
    ) -> Response:
        now = clock()
        last = store.runs.list_runs(crawler=name, limit=1)
        hour = now.replace(minute=0, second=0, microsecond=0)
        rates = []
        for days in DAYS:
            ends = store.runs.ends_of(name, since := hour - timedelta(days=days), REASONS)
            rates.append((days, ends, {"crawler": name, "created_from": since.isoformat()}))
        good = [run for run in runs if run.status == RunStatus.COMPLETED]
        figures = usual(good)
        items = [figure for figure in figures if figure[0] == "items"]
        values: dict[str, Any] = {
            "name": name,
            "crawler": crawler,
            "runs": runs,
            "away": away,
            "now": now,
            "chart": chart(runs, EACH, items[0][2] if items else None),
            "kind": run_kind(runs[0]) if runs else None,
            "each": EACH,
            "rates": rates,
            "less": brought_less(runs),
            "usual": figures,
            "fields": fields(good, crawler),
            "schedules": schedules(name)[:LISTED_MAX],
            "starters": starters(runs)[:LISTED_MAX],
            "args": mapping_of(last[0].request.get("args")) if last else {},
        }
        return answer(request, "crawler.html", **values)


def usual(good: Sequence[BriefRun]) -> list[tuple[str, float, float, float | None, float | None]]:
    """Return the usual figures of these good runs, which are sorted from newest to oldest.

    For each figure: its name, the last value, the median, the median of the newest runs, and its
    relative change from the median of the earlier runs. The last two are ``None`` if there are too
    few earlier runs.
    """
    found = []
    for name in ("items", "pages", "errors", "duration"):
        read = run_seconds if name == "duration" else attrgetter(name)
        values: list[float] = [value for run in good if (value := read(run)) is not None]
        before = values[NEWEST:]
        late = median(values[:NEWEST]) if len(before) >= BEFORE_MIN else None
        change = late / early - 1 if late is not None and (early := median(before)) else None
        found += [(name, values[0], median(values), late, change)] if values else []
    return found


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
        shares = [one.share(name) for one in known]
        before = [share for share in shares[1 : RUNS + 1] if share is not None]
        middle = median(before) if before else None
        least = expected[name] * middle if name in expected and middle is not None else None
        drawn = [(EACH - n, share) for n, share in enumerate(shares) if share is not None]
        points = " ".join(f"{2 * x},{15 - 14 * share:.3g}" for x, share in reversed(drawn))
        found.append(
            {"name": name, "share": shares[0], "usual": middle, "least": least, "points": points}
        )
    return found


def starters(runs: Sequence[BriefRun]) -> list[tuple[str, str]]:
    """Return the managers and graphs that started these runs: the name and the page address of
    each.
    """
    found = {}
    for parent in dict.fromkeys(run.parent for run in runs if run.parent):
        if (manager := names_of_workflow(parent)) is not None:
            name, flow_id = manager
            found[f"manager {name} of flow {flow_id}"] = "/managers" + query(
                {"name": name, "flow_id": flow_id}
            )
        elif (key := graph_key_of(parent)) is not None:
            found[f"graph {key}"] = GRAPH.path(key)
    return list(found.items())
