"""The list of runs, and actions on one run, on a selection, or on all matching runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, ClassVar

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
from crawler_lifecycle.gateway.runs.commands import CommandResult, Commands
from crawler_lifecycle.gateway.runs.requests import ResumeRun, StopRun
from crawler_lifecycle.gateway.runs.routes import RunViews
from crawler_lifecycle.gateway.ttl_cache import TtlCache
from crawler_lifecycle.gateway.ui.parts.choosing import LIVE, Chooser
from crawler_lifecycle.gateway.ui.parts.chosen import NUMBERED, ChosenForm, Show, press
from crawler_lifecycle.gateway.ui.parts.forms import form, read
from crawler_lifecycle.gateway.ui.parts.lists import RowPage, filters_of, list_page
from crawler_lifecycle.gateway.ui.runs.columns import RUNS
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.search import SORTS
from crawler_lifecycle.subjects import RUN, Subject, total_words
from crawler_lifecycle.web.problems import Problem

#: The maximum number of values that a filter offers.
VALUES_MAX = 100
ACTS = ("stop", "resume", "rerun", "poll", "force")
CHOOSER = Chooser(
    RUNS,
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
    times={"created_from": "From", "created_until": "Until"},
    newest_first=True,
)


class RunForm(ChosenForm):
    """The form for actions on one or more runs."""

    subject: ClassVar[Subject] = RUN
    run: Annotated[
        list[Annotated[str, StringConstraints(pattern=NUMBERED)]], Field(default_factory=list)
    ]


Press = Callable[[Request, Show], Coroutine[Any, Any, Response]]
"""Carries out the action of a form on runs, and shows their list, or the page of the only run."""


def add_commands(app: FastAPI, commands: Commands, show: Show, clock: Clock) -> Press:
    """Add the route of actions on runs. Return the function that carries them out."""

    @app.post("/runs")
    async def press_runs(request: Request) -> Response:
        """Carry out the action, and show its result for each run."""
        return await pressed(request, show)

    async def pressed(request: Request, show: Show) -> Response:
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

        async def find(key: str) -> RunRow:
            return await commands.find(int(key))

        return await press(request, asked, find, act, show, clock())

    return pressed


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


def run_rows(views: RunViews, filters: PageFilters) -> RowPage:
    """Return the runs that match the filters, as rows of a list. This call blocks."""
    page, tasks = views.listed(filters)
    rows = []
    for run in page.runs:
        counts = tasks[run.run_id].counts.positive()
        rows.append(run.model_dump() | {"waits": run.waits, "counts": counts})

    def total() -> str:
        return total_words(*views.counted(filters, page))

    return RowPage(rows, page.next_page_token, page.note, total)


def add_runs(app: FastAPI, views: RunViews, runs: RunReader) -> Show:
    """Add the list of runs. Return the function that shows it."""
    kept = TtlCache(lambda: run_in_threadpool(runs.known_values, VALUES_MAX), FRESH_S)

    @app.get("/runs")
    async def show_runs(request: Request) -> Response:
        """List the runs that match the filters in the address, newest first."""
        filters = filters_of(request, PageFilters)
        known = await kept.own.read_within(VALUES_WAIT_S) or {}
        acts = ACTS if may("pressRuns") else ()
        now = views.clock()
        listed = partial(run_rows, views)
        return await run_in_threadpool(
            list_page, request, CHOOSER, filters, listed, now=now, acts=acts, known=known
        )

    return show_runs
