"""The list of runs, and actions on runs: one, a selection, or all that fit."""

from __future__ import annotations

import asyncio
from typing import Annotated, ClassVar

from fastapi import FastAPI, Request
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.run import RunStatus, Trigger
from crawler_lifecycle.domain.status_words import RUN_WORDS
from crawler_lifecycle.gateway.access.operations import caller_name, may, signed
from crawler_lifecycle.gateway.api.paging import RunFilters
from crawler_lifecycle.gateway.cursors import PAGE_MAX
from crawler_lifecycle.gateway.runs.answers import RunPage
from crawler_lifecycle.gateway.runs.commands import CommandResult, Commands
from crawler_lifecycle.gateway.runs.requests import ResumeRun, StopRun
from crawler_lifecycle.gateway.runs.routes import RunViews
from crawler_lifecycle.gateway.ttl_cache import TtlCache
from crawler_lifecycle.gateway.ui.parts.choosing import LIVE, Chooser
from crawler_lifecycle.gateway.ui.parts.chosen import NUMBERED, SELECTED_MAX, ChosenForm, press
from crawler_lifecycle.gateway.ui.parts.forms import form, query_of, read
from crawler_lifecycle.gateway.ui.parts.rendering import answer, query
from crawler_lifecycle.ports.runs import RunRow, RunTasks
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.search import SORTS
from crawler_lifecycle.subjects import RUN, Subject, total_words
from crawler_lifecycle.web.problems import Problem

#: The maximum number of values that a filter offers.
VALUES_MAX = 100
CHOOSER = Chooser(
    RUN,
    "/runs",
    "Crawler, tag, flow, argument, number",
    facets={
        "status": "Status",
        "crawler": "Crawler",
        "outcome": "Outcome",
        "tag": "Tag",
        "flow_id": "Flow",
        "pool": "Pool",
        "trigger": "Trigger",
        "ended_by": "Ended by",
    },
    values={
        "status": [*RunStatus, *RUN_WORDS],
        "trigger": list(Trigger),
        "ended_by": list(EndedBy),
    },
    sorts={name: name.capitalize() for name in SORTS}
    | {"verified_at": "Checked", "started_at": "Started"},
    presets={
        "All": {},
        "Live": {"status": LIVE},
        "Failed": {"status": ["FAILED"]},
        "Needs attention": {"attention": True},
    },
    several=("status", "tag"),
    largest=("verified_at", "pages", "items", "errors", "started_at", "took"),
    fields=("search", "created_from", "created_until"),
)


class RunForm(ChosenForm):
    """The form for actions on one or more runs."""

    subject: ClassVar[Subject] = RUN
    run: Annotated[
        list[Annotated[str, StringConstraints(pattern=NUMBERED)]], Field(default_factory=list)
    ]


def add_commands(app: FastAPI, commands: Commands, clock: Clock) -> None:
    """Add the route of actions on runs."""

    @app.post("/runs")
    async def press_runs(request: Request) -> Response:
        """Carry out the action, and show its result for each run."""
        asked = read(RunForm, await form(request))
        if asked.do == "delete" and not may("deleteRun"):
            raise Problem(
                403, "forbidden", "do: 'delete' needs the role admin; ask for a token that has it"
            )

        async def act(key: str, attempt: int) -> tuple[bool, str]:
            outcome = await _do(commands, asked, int(key), attempt)
            row = outcome.row
            if row.status.terminal and asked.action.path == "stop":
                return False, outcome.note or "The run had already ended."
            return True, asked.sentence(outcome.fresh, outcome.note, attempt=row.attempt)

        return await press(request, asked, lambda key: commands.find(int(key)), act, clock())


async def _do(
    commands: Commands, asked: RunForm, run_id: int, attempt: int
) -> CommandResult[RunRow]:
    own = asked.action.body
    match asked.action.path:
        case "stop":
            body = StopRun(**own, reason=asked.reason, request_id=asked.request_key)
            return await commands.stop(run_id, signed(body))
        case "delete":
            return await commands.delete(run_id, caller_name())
        case "poll":
            return await commands.poll(run_id)
        case _:
            return await commands.resume(run_id, signed(ResumeRun(**own)), attempt)


#: Seconds that a list waits for the values of its filters, and for which they are reused.
VALUES_WAIT_S = 0.3
FRESH_S = 10.0


class PageFilters(RunFilters):
    """Filters in the address of the list.

    With ``all``, all matching runs are listed and selected, up to the limit.
    """

    all: bool = False


def add_runs(app: FastAPI, views: RunViews, runs: RunReader) -> None:
    """Add the list of runs."""
    kept = TtlCache(lambda: run_in_threadpool(runs.known_values, VALUES_MAX), FRESH_S)

    @app.get("/runs")
    async def show_runs(request: Request) -> Response:
        """List the runs that fit the filters of the address, newest first."""
        filters = query_of(request, PageFilters)
        read_runs = run_in_threadpool(
            lambda: _everything(views, filters) if filters.all else views.listed(filters)
        )
        found, known = await asyncio.gather(read_runs, kept.own.read_within(VALUES_WAIT_S))
        return await run_in_threadpool(shown, request, filters, known or {}, *found)

    def shown(
        request: Request,
        filters: PageFilters,
        known: dict[str, list[str]],
        page: RunPage,
        tasks: dict[int, RunTasks],
    ) -> Response:
        values = CHOOSER.shown(filters, known, page.next_page_token)
        values |= {
            "runs": page.runs,
            "now": views.clock(),
            "note": page.note,
            "tasks": {run_id: one.counts.positive() for run_id, one in tasks.items()},
            "everything": CHOOSER.path + query({**values["asked"], "all": "true"}),
            "selected_max": SELECTED_MAX,
            "total": total_words(*views.counted(filters, page)),
            "acts": may("pressRuns"),
            "chosen": filters.all,
        }
        return answer(request, "runs.html", **values)


def _everything(views: RunViews, filters: PageFilters) -> tuple[RunPage, dict[int, RunTasks]]:
    """Return all matching runs, up to the limit of one form.

    The page token shows whether there are more.
    """
    page, tasks = views.listed(filters.model_copy(update={"page_size": PAGE_MAX}))
    runs = page.runs
    token = page.next_page_token
    while token is not None and len(runs) < SELECTED_MAX:
        size = min(PAGE_MAX, SELECTED_MAX - len(runs))
        page, more = views.listed(
            filters.model_copy(update={"page_size": size, "page_token": token})
        )
        runs, token, tasks = [*runs, *page.runs], page.next_page_token, tasks | more
    return page.model_copy(update={"runs": runs, "next_page_token": token}), tasks
