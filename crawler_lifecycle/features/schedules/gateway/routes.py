"""Routes of schedules and their firings, and the bodies of their answers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Any, Self

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.due_ids import NAME_MAX, due_request_id
from crawler_lifecycle.domain.projects import narrowed
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import OfProject, Paging, cut
from crawler_lifecycle.gateway.api.rows import OfRow
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.runs.commands import Commanded
from crawler_lifecycle.gateway.runs.requests import IdempotencyKey, same_id
from crawler_lifecycle.web.problems import JsonBody

from ..domain.calendar import ClockEffect
from ..domain.decision import Decision
from ..domain.definition import ScheduleSpec, TargetKind, kind_of
from ..ports import DueRow, ScheduleRow
from ..store.schedules import ScheduleStore
from ..temporal import AHEAD
from .commands import (
    AskSchedule,
    Backfill,
    PauseSchedule,
    PutSchedule,
    ScheduleCommands,
)

_Put = Annotated[PutSchedule, Depends(JsonBody(PutSchedule))]
_Pause = Annotated[PauseSchedule, Depends(JsonBody(PauseSchedule, optional=True))]
_Ask = Annotated[AskSchedule, Depends(JsonBody(AskSchedule, optional=True))]
_Backfill = Annotated[Backfill, Depends(JsonBody(Backfill))]
#: The number of future due times in an answer, and the year 2100 as seconds since 1970.
NEXT = 5
TIME_MAX = 4_102_444_800

ScheduleName = Annotated[str, Path(max_length=NAME_MAX)]


class DueFilters(Paging):
    """Filters of ``GET /v1/schedules/{name}/due``."""

    decision: Decision | None = None


class Schedule(OfRow):
    """One schedule."""

    name: str
    project: str
    kind: TargetKind
    definition: Mapping[str, Any]
    """The definition, in the form of the body of a put. The built-in manager has its command line as ``argv``."""
    revision: int
    paused: bool
    paused_at: datetime | None
    pause_reason: str | None
    ended_at: datetime | None
    """The time since when it has no more due times."""
    in_temporal: bool
    """True if Temporal already has this definition."""
    trouble: str | None
    """A change in Temporal that was found and undone, or a firing without a workflow."""
    checked_until: datetime
    """Each due time before this time has a recorded firing."""
    requested_by: str | None
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: ScheduleRow, **more: Any) -> Self:
        more |= {"paused": row.paused_at is not None, "in_temporal": row.told == row.revision}
        return cls.from_row(row, definition=put_form(row.definition), kind=kind_of(row.definition), **more)


def put_form(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored definition in the form of the body of a put: ``argv`` has the options of a manager."""
    manager = definition.get("manager")
    if not isinstance(manager, dict):
        return definition
    own = {name: value for name, value in manager.items() if name != "options"}
    return {**definition, "manager": own | dict(manager.get("options", {}))}


class ClockChangeAnswer(OfRow):
    """A day with a change of the clock, on which a due time does not exist or comes twice."""

    day: date
    effect: ClockEffect
    local_time: str


class ScheduleDetail(Schedule):
    """One schedule with its future due times."""

    next_due: list[datetime]
    """The next five due times, also while it is paused."""
    clock_changes: list[ClockChangeAnswer]
    """Days of the next year with a change of the clock. A skipped local time does not fire; a double one does twice."""


class AcceptedSchedule(ScheduleDetail):
    """The schedule after a command. ``note`` is for people: what happens next, or why nothing changed."""

    note: str | None


class SchedulePage(BaseModel):
    """A page of schedules, in the order in which they were created."""

    schedules: list[Schedule]
    next_page_token: str | None


class Due(OfRow):
    """One firing: a due time and its result."""

    due_at: datetime
    decision: Decision
    reason: str | None
    decided_at: datetime
    lateness_ms: int
    asked_by: str | None
    kind: TargetKind | None
    """The kind of the started target; null if no target was started yet."""
    target_id: int | None
    """The id of the started run, manager or graph."""
    begun_at: datetime | None
    status: str | None
    """The present status of the started target."""
    request_id: str
    """The request id of its run."""

    @classmethod
    def of(cls, row: DueRow) -> Self:
        kind, number = (None, None) if row.target is None else (row.target.kind, row.target.id)
        return cls.from_row(row, kind=kind, target_id=number, request_id=due_request_id(row.name, row.due_at))


class DuePage(BaseModel):
    """A page of firings of a schedule, the latest first."""

    due: list[Due]
    next_page_token: str | None


class RequestedFirings(BaseModel):
    """The firings that a person asked for, the earliest first."""

    due: list[Due]
    note: str | None


