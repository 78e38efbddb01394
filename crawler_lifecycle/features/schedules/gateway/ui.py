"""The web pages of schedules: a list, a page for each schedule with its firings and buttons, and a
form.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar
from zoneinfo import available_timezones

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.due_ids import temporal_schedule_id
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.api.paging import Moment
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.ui.parts import crawler_fields
from crawler_lifecycle.gateway.ui.parts import forms as fields
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.formats import pretty
from crawler_lifecycle.gateway.ui.parts.forms import ActionForm, form, query_of, read
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    filters_of,
    held,
    held_sorts,
    list_page,
)
from crawler_lifecycle.gateway.ui.parts.rendering import answer, next_page
from crawler_lifecycle.subjects import SCHEDULE, Subject
from crawler_lifecycle.web.problems import JsonBody, Problem, of_error, refused
from crawler_lifecycle.web.turns import in_turn

from ..domain.calendar import read_zone
from ..domain.definition import Overlap, ScheduleSpec, TargetKind, check_schedule_name, kind_of
from ..ports import ScheduleRow
from ..temporal import AHEAD
from .answers import (
    TIME_MAX,
    FiringFilters,
    ScheduleName,
    put_form,
    spec_of,
    upcoming,
)
from .calendar import COUNTED, MARKS, READ, calendar, path_of, zone_of
from .commands import (
    AskSchedule,
    Backfill,
    PauseSchedule,
    PutSchedule,
    ScheduleCommands,
    check_window,
)

_PUT = JsonBody(PutSchedule)
_PAUSE = JsonBody(PauseSchedule)
_NUMBERS = ("every_s", "offset_s", "jitter_s", "catch_up_s", "pause_after_failures")
_MOMENTS = ("start_at", "end_at")
_TEXTS = ("cron", "time_zone", "overlap")
_TIMES = (*_NUMBERS, *_TEXTS, *_MOMENTS)
_TARGET = ("crawler", "plan", "argv", "target_name", "tags", "request")
_KNOWN = (
    "name",
    "revision",
    "kind",
    *_TARGET,
    *_TIMES,
    "excluded",
    "show",
    "paused",
    "was_paused",
    "reason",
)
_REQUEST = 'give one object, such as {"settings": {"DOWNLOAD_DELAY": "1"}}'
_NEW = {"kind": "run", "time_zone": "UTC"}
#: Maps each field that an error of the API names to the field of the form. ``request`` has the
#: other fields of a target.
_PLACES = {name: name for name in _KNOWN} | {
    "args": crawler_fields.PREFIX,
    "manager.crawler": "request",
    "manager.name": "target_name",
    "graph.name": "target_name",
    "run": "kind",
}
OVERLAPS = {
    Overlap.SKIP: "skip the new target",
    Overlap.QUEUE: "start when the previous target has ended",
    Overlap.STOP_PREVIOUS: "stop the previous target, then start",
    Overlap.ALLOW: "start at the same time",
}


def add_form(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes that show and receive the form."""
    commands = gateway.schedule_commands

    @app.get("/schedules/new", operation_id="showPutSchedule")
    async def show_put(request: Request, name: str = "") -> Response:
        """Show the form for a new schedule, or for changes to an existing one."""
        return await shown(request, of_row(await commands.find(name)) if name else _NEW)

    @app.post("/schedules/new", operation_id="pressPutSchedule")
    async def press_put(request: Request) -> Response:
        """Create a schedule, or change its definition. A repeat changes nothing."""
        pairs = await form(request)
        args = [name for name, _ in pairs if name.startswith(crawler_fields.PREFIX)]
        given = fields.typed(pairs, [*_KNOWN, *args])
        if "show" in given:
            present_call().admitted = False  # nothing is changed
            return await shown(request, given)

        async def kept() -> str:
            size = len(await request.body())
            raw = await in_turn(size, lambda: json.dumps(body_of(given)).encode())
            body = await in_turn(size, _PUT.read, raw)
            await fields.keep(commands, given, body, _PAUSE.read(fields.reason(given)))
            return SCHEDULE.path(given["name"].strip())

        async def again(problem: Problem) -> Response:
            known, _ = await gateway.crawlers.last()
            checks: list[Callable[[], object]] = [
                functools.partial(check_schedule_name, given.get("name", "").strip()),
                functools.partial(_spec, given),
                functools.partial(_target, given.get("kind", ""), given),
            ]
            if given.get("kind") == TargetKind.RUN:
                checks += crawler_fields.checks(known, gateway.crawlers.problem, given)
            problem.errors += await in_turn(math.inf, lambda: fields.mistakes(*checks))
            return await shown(request, given, problem)

        return await fields.sent(kept, again)

    async def shown(
        request: Request, given: Mapping[str, str], problem: Problem | None = None
    ) -> Response:
        known, away = await gateway.crawlers.last()
        wrong = crawler_fields.hint(known, away, given)
        if problem is not None:
            wrong = fields.placed(problem, _PLACES, tuple(TargetKind), "request")
        name = given.get("crawler", "").strip()
        now = gateway.schedule_views.clock()
        values: dict[str, Any] = {
            "given": given,
            "wrong": wrong,
            "crawlers": sorted(known),
            "crawler": known.get(name),
            "next": await in_turn(math.inf, _upcoming, given, now),
            "overlaps": OVERLAPS,
            "zones": await run_in_threadpool(_zones),
        }
        status = problem.status if problem else 200
        return answer(request, "schedule_form.html", status=status, **values)


