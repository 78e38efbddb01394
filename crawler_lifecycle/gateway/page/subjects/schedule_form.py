"""The form that makes or changes a schedule: a field for each thing that a person changes."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any
from zoneinfo import available_timezones

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.schedules.definition import Overlap, TargetKind, kind_of
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.routes.schedules import put_form
from crawler_lifecycle.gateway.page.parts import fields
from crawler_lifecycle.gateway.page.parts.forms import form
from crawler_lifecycle.gateway.page.parts.rendering import answer, pretty
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.schedules.commands import ScheduleCommands
from crawler_lifecycle.gateway.schedules.requests import PauseSchedule, PutSchedule
from crawler_lifecycle.ports.schedules import ScheduleRow
from crawler_lifecycle.web.problems import JsonBody, Problem, check_json, of_error

_PUT, _PAUSE = JsonBody(PutSchedule), JsonBody(PauseSchedule)
_NUMBERS = ("every_s", "offset_s", "jitter_s", "catch_up_s", "pause_after_failures")
_TEXTS = ("cron", "time_zone", "start_at", "end_at", "overlap")
_TARGET = ("crawler", "args", "plan", "argv", "target_name", "tags", "request")
_KNOWN = ("name", "revision", "kind", *_TARGET, *_NUMBERS, *_TEXTS, "excluded", "paused", "was_paused", "reason")
_NEW = {"kind": "run", "time_zone": "UTC"}
#: What an error of the API names -> the field of the form. The rest of a target stands in ``request``.
_PLACES = {
    **{name: name for name in ("name", "excluded", "args", "crawler", "plan", "argv", "tags", *_NUMBERS, *_TEXTS)},
    **{f"run.{name}": name for name in ("crawler", "args", "tags")},
    **{f"manager.{name}": name for name in ("plan", "argv", "tags")},
    **{"manager.name": "target_name", "graph.name": "target_name", "graph.tags": "tags"},
    **{"run": "kind", "reason": "reason", "request": "request"},
}
OVERLAPS = {
    Overlap.SKIP: "leave it out",
    Overlap.QUEUE: "begin when the other has its verdict",
    Overlap.STOP_PREVIOUS: "stop the other, then begin",
    Overlap.ALLOW: "begin beside it",
}


def add_schedule_form(app: FastAPI, commands: ScheduleCommands, crawlers: Crawlers) -> None:
    """Add the form and its sending."""

    @app.get("/schedules/new", operation_id="showPutSchedule", include_in_schema=False)
    async def show_put(request: Request, name: str = "") -> Response:
        """The form of a new schedule, or of one that is to be changed."""
        return await shown(request, of_row(await commands.find(name)) if name else _NEW)

    @app.post("/schedules/new", operation_id="pressPutSchedule", include_in_schema=False)
    async def press_put(request: Request) -> Response:
        """Make a schedule, or give it another definition. Sent again it changes nothing more."""
        given = fields.typed(await form(request), _KNOWN)
        try:
            name = await _carried_out(commands, given)
        except Problem as problem:
            return await shown(request, given, problem)
        except LifecycleError as error:
            return await shown(request, given, of_error(error))
        return RedirectResponse(f"/schedules/{name}", 303)

    async def shown(request: Request, given: Mapping[str, str], problem: Problem | None = None) -> Response:
        try:
            known = sorted(await crawlers.all())
        except LifecycleError:
            known = []  # a name may be typed all the same
        wrong = problem and fields.placed(problem, _PLACES, tuple(TargetKind), "request")
        values: dict[str, Any] = {"given": given, "wrong": wrong, "crawlers": known, "overlaps": OVERLAPS}
        values["zones"] = await run_in_threadpool(_zones)
        return answer(request, "schedule_form.html", status=problem.status if problem else 200, **values)


@functools.cache
def _zones() -> list[str]:
    """All zones that this machine knows. It looks into each one's file."""
    return sorted(available_timezones())


async def _carried_out(commands: ScheduleCommands, given: Mapping[str, str]) -> str:
    """The name of the schedule, which is as the form says. Raises ``Problem`` or an error of the domain."""
    raw = json.dumps(body_of(given)).encode()
    check_json(raw)
    body, name = signed(_PUT.read(raw)), given.get("name", "").strip()
    pause = signed(_PAUSE.read(json.dumps({"reason": given.get("reason")}).encode()))
    row = await commands.seen(name)
    if row is None or row.definition != body.spec().document():
        fields.check_seen(given, None if row is None else row.revision)
        await commands.put(name, body)
    if "paused" in given and "was_paused" not in given:
        await commands.pause(name, pause)
    elif "was_paused" in given and "paused" not in given:
        await commands.resume(name)
    return name


def body_of(given: Mapping[str, str]) -> dict[str, Any]:
    """The form as the API takes it. Raises ``Problem`` 422 for what cannot be read."""
    body: dict[str, Any] = {name: given[name].strip() for name in _TEXTS if name in given}
    body |= {name: fields.whole(given[name]) for name in _NUMBERS if name in given}
    if "excluded" in given:
        body["excluded"] = fields.lines(given["excluded"])
    kind = given.get("kind", "")
    if kind in list(TargetKind):
        body[kind] = _target(kind, given)
    return body


def _target(kind: str, given: Mapping[str, str]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if kind == TargetKind.RUN:
        own |= {"crawler": given["crawler"].strip()} if "crawler" in given else {}
        own |= {"args": fields.assignments("args", given["args"])} if "args" in given else {}
    else:
        own |= {"name": given["target_name"].strip()} if "target_name" in given else {}
    if kind == TargetKind.MANAGER:
        own |= {"plan": given["plan"].strip()} if "plan" in given else {}
        own |= {"argv": fields.words("argv", given["argv"])} if "argv" in given else {}
    own |= {"tags": fields.parts(given["tags"])} if "tags" in given else {}
    more = fields.one_object("request", given["request"]) if "request" in given else {}
    for name in own:
        if name in more:
            raise fields.refused("request", f"{name}: it has a field of its own above; leave it out here")
    return {**more, **own}


def of_row(row: ScheduleRow) -> dict[str, str]:
    """The form filled in from a schedule: sent again as it is, it changes nothing."""
    definition = put_form(row.definition)
    kind = kind_of(definition)
    more = dict(definition[kind])
    given: dict[str, str | None] = {"name": row.name, "revision": str(row.revision), "kind": kind}
    given |= {name: str(definition[name]) for name in (*_NUMBERS, *_TEXTS) if definition.get(name) is not None}
    if not fields.can_be_typed([given.get("cron") or ""]):
        given["cron"] = " ".join(str(definition["cron"]).split())
    given["excluded"] = "\n".join(definition.get("excluded", ()))
    own = {"tags": fields.as_parts(more.get("tags"))}
    if kind is TargetKind.RUN:
        own |= {"crawler": more.get("crawler"), "args": fields.as_assignments(more.get("args"))}
    else:
        own["target_name"] = more.get("name")
    if kind is TargetKind.MANAGER:
        own |= {"plan": more.get("plan"), "argv": fields.as_words(more.get("argv"))}
    for name, text in own.items():
        if text:  # what no field can say stands in the JSON
            more.pop("name" if name == "target_name" else name)
    given |= own | {"request": pretty(more) if more else None}
    if row.paused_at is not None:
        given |= {"paused": "yes", "was_paused": "yes"}
    return {name: text for name, text in given.items() if text}
