"""The pages of crawl managers: a list, and one with its jobs and buttons."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.managers.manager import CAP_MAX, JobState
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.paging import cut
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.managers.commands import ManagerCommands
from crawler_lifecycle.gateway.managers.requests import StopManager
from crawler_lifecycle.gateway.managers.routes import JobFilters, ManagerDetail, ManagerFilters, ManagerId, ManagerViews
from crawler_lifecycle.gateway.page.parts.forms import ActionForm, Once, Told, form, read, tell, went_on
from crawler_lifecycle.gateway.page.parts.rendering import answer, query
from crawler_lifecycle.store.managers.managers import ManagerStore
from crawler_lifecycle.subjects import MANAGER, Subject

#: Items that are shown as the next ones.
NEXT = 20
_WAITING = [JobState.DELAYED, JobState.BUFFERED, JobState.QUEUED]


class ManagerForm(ActionForm):
    """The form of a manager."""

    subject: ClassVar[Subject] = MANAGER
    attempt: int
    reason: str | None = Field(default=None, max_length=2000)
    cap: int | None = Field(default=None, ge=0, le=CAP_MAX)


def add_managers(
    app: FastAPI,
    commands: ManagerCommands,
    managers: ManagerStore,
    views: ManagerViews,
    once: Once,
    clock: Callable[[], datetime],
) -> None:
    """Add the pages of managers."""

    @app.get("/managers", operation_id="showManagers", include_in_schema=False)
    def show_managers(request: Request) -> Response:
        """Managers, newest first."""
        filters = read(ManagerFilters, request.query_params.multi_items())
        page = views.page(filters)
        asked = filters.model_dump(mode="json", exclude_defaults=True, exclude={"page_token"})
        token = page.next_page_token
        more = "/managers" + query({**asked, "page_token": token}) if token else None
        return answer(
            request,
            "managers.html",
            rows=[one.model_dump() for one in page.managers],
            more=more,
            filters=filters,
            now=clock(),
        )

    @app.get("/managers/{manager_id}", operation_id="showManager", include_in_schema=False)
    async def show_manager(manager_id: ManagerId, request: Request) -> Response:
        """One manager: status, place in its source, counters, its jobs, and those that come next."""
        filters = read(JobFilters, request.query_params.multi_items())
        return await run_in_threadpool(shown, request, await views.detail(manager_id), filters)

    def shown(request: Request, manager: ManagerDetail, filters: JobFilters) -> Response:
        after = decode("job", filters.page_token)
        states = filters.state or [JobState.STARTING, JobState.STARTED]
        rows = managers.list_jobs(manager.manager_id, after or 0, filters.page_size + 1, states=states)
        page, token = cut("job", rows, filters.page_size, lambda row: row.item_id)
        more = query({"state": filters.state, "page_token": token}) if token else None
        values: dict[str, Any] = {
            "manager": manager,
            "jobs": page,
            "more": more,
            "states": list(JobState),
            "chosen": states,
        }
        values |= {"next": managers.list_jobs(manager.manager_id, 0, NEXT, states=_WAITING)}
        values |= {"output": managers.manager_output(manager.manager_id), "now": clock()}
        return answer(request, "manager.html", **values)

    @app.post("/managers/{manager_id}", operation_id="pressManager", include_in_schema=False)
    async def press_manager(manager_id: ManagerId, request: Request) -> Response:
        """Stop, pause, resume a manager, or set how many jobs may be live at once."""
        pressed = read(ManagerForm, await form(request))

        async def act() -> Told:
            row = await commands.find(manager_id)
            name, href = f"manager {manager_id}", f"/managers/{manager_id}"
            if row.attempt != pressed.attempt:
                return went_on(name, href, row.status, row.attempt)
            return Told(name, href, True, await _carried_out(commands, manager_id, pressed))

        return tell(request, pressed.action.title, [await once(f"{pressed.key}.{pressed.do}", act)], clock())


async def _carried_out(commands: ManagerCommands, manager_id: int, pressed: ManagerForm) -> str:
    """Carry out what was pressed, and say in a sentence what became of it."""
    match pressed.action.path:
        case "stop":
            body = StopManager(**pressed.action.body, reason=pressed.reason)
            done = await commands.stop(manager_id, signed(body))
        case "pause":
            done = await commands.pause(manager_id)
        case "cap":
            done = await commands.cap(manager_id, pressed.cap or 0)
        case _:
            done = await commands.resume(manager_id)
    return pressed.said(done.fresh, done.note, cap=pressed.cap or "what its class says")
