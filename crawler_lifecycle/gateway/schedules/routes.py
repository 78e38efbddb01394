"""Routes of schedules and their due times, and the bodies of their answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Any, Self

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.schedules.calendar import Oddity
from crawler_lifecycle.domain.schedules.decision import Decision
from crawler_lifecycle.domain.schedules.definition import NAME_MAX, ScheduleSpec, TargetKind, due_request_id, kind_of
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import Paging, cut
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.runs.commands import Commanded
from crawler_lifecycle.gateway.runs.requests import IdempotencyKey, same_id
from crawler_lifecycle.gateway.schedules.commands import (
    AskSchedule,
    Backfill,
    PauseSchedule,
    PutSchedule,
    ScheduleCommands,
)
from crawler_lifecycle.ports.schedules import DueRow, ScheduleRow
from crawler_lifecycle.store.schedules.schedules import ScheduleStore
from crawler_lifecycle.temporal.schedules import AHEAD
from crawler_lifecycle.web.problems import JsonBody

_PUT = JsonBody(PutSchedule)
_PAUSE = JsonBody(PauseSchedule, optional=True)
_ASK = JsonBody(AskSchedule, optional=True)
_BACKFILL = JsonBody(Backfill)
#: Due times ahead that a description names, and the year 2100 as seconds since 1970.
NEXT, TIME_MAX = 5, 4_102_444_800

ScheduleName = Annotated[str, Path(max_length=NAME_MAX)]


class DueFilters(Paging):
    """Filters of ``GET /v1/schedules/{name}/due``."""

    decision: Decision | None = None


class Schedule(BaseModel):
    """One schedule."""

    name: str
    kind: TargetKind
    definition: Mapping[str, Any]
    """As it may be put again; a manager of a crawler (no class) is told by its command line."""
    revision: int
    paused: bool
    paused_at: datetime | None
    pause_reason: str | None
    ended_at: datetime | None
    """Since when it has no further due times."""
    in_temporal: bool
    """True when Temporal has this definition already."""
    trouble: str | None
    """The thing that was found changed in Temporal, and set back; or that no workflow carries a due time."""
    checked_until: datetime
    """Each due time before has its line."""
    requested_by: str | None
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: ScheduleRow, **more: Any) -> Self:
        same = {name: getattr(row, name) for name in cls.model_fields if hasattr(row, name)}
        own: dict[str, Any] = {"paused": row.paused_at is not None, "in_temporal": row.told == row.revision}
        own["definition"] = put_form(row.definition)
        return cls(**same | own | {"kind": kind_of(row.definition), **more})


def put_form(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """A stored definition as it is put: the options of a manager's class are its ``argv``."""
    manager = definition.get("manager")
    if not isinstance(manager, dict):
        return definition
    own = {name: value for name, value in manager.items() if name != "options"}
    return {**definition, "manager": own | dict(manager.get("options", {}))}


class OddDayAnswer(BaseModel):
    """A day on which the clock is set so that a due time does not exist, or comes twice."""

    day: date
    oddity: Oddity
    local_time: str


class ScheduleDetail(Schedule):
    """One schedule with what lies ahead."""

    next_due: list[datetime]
    """The next five, also while it is paused."""
    odd_days: list[OddDayAnswer]
    """Of the coming year: a local time that is skipped is not due, and one that comes twice is due twice."""


class AcceptedSchedule(ScheduleDetail):
    """The schedule after a command; ``note`` says what a person should know about what happens next."""

    note: str | None


class SchedulePage(BaseModel):
    """Schedules, in the order in which they were made."""

    schedules: list[Schedule]
    next_page_token: str | None


class Due(BaseModel):
    """One due time, and what became of it."""

    due_at: datetime
    decision: Decision
    reason: str | None
    decided_at: datetime
    lateness_ms: int
    asked_by: str | None
    kind: TargetKind | None
    """Of what it began; null while that has not begun."""
    target_id: int | None
    """Id of the run, the manager or the graph."""
    begun_at: datetime | None
    status: str | None
    """Of what it began, as it is now."""
    request_id: str
    """Of its run."""

    @classmethod
    def of(cls, row: DueRow) -> Self:
        same = {name: getattr(row, name) for name in cls.model_fields if hasattr(row, name)}
        kind, number = (None, None) if row.target is None else (row.target.kind, row.target.id)
        return cls(**same, kind=kind, target_id=number, request_id=due_request_id(row.name, row.due_at))


class DuePage(BaseModel):
    """Due times of a schedule, the latest first."""

    due: list[Due]
    next_page_token: str | None


class AskedDue(BaseModel):
    """Due times that a person asked for, the earliest first."""

    due: list[Due]
    note: str | None


