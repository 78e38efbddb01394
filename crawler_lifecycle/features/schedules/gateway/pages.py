"""The web pages of schedules: a list, and the tabs of each schedule."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.due_ids import temporal_schedule_id
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.gateway.access.operations import may, signed
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.api.paging import Moment
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.ui.parts import forms as fields
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.formats import number
from crawler_lifecycle.gateway.ui.parts.forms import ActionForm, form, read
from crawler_lifecycle.gateway.ui.parts.incidents import incidents_about
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    RowPage,
    filters_of,
    held,
    held_sorts,
    list_page,
    windowed,
)
from crawler_lifecycle.gateway.ui.parts.rendering import answer
from crawler_lifecycle.gateway.ui.parts.tabs import tabs_of
from crawler_lifecycle.subjects import DUE, SCHEDULE, Subject, schedule_state
from crawler_lifecycle.web.problems import Problem, of_error, refused

from ..domain.decision import Decision
from ..domain.definition import ScheduleSpec
from ..ports import DueRow, ScheduleRow
from .answers import (
    TIME_MAX,
    Firing,
    FiringFilters,
    ScheduleName,
    crawler_gone,
    put_form,
    spec_of,
    upcoming,
)
from .calendar import COUNTED, MARKS, READ, calendar, path_of, zone_of
from .commands import (
    AskSchedule,
    Backfill,
    PauseSchedule,
    ScheduleCommands,
    check_window,
)
from .ui import OVERLAPS

#: The number of future due times on the page.
NEXT = 10
#: The maximum number of past due times that are counted for a backfill.
COUNTED_MAX = 500
#: The facts about a schedule that its page shows before its definition.
_NAMED = (
    "begins",
    "with",
    "due",
    "overlap",
    "start_at",
    "end_at",
    "pause_after_failures",
    "project",
)


CHOOSER = Chooser(
    SCHEDULE,
    "/schedules",
    "Name, target, times, state, reason",
    sorts=held_sorts(SCHEDULE.columns),
    presets={"All": {}, "Last due time missed or failed": {"troubled": True}},
    links=[("pressPutSchedule", "/schedules/new", "New schedule")],
)


DUE_TIMES = Chooser(
    Subject(
        "due time",
        "due_at",
        columns=DUE,
        empty="There have been no due times yet. Each one is listed here, with what it started or "
        "why it started nothing.",
    ),
    "",
    "Decision, target, status, reason",
    facets={"decision": "Decision"},
    values={"decision": list(Decision)},
    sorts=held_sorts(DUE),
    presets={"All": {}, "Missed": {"decision": "missed"}, "Failed": {"decision": "failed"}},
    newest_first=True,
)


class ListFilters(HeldFilters):
    """Filters of the list. ``troubled`` selects schedules whose last due time was missed or ended
    badly.
    """

    troubled: bool = False


class ListedFirings(HeldFilters, FiringFilters):
    """Filters of the list of due times."""


class ScheduleForm(ActionForm):
    """The form of a schedule."""

    subject: ClassVar[Subject] = SCHEDULE
    apart = ("after", "until")
    after: Moment | None = None
    until: Moment | None = None
    counted: int | None = None
    """The number of due times in the backfill, if the page has already shown it."""
    seen: int | None = Field(default=None, ge=0, le=TIME_MAX)
    """The due time of the latest firing when the form was shown, as a Unix timestamp."""


def add_schedules(app: FastAPI, gateway: Gateway) -> None:
    """Add the web pages of schedules."""
    commands = gateway.schedule_commands
    views = gateway.schedule_views
    schedules = views.schedules
    clock = views.clock

    @app.get("/schedules")
    async def show_schedules(request: Request) -> Response:
        """List schedules with their next due time and their last firing."""
        filters = filters_of(request, ListFilters)
        known, _ = await gateway.crawlers.last()

        def shown() -> Response:
            rows = views.listed(lambda row: True, known, troubled=filters.troubled)
            return list_page(request, CHOOSER, filters, held(CHOOSER, rows), now=clock())

        return await run_in_threadpool(shown)

    async def head(name: str) -> tuple[ScheduleRow, dict[str, Any]]:
        """Return the schedule, and the values that all its tabs show."""
        row = await commands.find(name)
        known, _ = await gateway.crawlers.last()
        return row, await run_in_threadpool(values_of, row, known)

    def values_of(row: ScheduleRow, known: Container[str]) -> dict[str, Any]:
        now = clock()
        newest = schedules.list_firings(row.schedule_id, None, READ)
        spec, unreadable = spec_of(row)
        counts: dict[str, str | None] = {
            "Overview": None,
            "Due times": number(len(newest)) + "+" * (len(newest) == READ),
        }
        if may("pressSchedule"):
            counts["Backfill"] = None
        counts["Definition"] = None
        values: dict[str, Any] = {
            "head": "schedule_head.html",
            "schedule": views.of(row),
            "spec": None if row.paused_at else spec,
            "broken": unreadable or crawler_gone(row, known),
            "next": upcoming(row, spec, now, NEXT),
            "newest": newest,
            "incidents": incidents_about(gateway.store, f"schedules/{row.name}"),
            "zone": zone_of(row),
            "now": now,
            "temporal": gateway.temporal_page("schedules", temporal_schedule_id(row.name)),
            "seen": int(newest[0].due_at.timestamp()) if newest else 0,
        }
        document = values["schedule"].model_dump()
        values["state"] = schedule_state(document | {"broken": values["broken"]})
        values["tabs"] = tabs_of(SCHEDULE.path(row.name), counts)
        return values

    @app.get("/schedules/{name}")
    async def show_schedule(name: ScheduleName, request: Request) -> Response:
        """Show one schedule: its next due times, a calendar, and its last failure."""
        row, values = await head(name)
        return await run_in_threadpool(overview, request, row, values)

    def overview(request: Request, row: ScheduleRow, values: dict[str, Any]) -> Response:
        newest: list[DueRow] = values["newest"]
        now: datetime = values["now"]
        facts = SCHEDULE.known(values["schedule"].model_dump())
        values |= {
            "page_of": path_of,
            "days": calendar(schedules, row, values["spec"], newest, now),
            "facts": [fact for fact in facts if fact[0] in _NAMED],
            "failure": next((firing for firing in newest if firing.trouble), None),
            "overlaps": OVERLAPS,
            "today": now.astimezone(values["zone"]).date(),
            "marks": MARKS,
            "counted": COUNTED,
        }
        return answer(request, "schedule.html", **values)

    @app.get("/schedules/{name}/due-times")
    async def show_due_times(name: ScheduleName, request: Request) -> Response:
        """List the recorded due times of a schedule, with the latest first."""
        filters = filters_of(request, ListedFirings)
        row, values = await head(name)

        def found(asked: FiringFilters) -> RowPage:
            page, token = views.due(row, asked)
            return RowPage([Firing.of(due).model_dump() for due in page], token)

        page = functools.partial(list_page, tab="Due times", **values)
        find = windowed(DUE_TIMES, found)
        return await run_in_threadpool(page, request, DUE_TIMES, filters, find)

    @app.get("/schedules/{name}/backfill")
    async def show_backfill(name: ScheduleName, request: Request) -> Response:
        """Show the form that starts due times of the past."""
        return await backfill_page(request, name, {})

    async def backfill_page(
        request: Request,
        name: str,
        given: Mapping[str, str],
        problem: Problem | None = None,
        due: Sequence[datetime] | None = None,
    ) -> Response:
        _, values = await head(name)
        wrong = problem and fields.placed(problem, {field: field for field in _WINDOW})
        status = problem.status if problem else 200
        own: dict[str, Any] = {"given": given, "wrong": wrong, "due": due, "most": COUNTED_MAX}
        return answer(request, "backfill.html", status=status, **own, **values)

    @app.get("/schedules/{name}/definition")
    async def show_schedule_definition(name: ScheduleName, request: Request) -> Response:
        """Show the definition of a schedule, as the API accepts it."""
        row, values = await head(name)
        definition = put_form(row.definition)
        return answer(request, "definition.html", definition=definition, **values)

    @app.post("/schedules/{name}")
    async def press_schedule(name: ScheduleName, request: Request) -> Response:
        """Pause, resume, run now, backfill or delete a schedule."""
        pairs = await form(request)
        if ("do", "backfill") in pairs:
            return await press_backfill(name, request, pairs)
        asked = read(ScheduleForm, pairs)
        act = functools.partial(_carried_out, commands, name, asked)
        return await fields.carry_out(request, gateway.once, asked, name, act)

    async def press_backfill(name: str, request: Request, pairs: fields.Pairs) -> Response:
        """Show how many due times a window has, with the first and the last, and carry out the
        backfill if the form has shown this number.
        """
        row = await commands.find(name)
        given = {field: text for field, text in pairs if field in ("key", "reason", *_WINDOW)}
        zone = zone_of(row)
        try:
            local = [
                (field, fields.utc_time(field, text, zone) if field in _WINDOW else text)
                for field, text in pairs
            ]
            asked = read(ScheduleForm, local)
            due = await run_in_threadpool(_due, row, _window(asked), clock())
            if len(due) == asked.counted:
                act = functools.partial(_carried_out, commands, name, asked)
                return await fields.carry_out(request, gateway.once, asked, name, act)
        except (Problem, LifecycleError) as error:
            return await backfill_page(request, name, given, of_error(error))
        # The page only asks a question, and nothing is done yet.
        present_call().admitted = False
        return await backfill_page(request, name, given, due=due)


#: The fields of a backfill.
_WINDOW = ("after", "until")


def _due(row: ScheduleRow, body: Backfill, now: datetime) -> list[datetime]:
    """Return the due times of a backfill in the time zone of the schedule, at most one more than
    ``COUNTED_MAX``. Raises ``InvalidRequest``.
    """
    until = check_window(body, now)
    spec = ScheduleSpec.read(row.definition)
    found = itertools.islice(spec.due_times(body.after, until), COUNTED_MAX + 1)
    zone = zone_of(row)
    return [at.astimezone(zone) for at in found]


def _window(asked: ScheduleForm) -> Backfill:
    if asked.after is None or asked.until is None:
        field = "after" if asked.after is None else "until"
        raise refused(field, "missing; give both times")
    return Backfill(after=asked.after, until=asked.until)


async def _carried_out(commands: ScheduleCommands, name: str, asked: ScheduleForm) -> str:
    """Carry out the action of the form. Return a sentence about the result."""
    if asked.do in ("trigger", "backfill"):
        if asked.do == "trigger":
            seen = None if asked.seen is None else datetime.fromtimestamp(asked.seen, UTC)
            begun = await commands.trigger(name, signed(AskSchedule()), seen)
            lines = begun.row
            note = begun.note
        else:
            lines, note = await commands.backfill(name, signed(_window(asked)))
        words = ", ".join(
            f"{line.due_at:%Y-%m-%d %H:%M:%S} UTC {line.decision}" for line in lines[:5]
        )
        more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
        return " ".join(
            filter(
                None,
                (f"{len(lines)} due: {words}{more}." if lines else "Nothing was due then.", note),
            )
        )
    if asked.do == "pause":
        done = await commands.pause(name, signed(PauseSchedule(reason=asked.reason)))
    else:
        done = await (commands.resume(name) if asked.do == "resume" else commands.delete(name))
    return asked.sentence(done.fresh or asked.do == "delete", done.note)