@dataclass(eq=False)
class ScheduleViews:
    """Reads schedules for answers: one schedule, its future due times, and its firings."""

    schedules: ScheduleStore
    blocked: Blocked
    clock: Clock

    def of(self, row: ScheduleRow) -> Schedule:
        """Return the answer about one schedule, as in a list."""
        return Schedule.of(self.blocked.schedule(row))

    async def detail(self, row: ScheduleRow) -> ScheduleDetail:
        """Return the answer about one schedule with its future due times."""
        return ScheduleDetail.of(self.blocked.schedule(row), **await self.ahead(row))

    async def ahead(self, row: ScheduleRow) -> dict[str, Any]:
        """Return the fields of an answer that the row does not have."""
        now = self.clock()
        spec = ScheduleSpec.read(row.definition)
        due = [] if row.deleted_at is not None else await run_in_threadpool(_next, spec, now)
        return {"next_due": due, "clock_changes": await run_in_threadpool(spec.clock_changes, now)}

    def due(self, row: ScheduleRow, filters: DueFilters) -> tuple[list[DueRow], str | None]:
        """Return a page of firings, the latest first, and the token of the next page. Blocks."""
        before = decode("due", filters.page_token)
        at = None if before is None else datetime.fromtimestamp(min(before, TIME_MAX), UTC)
        rows = self.schedules.list_due(row.schedule_id, at, filters.page_size + 1, filters.decision)
        page, token = cut("due", rows, filters.page_size, lambda one: int(one.due_at.timestamp()))
        return [self.blocked.due(one) for one in page], token


def _next(spec: ScheduleSpec, now: datetime) -> list[datetime]:
    return list(itertools.islice(spec.due_times(now, now + AHEAD), NEXT))


def add_schedule_commands(app: FastAPI, commands: ScheduleCommands, views: ScheduleViews) -> None:
    """Add the routes of commands on schedules."""

    async def answer(done: Commanded[ScheduleRow]) -> AcceptedSchedule:
        return AcceptedSchedule.of(done.row, note=done.note, **await views.ahead(done.row))

    @app.put("/v1/schedules/{name}")
    async def put_schedule(name: ScheduleName, body: _Put) -> AcceptedSchedule:
        """Create a schedule, or replace its definition. A repeat with the same definition changes nothing.

        The answer lists the days of the coming year on which a due time is skipped or comes twice.
        """
        return await answer(await commands.put(name, signed(body)))

    @app.delete("/v1/schedules/{name}")
    async def delete_schedule(name: ScheduleName) -> AcceptedSchedule:
        """Delete a schedule: it has no more firings. Its past firings stay recorded. Started runs, managers and graphs
        continue.
        """
        return await answer(await commands.delete(name))

    @app.post("/v1/schedules/{name}/pause")
    async def pause_schedule(name: ScheduleName, body: _Pause) -> AcceptedSchedule:
        """Pause a schedule: firings start nothing until it is resumed, but each is still recorded."""
        return await answer(await commands.pause(name, signed(body)))

    @app.post("/v1/schedules/{name}/resume")
    async def resume_schedule(name: ScheduleName) -> AcceptedSchedule:
        """Continue a paused schedule. Only a backfill starts the firings of the pause."""
        return await answer(await commands.resume(name))

    @app.post("/v1/schedules/{name}/trigger", status_code=202)
    async def trigger_schedule(
        name: ScheduleName, body: _Ask, response: Response, idempotency_key: IdempotencyKey = None
    ) -> RequestedFirings:
        """Fire a schedule now, even while it is paused. If an earlier target still executes, the new one waits for its
        verdict.

        A repeat with the same `Idempotency-Key` answers with the same firing, even much later.
        """
        done = await commands.trigger(name, signed(body), key=same_id(body.request_id, idempotency_key))
        done.mark(response)
        return RequestedFirings(due=[Due.of(line) for line in done.row], note=done.note)

    @app.post("/v1/schedules/{name}/backfill", status_code=202)
    async def backfill_schedule(name: ScheduleName, body: _Backfill) -> RequestedFirings:
        """Fire past due times that have not started a target: missed, skipped, paused and failed ones, and due times
        before the schedule was created.

        There may be at most 500. Targets start one after the other, unless they may overlap.
        """
        lines, note = await commands.backfill(name, signed(body))
        return RequestedFirings(due=[Due.of(line) for line in lines], note=note)


def add_schedule_readers(app: FastAPI, commands: ScheduleCommands, views: ScheduleViews) -> None:
    """Add the routes that read schedules."""

    @app.get("/v1/schedules", **documents(SchedulePage))
    def list_schedules(filters: Annotated[OfProject, Query()], request: Request) -> Response:
        """All schedules, in the order in which they were created."""
        after = decode("schedule", filters.page_token) or 0
        with narrowed(filters.project):
            rows = views.schedules.page(after, filters.page_size + 1)
        page, token = cut("schedule", rows, filters.page_size, lambda row: row.schedule_id)
        return conditional(request, SchedulePage(schedules=[views.of(row) for row in page], next_page_token=token))

    @app.get("/v1/schedules/{name}", **documents(ScheduleDetail))
    async def get_schedule(name: ScheduleName, request: Request) -> Response:
        """One schedule: its definition, its next due times, and the days with a change of the clock."""
        return conditional(request, await views.detail(await commands.find(name)))

    @app.get("/v1/schedules/{name}/due", **documents(DuePage))
    async def list_due(name: ScheduleName, filters: Annotated[DueFilters, Query()], request: Request) -> Response:
        """The firings of a schedule with their results, the latest first."""
        page, token = await run_in_threadpool(views.due, await commands.find(name), filters)
        return conditional(request, DuePage(due=[Due.of(one) for one in page], next_page_token=token))