@functools.cache
def _zones() -> list[str]:
    """Return all time zones of this machine. The first call reads a file for each zone."""
    return sorted(available_timezones())


def _spec(given: Mapping[str, str]) -> ScheduleSpec:
    """Return a definition with the times of the form and any target.

    Raises ``Problem`` 422 and ``InvalidRequest``.
    """
    body = {**_times(given), "run": {"crawler": "any"}}
    return _PUT.read(json.dumps(body).encode()).spec()


def _upcoming(given: Mapping[str, str], now: datetime) -> tuple[list[datetime], str]:
    """Return the next due times of a form in its time zone, or a sentence about why there are
    none."""
    if "cron" not in given and "every_s" not in given:
        return [], "Enter a cron expression or an interval first."
    try:
        spec = _spec(given)
    except (Problem, LifecycleError) as error:
        return [], of_error(error).detail
    zone = read_zone(spec.time_zone)
    due = itertools.islice(spec.due_times(now, now + AHEAD), SHOWN)
    return [at.astimezone(zone) for at in due], "Nothing is due in the coming years."


def _times(given: Mapping[str, str]) -> dict[str, Any]:
    body: dict[str, Any] = {name: given[name].strip() for name in _TEXTS if name in given}
    body |= {name: fields.whole(given[name]) for name in _NUMBERS if name in given}
    zone = read_zone(body.get("time_zone", "UTC"))
    body |= {name: fields.utc_time(name, given[name], zone) for name in _MOMENTS if name in given}
    if "excluded" in given:
        body["excluded"] = fields.lines(given["excluded"])
    return body


