"""The list of runs, and actions on one run, on a selection, or on all matching runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Unpack

from fastapi import FastAPI, Request
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

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
from crawler_lifecycle.gateway.ui.parts.formats import number
from crawler_lifecycle.gateway.ui.parts.forms import form, read
from crawler_lifecycle.gateway.ui.parts.lists import RowPage, filters_of, list_page
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.runs.lists import RunQuery
from crawler_lifecycle.store.runs.search import SORTS
from crawler_lifecycle.subjects import RUN, Subject, total_words
from crawler_lifecycle.web.problems import Problem, refused

from .columns import RUNS

#: The maximum number of runs that are counted for a tab.
COUNTED_MAX = 1000
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
        "code": "Code",
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
    typed=("code",),
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


#: Seconds that a list waits for the values of its filters, and for which they are reused.
VALUES_WAIT_S = 0.3
FRESH_S = 10.0


class PageFilters(RunFilters):
    """Filters in the address of the list.

    With ``all``, all matching runs are listed and selected, up to the limit.
    """

    all: bool = False


@dataclass(eq=False)
class RunList:
    """The list of runs, as a page and as a tab of what started the runs, and the actions on a
    selection in it.
    """

    views: RunViews
    commands: Commands

    def __post_init__(self) -> None:
        store = self.views.store
        self._known = TtlCache(
            lambda: run_in_threadpool(store.runs.known_values, VALUES_MAX), FRESH_S
        )

    async def shown(
        self,
        request: Request,
        chooser: Chooser = CHOOSER,
        within: Mapping[str, str] | None = None,
        **values: Any,
    ) -> Response:
        """List the runs that match the filters in the address, newest first.

        ``within`` has filters that always apply, so the address must not have them. ``values`` are
        further values for ``list_page``, such as ``tab``.
        """
        filters = filters_of(request, PageFilters)
        for name in within or ():
            if getattr(filters, name) is not None:
                raise refused(name, f"this list already has only the runs of one {name}; omit it")
        known = await self._known.own.read_within(VALUES_WAIT_S) or {}
        own: dict[str, Any] = {
            "now": self.views.clock(),
            "acts": ACTS if may("pressRuns") else (),
            "known": known,
        }

        def find(asked: PageFilters) -> RowPage:
            return self._listed(asked.model_copy(update=within))

        page = partial(list_page, **own | values)
        return await run_in_threadpool(page, request, chooser, filters, find)

    def counted(self, **within: Unpack[RunQuery]) -> str:
        """Return the number of runs of a subject, for its tab. This call blocks."""
        count = self.views.store.runs.count_found(COUNTED_MAX + 1, **within)
        return number(min(count, COUNTED_MAX)) + "+" * (count > COUNTED_MAX)

    def _listed(self, filters: PageFilters) -> RowPage:
        page, tasks = self.views.listed(filters)
        rows = []
        for run in page.runs:
            counts = tasks[run.run_id].counts.positive()
            rows.append(run.model_dump() | {"waits": run.waits, "counts": counts})

        def total() -> str:
            return total_words(*self.views.counted(filters, page))

        return RowPage(rows, page.next_page_token, page.note, total)

    async def pressed(self, request: Request, show: Show) -> Response:
        """Carry out the action of the form, and show its result for each run."""
        asked = read(RunForm, await form(request))
        if asked.do == "delete" and not may("deleteRun"):
            raise Problem(
                403, "forbidden", "do: 'delete' needs the role admin; ask for a token that has it"
            )

        async def act(key: str, attempt: int) -> tuple[bool, str]:
            outcome = await _do(self.commands, asked, int(key), attempt)
            row = outcome.row
            if row.status.terminal and asked.action.path == "stop":
                return False, outcome.note or "The run had already ended."
            return True, asked.sentence(outcome.fresh, outcome.note, attempt=row.attempt)

        async def find(key: str) -> RunRow:
            return await self.commands.find(int(key))

        return await press(request, asked, find, act, show, self.views.clock())


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


def add_runs(app: FastAPI, runs: RunList) -> None:
    """Add the list of runs, and the actions on a selection in it."""

    @app.get("/runs")
    async def show_runs(request: Request) -> Response:
        """List the runs that match the filters in the address, newest first."""
        return await runs.shown(request)

    @app.post("/runs")
    async def press_runs(request: Request) -> Response:
        """Carry out the action, and show its result for each run."""
        return await runs.pressed(request, show_runs)