class ScheduleViews:
    """Schedules as they are answered: one, what lies ahead of it, and its due times."""

    def __init__(self, schedules: ScheduleStore, blocked: Blocked, clock: Callable[[], datetime]) -> None:
        self.schedules, self._blocked, self.clock = schedules, blocked, clock

    def of(self, row: ScheduleRow) -> Schedule:
        """One as a list has it."""
        return Schedule.of(self._blocked.schedule(row))

    async def detail(self, row: ScheduleRow) -> ScheduleDetail:
        """One with what lies ahead."""
        return ScheduleDetail.of(self._blocked.schedule(row), **await self.ahead(row))

    async def ahead(self, row: ScheduleRow) -> dict[str, Any]:
        """The fields of an answer that the row does not tell."""
        now, spec = self.clock(), ScheduleSpec.read(row.definition)
        due = [] if row.deleted_at is not None else await run_in_threadpool(_next, spec, now)
        odd = await run_in_threadpool(spec.odd_days, now)
        days = [OddDayAnswer(day=one.day, oddity=one.oddity, local_time=one.local_time) for one in odd]
        return {"next_due": due, "odd_days": days}

    def due(self, row: ScheduleRow, filters: DueFilters) -> tuple[list[DueRow], str | None]:
        """A page of due times, the latest first, and the token of the next one. Blocks."""
        before = decode("due", filters.page_token)
        at = None if before is None else datetime.fromtimestamp(min(before, TIME_MAX), UTC)
        rows = self.schedules.list_due(row.schedule_id, at, filters.page_size + 1, filters.decision)
        page, token = cut("due", rows, filters.page_size, lambda one: int(one.due_at.timestamp()))
        return [self._blocked.due(one) for one in page], token


def _next(spec: ScheduleSpec, now: datetime) -> list[datetime]:
    return list(itertools.islice(spec.due_times(now, now + AHEAD), NEXT))


def add_schedules(app: FastAPI, commands: ScheduleCommands, views: ScheduleViews) -> None:
    """Add everything about schedules."""
    _add_commands(app, commands, views)
    _add_readers(app, commands, views)


def _add_commands(app: FastAPI, commands: ScheduleCommands, views: ScheduleViews) -> None:
    async def answer(done: Commanded[ScheduleRow]) -> AcceptedSchedule:
        return AcceptedSchedule.of(done.row, note=done.note, **await views.ahead(done.row))

    @app.put("/v1/schedules/{name}", operation_id="putSchedule")
    async def put_schedule(name: ScheduleName, body: Annotated[PutSchedule, Depends(_PUT)]) -> AcceptedSchedule:
        """Make a schedule, or give it this definition instead of its present one; again the same changes nothing.

        The answer names the days of the coming year on which a due time is skipped or comes twice.
        """
        return await answer(await commands.put(name, signed(body)))

    @app.delete("/v1/schedules/{name}", operation_id="deleteSchedule")
    async def delete_schedule(name: ScheduleName) -> AcceptedSchedule:
        """Delete a schedule: nothing is due any more. Its due times stay on record, and what they began goes on."""
        return await answer(await commands.delete(name))

    @app.post("/v1/schedules/{name}/pause", operation_id="pauseSchedule")
    async def pause_schedule(name: ScheduleName, body: Annotated[PauseSchedule, Depends(_PAUSE)]) -> AcceptedSchedule:
        """Have due times begin nothing until it is resumed; each still has its line."""
        return await answer(await commands.pause(name, signed(body)))

    @app.post("/v1/schedules/{name}/resume", operation_id="resumeSchedule")
    async def resume_schedule(name: ScheduleName) -> AcceptedSchedule:
        """Let a paused schedule go on. What was due meanwhile begins by a backfill alone."""
        return await answer(await commands.resume(name))

    @app.post("/v1/schedules/{name}/trigger", operation_id="triggerSchedule", status_code=202)
    async def trigger_schedule(
        name: ScheduleName,
        body: Annotated[AskSchedule, Depends(_ASK)],
        response: Response,
        idempotency_key: IdempotencyKey = None,
    ) -> AskedDue:
        """Have it be due now, also while it is paused. What overlaps waits for the verdict of what runs.

        The same `Idempotency-Key` again answers the same due time, whenever it comes.
        """
        done = await commands.trigger(name, signed(body), key=same_id(body.request_id, idempotency_key))
        done.mark(response)
        return AskedDue(due=[Due.of(line) for line in done.row], note=done.note)

    @app.post("/v1/schedules/{name}/backfill", operation_id="backfillSchedule", status_code=202)
    async def backfill_schedule(name: ScheduleName, body: Annotated[Backfill, Depends(_BACKFILL)]) -> AskedDue:
        """Have past due times begin that began nothing: missed, skipped, paused or failed ones, and those before the
        schedule was made. At most 500, one after the other unless they may overlap."""
        lines, note = await commands.backfill(name, signed(body))
        return AskedDue(due=[Due.of(line) for line in lines], note=note)


def _add_readers(app: FastAPI, commands: ScheduleCommands, views: ScheduleViews) -> None:
    @app.get("/v1/schedules", operation_id="listSchedules", **documents(SchedulePage))
    def list_schedules(filters: Annotated[Paging, Query()], request: Request) -> Response:
        """Schedules, in the order in which they were made."""
        after = decode("schedule", filters.page_token) or 0
        rows = views.schedules.list_schedules(after, filters.page_size + 1)
        page, token = cut("schedule", rows, filters.page_size, lambda row: row.schedule_id)
        return conditional(request, SchedulePage(schedules=[views.of(row) for row in page], next_page_token=token))

    @app.get("/v1/schedules/{name}", operation_id="getSchedule", **documents(ScheduleDetail))
    async def get_schedule(name: ScheduleName, request: Request) -> Response:
        """One schedule: its definition, its next due times, and days on which the clock makes a difference."""
        return conditional(request, await views.detail(await commands.find(name)))

    @app.get("/v1/schedules/{name}/due", operation_id="listDue", **documents(DuePage))
    async def list_due(name: ScheduleName, filters: Annotated[DueFilters, Query()], request: Request) -> Response:
        """Due times of a schedule, the latest first, each with what became of it."""
        page, token = await run_in_threadpool(views.due, await commands.find(name), filters)
        return conditional(request, DuePage(due=[Due.of(one) for one in page], next_page_token=token))