def body_of(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of the API for the values of the form.

    Raises ``Problem`` 422 for a value that cannot be read, and ``InvalidRequest``.
    """
    body = _times(given)
    kind = given.get("kind", "")
    if kind in list(TargetKind):
        body[kind] = _target(kind, given)
    return body


def _target(kind: str, given: Mapping[str, str]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if kind == TargetKind.RUN:
        own |= {"crawler": given["crawler"].strip()} if "crawler" in given else {}
    else:
        own |= {"name": given["target_name"].strip()} if "target_name" in given else {}
    if kind == TargetKind.MANAGER:
        own |= {"plan": given["plan"].strip()} if "plan" in given else {}
        own |= {"argv": fields.words("argv", given["argv"])} if "argv" in given else {}
    own |= {"tags": fields.parts(given["tags"])} if "tags" in given else {}
    more = (
        fields.read_json("request", given["request"], dict, _REQUEST) if "request" in given else {}
    )
    for name in own:
        if name in more:
            raise refused("request", f"{name}: the form has a field for it above; omit it here")
    args = crawler_fields.args_of(given) if kind == TargetKind.RUN else {}
    if args and isinstance(more.get("args", {}), dict):
        own["args"] = more.get("args", {}) | args
    return {**more, **own}


def of_row(row: ScheduleRow) -> dict[str, str]:
    """Return the values of the form for a schedule. If they are sent back unchanged, nothing
    changes.
    """
    definition = put_form(row.definition)
    kind = kind_of(definition)
    more = dict(definition[kind])
    given: dict[str, str | None] = {"name": row.name, "revision": str(row.revision), "kind": kind}
    given |= {
        name: str(definition[name])
        for name in (*_NUMBERS, *_TEXTS)
        if definition.get(name) is not None
    }
    zone = zone_of(row)
    given |= {
        name: fields.local_time(definition[name], zone) for name in _MOMENTS if name in definition
    }
    if not fields.can_be_typed([given.get("cron") or ""]):
        given["cron"] = " ".join(str(definition["cron"]).split())
    given["excluded"] = "\n".join(definition.get("excluded", ()))
    own = {"tags": fields.as_parts(more.get("tags"))}
    if kind is TargetKind.RUN:
        own["crawler"] = more.get("crawler")
        typed = crawler_fields.fields_of(more.get("args"))
        given |= typed
        if typed:
            shown = crawler_fields.args_of(typed)
            rest = {name: text for name, text in more.pop("args").items() if name not in shown}
            more |= {"args": rest} if rest else {}
    else:
        own["target_name"] = more.get("name")
    if kind is TargetKind.MANAGER:
        own |= {"plan": more.get("plan"), "argv": fields.as_words(more.get("argv"))}
    for name, text in own.items():
        if text:  # the JSON keeps the parts that no field can contain
            more.pop("name" if name == "target_name" else name)
    given |= own | {"request": pretty(more) if more else None}
    if row.paused_at is not None:
        given |= {"paused": "yes", "was_paused": "yes"}
    return {name: text for name, text in given.items() if text}


#: The number of future due times on the page.
NEXT = 10
#: The number of future due times in the form.
SHOWN = 5
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


class ListFilters(HeldFilters):
    """Filters of the list. ``troubled`` selects schedules whose last due time was missed or ended
    badly.
    """

    troubled: bool = False


class ScheduleForm(ActionForm):
    """The form of a schedule."""

    subject: ClassVar[Subject] = SCHEDULE
    after: Moment | None = None
    until: Moment | None = None
    counted: int | None = None
    """The number of due times of a backfill that the page has shown before, if any."""
    seen: int | None = Field(default=None, ge=0, le=TIME_MAX)
    """The due time of the latest firing when the form was shown, in seconds since 1970."""


def add_schedules(app: FastAPI, gateway: Gateway) -> None:
    """Add the web pages of schedules."""
    commands = gateway.schedule_commands
    views = gateway.schedule_views
    schedules = views.schedules
    clock = views.clock

    @app.get("/schedules")
    def show_schedules(request: Request) -> Response:
        """List schedules with their next due time and their last firing."""
        filters = filters_of(request, ListFilters)
        rows = views.listed(lambda row: True, troubled=filters.troubled)
        return list_page(request, CHOOSER, filters, held(CHOOSER, rows), now=clock())

    @app.get("/schedules/{name}")
    async def show_schedule(name: ScheduleName, request: Request) -> Response:
        """Show one schedule: its next due times, its last firings with their targets, and its
        definition.
        """
        filters = query_of(request, FiringFilters)
        return await run_in_threadpool(shown, request, await commands.find(name), filters)

    def shown(request: Request, row: ScheduleRow, filters: FiringFilters) -> Response:
        now = clock()
        (due, token) = views.due(row, filters)
        newest = schedules.list_firings(row.schedule_id, None, READ)
        spec, unreadable = spec_of(row)
        schedule = views.of(row)
        zone = zone_of(row)
        comes = None if row.paused_at else spec
        values: dict[str, Any] = {
            "schedule": schedule,
            "next": upcoming(row, comes, now, NEXT),
            "due": due,
            "now": now,
            "more": next_page(filters, token),
            "definition": put_form(row.definition),
            "page_of": path_of,
            "unreadable": unreadable,
            "days": calendar(schedules, row, comes, newest, now),
            "read": len(newest),
            "facts": [one for one in SCHEDULE.known(schedule.model_dump()) if one[0] in _NAMED],
            "failure": next((one for one in newest if one.trouble), None),
            "seen": int(newest[0].due_at.timestamp()) if newest else 0,
            "overlaps": OVERLAPS,
            "zone": zone,
            "today": now.astimezone(zone).date(),
            "marks": MARKS,
            "counted": COUNTED,
            "temporal": gateway.temporal_page("schedules", temporal_schedule_id(row.name)),
        }
        return answer(request, "schedule.html", filters=filters, **values)

    @app.post("/schedules/{name}")
    async def press_schedule(name: ScheduleName, request: Request) -> Response:
        """Pause, resume, run now, backfill or delete a schedule."""
        pairs = await form(request)
        if ("do", "backfill") in pairs:
            return await press_backfill(name, request, pairs)
        asked = read(ScheduleForm, pairs)
        act = functools.partial(_carried_out, commands, name, asked)
        return await fields.carry_out(request, gateway.once, asked, name, act, clock())

    async def press_backfill(name: str, request: Request, pairs: fields.Pairs) -> Response:
        """Show how many due times a window has, and carry out the backfill if the form has shown
        this number.
        """
        row = await commands.find(name)
        given = {field: text for field, text in pairs if field in ("key", "reason", *_WINDOW)}
        zone = zone_of(row)
        values: dict[str, Any] = {"name": name, "given": given, "zone": zone, "now": clock()}
        try:
            local = [
                (field, fields.utc_time(field, text, zone) if field in _WINDOW else text)
                for field, text in pairs
            ]
            asked = read(ScheduleForm, local)
            count = await run_in_threadpool(_count, row, _window(asked), clock())
            if count == asked.counted:
                act = functools.partial(_carried_out, commands, name, asked)
                return await fields.carry_out(request, gateway.once, asked, name, act, clock())
        except (Problem, LifecycleError) as error:
            problem = of_error(error)
            wrong = fields.placed(problem, {field: field for field in _WINDOW})
            return answer(
                request, "backfill.html", status=problem.status, wrong=wrong, count=None, **values
            )
        # The page only asks a question, and nothing is done yet.
        present_call().admitted = False
        return answer(request, "backfill.html", wrong=None, count=count, **values)


#: The fields of a backfill.
_WINDOW = ("after", "until")


def _count(row: ScheduleRow, body: Backfill, now: datetime) -> int:
    """Return the number of due times of a backfill. Raises ``InvalidRequest``."""
    until = check_window(body, now)
    found = ScheduleSpec.read(row.definition).due_times(body.after, until)
    return sum(1 for _ in itertools.islice(found, COUNTED_MAX + 1))


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
