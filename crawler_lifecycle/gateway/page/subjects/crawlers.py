"""The catalogue, with each crawler's last runs as a small chart, so that a site that silently gives less is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.gateway.page.parts.rendering import answer, number, span
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.recent import CrawlerRuns, RecentRuns
from crawler_lifecycle.ports import RecentRun

#: Height of a chart, and width of one run in it, in the units of its drawing.
HEIGHT, WIDTH = 40, 10


@dataclass(frozen=True, slots=True)
class Bar:
    """One run of a chart."""

    run: RecentRun
    x: int
    items: float
    """Height of what it brought, beside the most that one of these runs did."""
    errors: float
    duration: float
    title: str


def add_crawlers(app: FastAPI, recent: RecentRuns, crawlers: Crawlers) -> None:
    """Add the page of the catalogue."""

    @app.get("/crawlers", operation_id="showCrawlers", include_in_schema=False)
    async def show_crawlers(request: Request) -> Response:
        """The crawlers that can be started, and how their last runs went."""
        try:
            found, known = await recent.read(), await crawlers.all()
        except LifecycleError as error:
            return answer(request, "crawlers.html", rows=[], left_out=0, away=str(error), now=recent.clock())
        rows = [(known.get(one.crawler), one, bars(one)) for one in found.crawlers]
        values: dict[str, Any] = {"left_out": found.left_out, "now": found.at, "height": HEIGHT, "width": WIDTH}
        return answer(request, "crawlers.html", rows=rows, away=crawlers.note(), **values)


def bars(found: CrawlerRuns) -> list[Bar]:
    """The runs from left to right, the newest on the right."""
    runs = list(reversed(found.runs))
    items, errors = (max((getattr(run, name) or 0 for run in runs), default=0) for name in ("items", "errors"))
    longest = max((_seconds(run) or 0.0 for run in runs), default=0.0)
    made = []
    for n, run in enumerate(runs):
        took = _seconds(run)
        words = [f"run {run.run_id}: {run.status}", run.outcome or "", f"{number(run.items)} items"]
        words += [f"{number(run.errors)} errors", span(took) if took is not None else ""]
        parts = (_part(run.items, items), _part(run.errors, errors), _part(took, longest))
        made.append(Bar(run, n * WIDTH, *parts, ", ".join(word for word in words if word)))
    return made


def _part(value: float | None, most: float) -> float:
    return round(HEIGHT * (value or 0) / most, 1) if most else 0.0


def _seconds(run: RecentRun) -> float | None:
    if run.started_at is None or run.ended_at is None:
        return None
    return max((run.ended_at - run.started_at).total_seconds(), 0.0)
