"""The list of runs."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.run import RunStatus, Trigger
from crawler_lifecycle.gateway.access.operations import may
from crawler_lifecycle.gateway.api.answers import RunPage
from crawler_lifecycle.gateway.api.paging import RunFilters
from crawler_lifecycle.gateway.api.routes.runs import RunViews
from crawler_lifecycle.gateway.cursors import PAGE_MAX
from crawler_lifecycle.gateway.health import Health, HealthStrip
from crawler_lifecycle.gateway.page.parts.forms import read
from crawler_lifecycle.gateway.page.parts.rendering import answer, query
from crawler_lifecycle.ports import RunTasks

from .commands import SELECTED_MAX

#: Seconds that a list waits to know how everything stands; what takes longer comes by the stream.
PATIENCE_S = 0.3
#: Filters that have no field of their own on the page, and stay when others change.
_UNSHOWN = ("stage", "parent")
#: Filters that few use: they are folded unless one of them is set.
_RARE = {*_UNSHOWN, "trigger", "outcome", "flow_id", "tag", "created_from", "created_until"}
_CHOICES = {"status": list(RunStatus), "trigger": list(Trigger)}


class PageFilters(RunFilters):
    """What the address of the list may say. With ``all`` it has every run that fits, chosen, as far as a form can."""

    all: bool = False


def add_runs(app: FastAPI, views: RunViews, health: Health) -> None:
    """Add the list."""

    @app.get("/", operation_id="showRuns", include_in_schema=False)
    async def show_runs(request: Request) -> Response:
        """Runs that fit the filters of the address, newest first; above them how everything stands."""
        filters = read(PageFilters, request.query_params.multi_items())
        read_runs = run_in_threadpool(lambda: _everything(views, filters) if filters.all else views.listed(filters))
        found, strip = await asyncio.gather(read_runs, health.read_within(PATIENCE_S))
        return await run_in_threadpool(shown, request, filters, found, strip)

    def shown(
        request: Request,
        filters: PageFilters,
        found: tuple[RunPage, dict[int, RunTasks]],
        strip: HealthStrip | None,
    ) -> Response:
        page, tasks = found
        asked = filters.model_dump(mode="json", exclude_defaults=True, exclude={"page_token", "all"})
        values: dict[str, Any] = {"strip": strip, "runs": page.runs, "overdue": page.overdue, "now": views.clock()}
        values |= {"tasks": {run_id: one.counts.positive() for run_id, one in tasks.items()}}
        token = page.next_page_token
        values |= {"more": "/" + query({**asked, "page_token": token}) if token else None}
        values |= {"everything": "/" + query({**asked, "all": "true"}), "selected_max": SELECTED_MAX}
        hidden = [(name, asked[name]) for name in _UNSHOWN if name in asked]
        hidden += [("tag", tag) for tag in filters.tag[1:]]
        values |= {"asked": asked, "more_filters": not _RARE.isdisjoint(asked)}
        values |= {"hidden": hidden, "acts": may("pressRuns"), "chosen": filters.all}
        return answer(request, "runs.html", filters=filters, choices=_CHOICES, **values)


def _everything(views: RunViews, filters: PageFilters) -> tuple[RunPage, dict[int, RunTasks]]:
    """All runs that fit, at most as many as one form may name; the token tells that there are more."""
    page, tasks = views.listed(filters.model_copy(update={"page_size": PAGE_MAX}))
    runs, token = page.runs, page.next_page_token
    while token is not None and len(runs) < SELECTED_MAX:
        size = min(PAGE_MAX, SELECTED_MAX - len(runs))
        page, more = views.listed(filters.model_copy(update={"page_size": size, "page_token": token}))
        runs, token, tasks = [*runs, *page.runs], page.next_page_token, tasks | more
    return RunPage(runs=runs, next_page_token=token, overdue=page.overdue), tasks
