"""The web pages of crawl managers: a list, and for each manager a page with its jobs and
buttons.
"""

from __future__ import annotations

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
from crawler_lifecycle.gateway.ui.parts.chosen import NUMBERED, ChosenForm, add_list, press_one
from crawler_lifecycle.gateway.ui.parts.forms import ActionForm, query_of
from crawler_lifecycle.gateway.ui.parts.rendering import answer, next_page
from crawler_lifecycle.subjects import MANAGER, Subject

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
#: The number of upcoming jobs on the page.
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
    attempt: int
    cap: int | None = Field(default=None, ge=0, le=CAP_MAX)


def add_managers(app: FastAPI, gateway: Gateway) -> None:
    """Add the web pages of managers."""
    commands = gateway.manager_commands
    views = gateway.manager_views
    once = gateway.once
    managers = views.store
    clock = views.clock

    async def find(key: str) -> ManagerRow:
        return await commands.find(int(key))

    do = partial(_carried_out, commands)
    add_list(app, CHOOSER, ManagerFilters, ManagersForm, views, find, do, once)

    @app.get("/managers/{manager_id}")
    async def show_manager(manager_id: ManagerId, request: Request) -> Response:
        """Show one manager: its status, position in its source, counters, jobs in a state, and next
        jobs.
        """
        filters = query_of(request, JobFilters)
        return await run_in_threadpool(shown, request, await views.one(manager_id), filters)

    def shown(request: Request, manager: ManagerDetail, filters: JobFilters) -> Response:
        states = filters.state or [JobState.STARTING, JobState.STARTED]
        page = views.jobs(manager.manager_id, filters.model_copy(update={"state": states}))
        now = clock()
        ended = managers.count_ended(manager.workflow_id, now - HOUR)
        values: dict[str, Any] = {
            "manager": manager,
            "jobs": page.jobs,
            "states": list(JobState),
            "chosen": states,
            "more": next_page(filters, page.next_page_token),
            "now": now,
            "pace": Pace.of(manager, ended, now),
            "sentence": sentence(manager),
            "parts_shown": parts_of(manager),
            "next": managers.list_jobs(manager.manager_id, 0, NEXT, states=_WAITING),
            "output": managers.output(manager.manager_id),
            "temporal": gateway.temporal_page("workflows", manager.workflow_id),
        }
        return answer(request, "manager.html", **values)

    @app.post("/managers/{manager_id}")
    async def press_manager(manager_id: ManagerId, request: Request) -> Response:
        """Stop, pause or resume a manager, or set its maximum number of live jobs."""
        return await press_one(request, ManagerForm, manager_id, find, do, once)


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
