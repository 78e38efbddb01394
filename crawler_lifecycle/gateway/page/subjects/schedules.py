"""Schedules: what is due next, what became of what was due, and what can be pressed about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import FastAPI, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState
from crawler_lifecycle.domain.schedules.definition import ScheduleSpec
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.paging import Moment, cut
from crawler_lifecycle.gateway.api.routes.schedules import DueFilters, Schedule, ScheduleName, put_form
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.page.parts.forms import form, read
from crawler_lifecycle.gateway.page.parts.pressing import Once, Pressed, Told, tell
from crawler_lifecycle.gateway.page.parts.rendering import answer, query
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.schedules.commands import ScheduleCommands
from crawler_lifecycle.gateway.schedules.requests import AskSchedule, Backfill, PauseSchedule
from crawler_lifecycle.ports.store.schedules import ScheduleReader, ScheduleRow
from crawler_lifecycle.temporal.schedules import AHEAD

#: Due times ahead that are shown, and past ones of which a backfill is counted.
NEXT, COUNTED_MAX = 10, 500
#: The year 2100, as seconds since 1970.
TIME_MAX = 4_102_444_800


class Do(StrEnum):
    """What can be pressed about a schedule."""

    PAUSE = "pause"
    RESUME = "resume"
    TRIGGER = "trigger"
    BACKFILL = "backfill"
    DELETE = "delete"


class ScheduleForm(Pressed):
    """The form of a schedule."""

    do: Do
    reason: str | None = Field(default=None, max_length=2000)
    after: Moment | None = None
    until: Moment | None = None
    counted: int | None = None
    """Due times of a backfill, as they were counted before."""
    seen: int | None = Field(default=None, ge=0, le=TIME_MAX)
    """The latest due time that had a line when the form was shown, as seconds since 1970."""


def add_schedules(
    app: FastAPI,
    commands: ScheduleCommands,
    schedules: ScheduleReader,
    once: Once,
    clock: Callable[[], datetime],
    blocked: Blocked,
) -> None:
    """Add the pages of schedules."""

    @app.get("/schedules", operation_id="showSchedules", include_in_schema=False)
    def show_schedules(request: Request, search: Annotated[str, Query(max_length=200)] = "") -> Response:
        """All schedules with their next due time and what became of the last one; those whose name has the text."""
        found: list[ScheduleRow] = []
        while page := schedules.list_schedules(found[-1].schedule_id if found else 0, 200):
            found += page
        now = clock()
        rows = [blocked.schedule(row) for row in found if search.lower() in row.name.lower()]
        shown = [(Schedule.of(row), _next(row, now, 1), schedules.list_due(row.schedule_id, None, 1)) for row in rows]
        return answer(request, "schedules.html", rows=shown, search=search, now=now)

    @app.get("/schedules/{name}", operation_id="showSchedule", include_in_schema=False)
    async def show_schedule(name: ScheduleName, request: Request) -> Response:
        """One schedule: its next due times, its last ones with what they began, and its definition."""
        filters = read(DueFilters, request.query_params.multi_items())
        row = await commands.find(name)
        return await run_in_threadpool(shown, request, row, filters)

    def shown(request: Request, row: ScheduleRow, filters: DueFilters) -> Response:
        now, before = clock(), decode("due", filters.page_token)
        at = None if before is None else datetime.fromtimestamp(min(before, TIME_MAX), UTC)
        rows = schedules.list_due(row.schedule_id, at, filters.page_size + 1, filters.decision)
        page, token = cut("due", rows, filters.page_size, lambda one: int(one.due_at.timestamp()))
        more = query({"decision": filters.decision, "page_token": token}) if token else None
        values: dict[str, Any] = {"schedule": Schedule.of(blocked.schedule(row)), "next": _next(row, now, NEXT)}
        values |= {"due": page, "more": more, "definition": put_form(row.definition)}
        latest = rows if at is None and filters.decision is None else schedules.list_due(row.schedule_id, None, 1)
        values |= {"seen": int(latest[0].due_at.timestamp()) if latest else 0, "now": now}
        return answer(request, "schedule.html", filters=filters, **values)

    @app.post("/schedules/{name}", operation_id="pressSchedule", include_in_schema=False)
    async def press_schedule(name: ScheduleName, request: Request) -> Response:
        """Pause, resume, run now, backfill or delete a schedule."""
        pressed = read(ScheduleForm, await form(request))
        if pressed.do is Do.BACKFILL and (count := await _uncounted(commands, name, pressed)) is not None:
            return answer(request, "backfill.html", name=name, pressed=pressed, count=count, now=clock())

        async def act() -> Told:
            try:
                text = await _carried_out(commands, name, pressed)
            except NotInThisState as error:
                return Told(name, f"/schedules/{name}", False, str(error))
            return Told(name, "/schedules" if pressed.do is Do.DELETE else f"/schedules/{name}", True, text)

        return tell(request, pressed.do.capitalize(), [await once(f"{pressed.key}.{pressed.do}", act)], clock())


def _next(row: ScheduleRow, now: datetime, count: int) -> list[datetime]:
    """The next due times by the schedule's own clock."""
    if row.deleted_at is not None:
        return []
    spec = ScheduleSpec.read(row.definition)
    try:
        zone = ZoneInfo(spec.time_zone)
    except (ZoneInfoNotFoundError, ValueError):
        zone = ZoneInfo("UTC")
    return [one.astimezone(zone) for one in itertools.islice(spec.due_times(now, now + AHEAD), count)]


async def _uncounted(commands: ScheduleCommands, name: str, pressed: ScheduleForm) -> int | None:
    """How many due times a backfill would have; ``None`` when that number was shown and pressed on."""
    body = _window(pressed)
    row = await commands.find(name)

    def count() -> int:
        if body.until is None or body.after >= body.until:
            return 0
        found = ScheduleSpec.read(row.definition).due_times(body.after, body.until)
        return sum(1 for _ in itertools.islice(found, COUNTED_MAX + 1))

    counted = await run_in_threadpool(count)
    return None if counted == pressed.counted else counted


def _window(pressed: ScheduleForm) -> Backfill:
    if pressed.after is None or pressed.until is None:
        raise InvalidRequest("after: missing; give both times, with an offset, such as 2026-11-20T12:00:00Z")
    return Backfill(after=pressed.after, until=pressed.until)


async def _carried_out(commands: ScheduleCommands, name: str, pressed: ScheduleForm) -> str:
    """What became of it, in a sentence."""
    if pressed.do in (Do.TRIGGER, Do.BACKFILL):
        if pressed.do is Do.TRIGGER:
            seen = None if pressed.seen is None else datetime.fromtimestamp(pressed.seen, UTC)
            asked = await commands.trigger(name, signed(AskSchedule()), seen)
            lines, note = asked.row, asked.note
        else:
            lines, note = await commands.backfill(name, signed(_window(pressed)))
        words = ", ".join(f"{one.due_at:%Y-%m-%d %H:%M:%S} UTC {one.decision}" for one in lines[:5])
        more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
        return " ".join(filter(None, (f"{len(lines)} due: {words}{more}." if lines else "Nothing is due there.", note)))
    if pressed.do is Do.PAUSE:
        done = await commands.pause(name, signed(PauseSchedule(reason=pressed.reason)))
        return " ".join(filter(None, ("It is paused." if done.fresh else "It was paused before.", done.note)))
    if pressed.do is Do.RESUME:
        done = await commands.resume(name)
        return " ".join(filter(None, ("It goes on." if done.fresh else "It was not paused.", done.note)))
    done = await commands.delete(name)
    return " ".join(filter(None, ("It is deleted; what it began goes on.", done.note)))
