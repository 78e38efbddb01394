"""The web pages of crawl managers: a list, and for each manager an overview with its progress, its
jobs and its runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.status_words import MANAGER_WORDS
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.ui.parts.choosing import LIVE, WORK_TABS, Chooser
from crawler_lifecycle.gateway.ui.parts.chosen import (
    NUMBERED,
    ChosenForm,
    add_list,
    listed_by,
    press_one,
)
from crawler_lifecycle.gateway.ui.parts.formats import number
from crawler_lifecycle.gateway.ui.parts.forms import ActionForm
from crawler_lifecycle.gateway.ui.parts.lists import RowPage, filters_of, list_page
from crawler_lifecycle.gateway.ui.parts.rendering import answer
from crawler_lifecycle.gateway.ui.parts.tabs import tabs_of
from crawler_lifecycle.subjects import JOB, MANAGER, WAITING, Subject

from ..domain.manager import CAP_MAX, JobState
from ..ports import ManagerRow
from ..store.unit import SORTS
from .answers import (
    JobFilters,
    ManagerDetail,
    ManagerFilters,
    ManagerId,
)
from .commands import ManagerCommands
from .progress import HOUR, Pace, parts_of, sentence
from .requests import ResumeManager, StopManager

CHOOSER = Chooser(
    MANAGER,
    "/managers",
    "Name, flow, class, argument, tag, number",
    facets={"status": "Status"},
    values={"status": [*RunStatus, *MANAGER_WORDS]},
    sorts={name: name.capitalize() for name in SORTS} | {"flow_id": "Flow"},
    presets={"All": {}, "Live": {"status": LIVE}, "Failed": {"status": ["FAILED"]}},
    several=("status",),
    largest=("live", "wait", "good", "bad", "skipped"),
    tabs=WORK_TABS,
    links=[("pressStartManager", "/start/manager", "Start a manager")],
    newest_first=True,
)
JOBS = Chooser(
    JOB,
    "",
    "Crawler, argument, tag, outcome, error, number",
    facets={"state": "State"},
    values={"state": list(JobState)},
    presets={
        "All": {},
        "Live": {"state": ["starting", "started"]},
        "Waiting": {"state": list(WAITING)},
        "Ended": {"state": ["ended"]},
        "Skipped": {"state": ["skipped"]},
    },
    several=("state",),
)
#: The number of upcoming jobs on the overview.
NEXT = 20
_WAITING = [JobState.DELAYED, JobState.BUFFERED, JobState.QUEUED]


class ManagersForm(ChosenForm):
    """The form with actions on selected managers."""

    subject: ClassVar[Subject] = MANAGER
    acts = ("stop", "leave", "pause", "resume", "force")
    manager: Annotated[
        list[Annotated[str, StringConstraints(pattern=NUMBERED)]], Field(default_factory=list)
    ]
    cap: ClassVar[None] = None


class ManagerForm(ActionForm):
    """The form with actions on a manager."""

    subject: ClassVar[Subject] = MANAGER
    apart = ("cap",)
    attempt: int
    cap: int | None = Field(default=None, ge=0, le=CAP_MAX)


def add_managers(app: FastAPI, gateway: Gateway) -> None:
    """Add the web pages of managers."""
    commands = gateway.manager_commands
    views = gateway.manager_views
    once = gateway.once
    managers = views.store
    runs = gateway.run_list
    clock = views.clock

    async def find(key: str) -> ManagerRow:
        return await commands.find(int(key))

    do = partial(_carried_out, commands)
    found = listed_by(views, "managers")
    add_list(app, CHOOSER, ManagerFilters, ManagersForm, found, clock, find, do, once)

    async def head(manager_id: int) -> tuple[ManagerDetail, dict[str, Any]]:
        """Return the manager, and the values that all its tabs show."""
        manager = await views.one(manager_id)
        counts = {
            "Overview": None,
            "Jobs": number(_jobs_in(manager, JobState)),
            "Runs": number(manager.jobs.scheduled + manager.jobs.retried),
        }
        return manager, {
            "head": "manager_head.html",
            "manager": manager,
            "sentence": sentence(manager),
            "tabs": tabs_of(MANAGER.path(manager_id), counts),
            "temporal": gateway.temporal_page("workflows", manager.workflow_id),
            "now": clock(),
        }

    @app.get("/managers/{manager_id}")
    async def show_manager(manager_id: ManagerId, request: Request) -> Response:
        """Show one manager: its status, progress, pace and next jobs, and the facts about it."""
        manager, values = await head(manager_id)
        return await run_in_threadpool(shown, request, manager, values)

    def shown(request: Request, manager: ManagerDetail, values: dict[str, Any]) -> Response:
        now = values["now"]
        ended = managers.count_ended(manager.workflow_id, now - HOUR)
        values |= {
            "pace": Pace.of(manager, ended, now),
            "parts_shown": parts_of(manager),
            "next": managers.list_jobs(manager.manager_id, 0, NEXT, states=_WAITING),
            "output": managers.output(manager.manager_id),
        }
        return answer(request, "manager.html", **values)

    @app.get("/managers/{manager_id}/jobs")
    async def show_manager_jobs(manager_id: ManagerId, request: Request) -> Response:
        """Show the jobs of a manager that match the filters of the address."""
        filters = filters_of(request, JobFilters)
        manager, values = await head(manager_id)
        page = partial(list_page, tab="Jobs", **values)
        return await run_in_threadpool(page, request, JOBS, filters, partial(jobs_of, manager))

    def jobs_of(manager: ManagerDetail, filters: JobFilters) -> RowPage:
        page = views.jobs(manager.manager_id, filters)
        known = number(_jobs_in(manager, filters.state or JobState))
        total = None if filters.search else lambda: known
        return RowPage(list(map(asdict, page.jobs)), page.next_page_token, page.note, total)

    @app.get("/managers/{manager_id}/runs")
    async def show_manager_runs(manager_id: ManagerId, request: Request) -> Response:
        """Show the runs that a manager started."""
        manager, values = await head(manager_id)
        within = {"parent": manager.workflow_id}
        return await runs.shown(request, within=within, tab="Runs", **values)

    @app.post("/managers/{manager_id}/runs")
    async def press_manager_runs(manager_id: ManagerId, request: Request) -> Response:
        """Carry out an action for each selected run of a manager."""
        return await runs.pressed(request, partial(show_manager_runs, manager_id))

    @app.post("/managers/{manager_id}")
    async def press_manager(manager_id: ManagerId, request: Request) -> Response:
        """Stop, pause or resume a manager, or set its maximum number of live jobs."""
        return await press_one(request, ManagerForm, manager_id, find, do, once)


def _jobs_in(manager: ManagerDetail, states: Iterable[JobState]) -> int:
    return sum(getattr(manager.jobs, state) for state in states)


async def _carried_out(
    commands: ManagerCommands, key: str, asked: ManagerForm | ManagersForm
) -> str:
    """Carry out the action of the form. Return a sentence about the result."""
    manager_id = int(key)
    match asked.action.path:
        case "stop":
            body = StopManager(**asked.action.body, reason=asked.reason)
            done = await commands.stop(manager_id, signed(body))
        case "pause":
            done = await commands.pause(manager_id)
        case "limit":
            done = await commands.cap(manager_id, asked.cap or 0)
        case _:
            done = await commands.resume(manager_id, ResumeManager(**asked.action.body))
    return asked.sentence(done.fresh, done.note, cap=asked.cap or "the number that its class sets")
