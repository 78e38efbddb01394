"""Routes of schedules and their firings."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.lists import named_page
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import OfProject
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.commands import CommandResult
from crawler_lifecycle.gateway.runs.requests import BodyOf, IdempotencyKey, OptionalBodyOf, same_id

from ..ports import ScheduleRow
from .answers import (
    AcceptedSchedule,
    Firing,
    FiringFilters,
    FiringPage,
    RequestedFirings,
    ScheduleDetail,
    ScheduleName,
    SchedulePage,
)
from .commands import (
    AskSchedule,
    Backfill,
    PauseSchedule,
    PutSchedule,
)


def add_schedules(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of schedules, commands first."""
    commands = gateway.schedule_commands
    views = gateway.schedule_views

    async def answer(done: CommandResult[ScheduleRow]) -> AcceptedSchedule:
        return AcceptedSchedule.of(done.row, note=done.note, **await views.ahead(done.row))

    @app.put("/v1/schedules/{name}")
    async def put_schedule(name: ScheduleName, body: BodyOf[PutSchedule]) -> AcceptedSchedule:
        """Create a schedule, or replace its definition.

        A repeat with the same definition changes nothing.

        The response lists the days of the coming year on which a due time is skipped or occurs
        twice.
        """
        return await answer(await commands.put(name, signed(body)))

    @app.delete("/v1/schedules/{name}")
    async def delete_schedule(name: ScheduleName) -> AcceptedSchedule:
        """Delete a schedule, so that it has no more firings.

        Past firings stay recorded. Started runs, managers and graphs continue.
        """
        return await answer(await commands.delete(name))

    @app.post("/v1/schedules/{name}/pause")
    async def pause_schedule(
        name: ScheduleName, body: OptionalBodyOf[PauseSchedule]
    ) -> AcceptedSchedule:
        """Pause a schedule. Nothing starts until the schedule is resumed, but each firing is still
        recorded.
        """
        return await answer(await commands.pause(name, signed(body)))

    @app.post("/v1/schedules/{name}/resume")
    async def resume_schedule(name: ScheduleName) -> AcceptedSchedule:
        """Resume a paused schedule. Only a backfill starts targets for due times during the
        pause.
        """
        return await answer(await commands.resume(name))

    @app.post("/v1/schedules/{name}/trigger", status_code=202)
    async def trigger_schedule(
        name: ScheduleName,
        body: OptionalBodyOf[AskSchedule],
        response: Response,
        idempotency_key: IdempotencyKey = None,
    ) -> RequestedFirings:
        """Fire a schedule now, even while the schedule is paused.

        If an earlier target is still executing, the new target waits for its verdict.

        A repeat with the same `Idempotency-Key` returns the same firing, even much later.
        """
        done = await commands.trigger(
            name, signed(body), key=same_id(body.request_id, idempotency_key)
        )
        done.mark(response)
        return RequestedFirings(firings=[Firing.of(line) for line in done.row], note=done.note)

    @app.post("/v1/schedules/{name}/backfill", status_code=202)
    async def backfill_schedule(name: ScheduleName, body: BodyOf[Backfill]) -> RequestedFirings:
        """Start the target for past due times at which no target started: missed, skipped, paused
        and failed ones, and due times before the schedule was created.

        At most 500 due times are allowed. Targets start one after another, unless they may overlap.
        """
        lines, note = await commands.backfill(name, signed(body))
        return RequestedFirings(firings=[Firing.of(line) for line in lines], note=note)

    @app.get("/v1/schedules", **documents(SchedulePage))
    def list_schedules(filters: Annotated[OfProject, Query()], request: Request) -> Response:
        """All schedules, in the order in which they were created."""
        page = named_page(views.schedules, filters, views.of)
        return conditional(request, SchedulePage(**page))

    @app.get("/v1/schedules/{name}", **documents(ScheduleDetail))
    async def get_schedule(name: ScheduleName, request: Request) -> Response:
        """One schedule: its definition, its next due times, and the days with a clock change."""
        return conditional(request, await views.detail(await commands.find(name)))

    @app.get("/v1/schedules/{name}/firings", **documents(FiringPage))
    async def list_firings(
        name: ScheduleName, filters: Annotated[FiringFilters, Query()], request: Request
    ) -> Response:
        """The firings of a schedule with their results, with the latest first."""
        page, token = await run_in_threadpool(views.due, await commands.find(name), filters)
        return conditional(
            request,
            FiringPage(firings=[Firing.of(firing) for firing in page], next_page_token=token),
        )
