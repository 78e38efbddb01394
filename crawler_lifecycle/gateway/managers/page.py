"""The web pages of crawl managers: a list, and a page for each manager with its jobs and buttons."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.managers.manager import CAP_MAX, JobState
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.access.operations import may, signed
from crawler_lifecycle.gateway.managers.commands import ManagerCommands
from crawler_lifecycle.gateway.managers.progress import HOUR, Pace, parts_of, sentence
from crawler_lifecycle.gateway.managers.requests import ResumeManager, StopManager
from crawler_lifecycle.gateway.managers.routes import JobFilters, ManagerDetail, ManagerFilters, ManagerId, ManagerViews
from crawler_lifecycle.gateway.page.parts.choosing import LIVE, Chooser
from crawler_lifecycle.gateway.page.parts.chosen import NUMBERED, ChosenForm, press
from crawler_lifecycle.gateway.page.parts.forms import ActionForm, Once, carry_out, check_shown, form, read
from crawler_lifecycle.gateway.page.parts.rendering import answer, next_page
from crawler_lifecycle.store.managers.reads import SORTS
from crawler_lifecycle.subjects import MANAGER, Subject

CHOOSER = Chooser(
    MANAGER,
    "/managers",
    "Name, flow, class, argument, tag, number",
    facets={"status": "Status"},
    values={"status": list(RunStatus)},
    sorts={name: name.capitalize() for name in SORTS} | {"flow_id": "Flow"},
    presets={"All": {}, "Live": {"status": LIVE}, "Failed": {"status": ["FAILED"]}},
    several=("status",),
    largest=("live", "wait", "good", "bad", "skipped"),
)
#: The number of next jobs on the page.
NEXT = 20
_WAITING = [JobState.DELAYED, JobState.BUFFERED, JobState.QUEUED]


class ManagersForm(ChosenForm):
    """The form of chosen managers."""

    subject: ClassVar[Subject] = MANAGER
    acts = ("stop", "leave", "pause", "resume", "force")
    manager: Annotated[list[Annotated[str, StringConstraints(pattern=NUMBERED)]], Field(default_factory=list)]
    cap: ClassVar[None] = None


class ManagerForm(ActionForm):
    """The form of a manager."""

    subject: ClassVar[Subject] = MANAGER
    attempt: int
    cap: int | None = Field(default=None, ge=0, le=CAP_MAX)


def add_managers(app: FastAPI, commands: ManagerCommands, views: ManagerViews, once: Once) -> None:
    """Add the web pages of managers."""
    managers, clock = views.managers, views.clock

    @app.get("/managers")
    def show_managers(request: Request) -> Response:
        """List managers, newest first."""
        filters = read(ManagerFilters, request.query_params.multi_items())
        page = views.page(filters)
        acts = ManagersForm.acts if may("pressManagers") else ()
        values = CHOOSER.listed(filters, page, views.counted(filters, page), acts)
        return answer(request, "list.html", now=clock(), **values)

    @app.post("/managers")
    async def press_managers(request: Request) -> Response:
        """Stop, pause or resume the chosen managers."""
        asked = read(ManagersForm, await form(request))

        async def act(key: str, _: int) -> tuple[bool, str]:
            # A pause that is sent again must not undo what somebody did since.
            return True, await once(f"{asked.request_key}.{key}", lambda: _carried_out(commands, int(key), asked))

        return await press(request, asked, lambda key: commands.find(int(key)), act, clock())

    @app.get("/managers/{manager_id}")
    async def show_manager(manager_id: ManagerId, request: Request) -> Response:
        """Show one manager: status, position in its source, counters, jobs in a state, and the next jobs."""
        filters = read(JobFilters, request.query_params.multi_items())
        return await run_in_threadpool(shown, request, await views.detail(manager_id), filters)

    def shown(request: Request, manager: ManagerDetail, filters: JobFilters) -> Response:
        states = filters.state or [JobState.STARTING, JobState.STARTED]
        page = views.jobs(manager.manager_id, filters.model_copy(update={"state": states}))
        values: dict[str, Any] = {"manager": manager, "jobs": page.jobs, "states": list(JobState), "chosen": states}
        now = clock()
        ended = managers.count_ended(manager.workflow_id, now - HOUR)
        values |= {"more": next_page(filters, page.next_page_token), "now": now, "pace": Pace.of(manager, ended, now)}
        values |= {"sentence": sentence(manager), "parts_shown": parts_of(manager)}
        values |= {"next": managers.list_jobs(manager.manager_id, 0, NEXT, states=_WAITING)}
        return answer(request, "manager.html", output=managers.manager_output(manager.manager_id), **values)

    @app.post("/managers/{manager_id}")
    async def press_manager(manager_id: ManagerId, request: Request) -> Response:
        """Stop, pause or resume a manager, or set the most jobs that may be live at once."""
        asked = read(ManagerForm, await form(request))

        async def act() -> str:
            row = await commands.find(manager_id)
            check_shown(asked.attempt, row.attempt, row.status)
            return await _carried_out(commands, manager_id, asked)

        return await carry_out(request, once, asked, manager_id, act, clock())


async def _carried_out(commands: ManagerCommands, manager_id: int, asked: ManagerForm | ManagersForm) -> str:
    """Carry out the action of the form. Return a sentence about the result."""
    match asked.action.path:
        case "stop":
            body = StopManager(**asked.action.body, reason=asked.reason)
            done = await commands.stop(manager_id, signed(body))
        case "pause":
            done = await commands.pause(manager_id)
        case "cap":
            done = await commands.cap(manager_id, asked.cap or 0)
        case _:
            done = await commands.resume(manager_id, ResumeManager(**asked.action.body))
    return asked.sentence(done.fresh, done.note, cap=asked.cap or "the number that its class sets")
