"""The form of a schedule."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import available_timezones

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.ui.parts import crawler_fields
from crawler_lifecycle.gateway.ui.parts import forms as fields
from crawler_lifecycle.gateway.ui.parts.formats import pretty
from crawler_lifecycle.gateway.ui.parts.forms import form
from crawler_lifecycle.gateway.ui.parts.rendering import answer
from crawler_lifecycle.subjects import SCHEDULE
from crawler_lifecycle.web.problems import JsonBody, Problem, of_error, refused
from crawler_lifecycle.web.turns import in_turn

from ..domain.calendar import read_zone
from ..domain.definition import Overlap, ScheduleSpec, TargetKind, check_schedule_name, kind_of
from ..ports import ScheduleRow
from ..temporal import AHEAD
from .answers import (
    put_form,
)
from .calendar import zone_of
from .commands import (
    PauseSchedule,
    PutSchedule,
)

_PUT = JsonBody(PutSchedule)
_PAUSE = JsonBody(PauseSchedule)
_NUMBERS = ("every_s", "offset_s", "jitter_s", "catch_up_s", "pause_after_failures")
_MOMENTS = ("start_at", "end_at")
_TEXTS = ("cron", "time_zone", "overlap")
_TIMES = (*_NUMBERS, *_TEXTS, *_MOMENTS)
_TARGET = ("crawler", "version", "plan", "argv", "target_name", "tags", "request")
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
#: The number of future due times in the form.
SHOWN = 5
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
            "versions": await crawler_fields.version_choices(
                gateway.crawler_versions.of_crawler, known.get(name)
            ),
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
        own |= {name: given[name].strip() for name in ("crawler", "version") if name in given}
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
        own |= {name: more.get(name) for name in ("crawler", "version")}
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
