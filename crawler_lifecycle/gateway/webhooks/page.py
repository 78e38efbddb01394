"""The pages of webhooks: a list, one with its deliveries and buttons, and the form that makes or changes one."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import LifecycleError, NotInThisState
from crawler_lifecycle.domain.names import EVENT_TYPES
from crawler_lifecycle.domain.webhooks.definition import FILTERS
from crawler_lifecycle.gateway.access.operations import caller_name, signed
from crawler_lifecycle.gateway.api.paging import cut
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.page.parts import forms as fields
from crawler_lifecycle.gateway.page.parts.forms import ActionForm, Once, Told, form, read, tell
from crawler_lifecycle.gateway.page.parts.rendering import answer, query
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.webhooks.commands import PauseWebhook, PutWebhook, ResumeWebhook, WebhookCommands
from crawler_lifecycle.gateway.webhooks.routes import DeliveryFilters, Webhook, WebhookName
from crawler_lifecycle.ports.webhooks import WebhookRow
from crawler_lifecycle.store.events import EventStore
from crawler_lifecycle.store.webhooks import WebhookStore
from crawler_lifecycle.subjects import WEBHOOK, Subject
from crawler_lifecycle.web.problems import JsonBody, Problem, of_error

_PUT, _PAUSE = JsonBody(PutWebhook), JsonBody(PauseWebhook)
_SECRETS = ("secret", "next_secret")
_KNOWN = ("name", "revision", "url", *_SECRETS, "events", *FILTERS, "paused", "was_paused", "reason")
_PLACES = {name: name for name in ("name", "url", "events", *FILTERS, "reason")} | {"secrets": "secret"}
#: What can be ticked: all of a kind, and each.
EVENTS = [*sorted({f"{one.partition('.')[0]}.*" for one in EVENT_TYPES}), *sorted(EVENT_TYPES)]


def add_webhook_form(app: FastAPI, commands: WebhookCommands) -> None:
    """Add the form and its sending."""

    @app.get("/webhooks/new", operation_id="showPutWebhook", include_in_schema=False)
    async def show_put(request: Request, name: str = "") -> Response:
        """The form of a new webhook, or of one that is to be changed."""
        return shown(request, of_row(await commands.find(name)) if name else {})

    @app.post("/webhooks/new", operation_id="pressPutWebhook", include_in_schema=False)
    async def press_put(request: Request) -> Response:
        """Make a webhook, or give it another definition. Sent again it changes nothing more."""
        given = fields.typed(await form(request), _KNOWN, several=["events"])
        try:
            name = await _kept(commands, given)
        except Problem as problem:
            return shown(request, given, problem)
        except LifecycleError as error:
            return shown(request, given, of_error(error))
        return RedirectResponse(f"/webhooks/{name}", 303)

    def shown(request: Request, given: Mapping[str, str], problem: Problem | None = None) -> Response:
        # What is no reference may be the secret itself, and is not written into a page.
        given = {name: text for name, text in given.items() if name not in _SECRETS or text.startswith("env:")}
        wrong = problem and fields.placed(problem, _PLACES)
        values: dict[str, Any] = {"given": given, "wrong": wrong, "events": EVENTS, "filters": FILTERS}
        values["ticked"] = given.get("events", "").split("\n")
        return answer(request, "webhook_form.html", status=problem.status if problem else 200, **values)


async def _kept(commands: WebhookCommands, given: Mapping[str, str]) -> str:
    """The name of the webhook, which is as the form says. Raises ``Problem`` or an error of the domain."""
    body, name = signed(_PUT.read(json.dumps(body_of(given)).encode())), given.get("name", "").strip()
    pause = signed(_PAUSE.read(json.dumps({"reason": given.get("reason")}).encode()))
    row = await commands.seen(name)
    before = [] if row is None else row.definition.get("events", [])
    if set(body.events) == set(before):  # boxes have no order
        body = body.model_copy(update={"events": list(before)})
    if row is None or row.definition != body.spec().document():
        fields.check_seen(given, None if row is None else row.revision)
        await commands.put(name, body)
    if "paused" in given and "was_paused" not in given:
        await commands.pause(name, pause)
    elif "was_paused" in given and "paused" not in given:
        await commands.resume(name, ResumeWebhook())
    return name


def body_of(given: Mapping[str, str]) -> dict[str, Any]:
    """The form as the API takes it."""
    body: dict[str, Any] = {name: fields.lines(given[name]) for name in ("events", *FILTERS) if name in given}
    body |= {"url": given["url"].strip()} if "url" in given else {}
    return body | {"secrets": [given[name].strip() for name in _SECRETS if name in given]}


def of_row(row: WebhookRow) -> dict[str, str]:
    """The form filled in from a webhook: sent again as it is, it changes nothing. Raises ``Problem`` 409."""
    definition = row.definition
    given = {"name": row.name, "revision": str(row.revision), "url": str(definition["url"])}
    given |= dict(zip(_SECRETS, definition["secrets"], strict=False))
    for name in ("events", *FILTERS):
        values = definition.get(name, [])
        given[name] = "\n".join(values)
        if fields.lines(given[name]) != values or not fields.can_be_typed(values):
            cure = f"change it by PUT /v1/webhooks/{row.name}"
            raise Problem(409, "not_in_this_state", f"{name}: has a value that no line of a form can hold; {cure}")
    if row.paused_at is not None:
        given |= {"paused": "yes", "was_paused": "yes"}
    return {name: text for name, text in given.items() if text}


class WebhookForm(ActionForm):
    """The form of a webhook."""

    subject: ClassVar[Subject] = WEBHOOK
    reason: str | None = Field(default=None, max_length=2000)
    seen: int | None = Field(default=None, ge=0, le=ID_MAX)
    """The newest event when the form was shown."""
    seq: int | None = Field(default=None, ge=1, le=ID_MAX)
    """The event that is left out."""


def add_webhooks(
    app: FastAPI,
    commands: WebhookCommands,
    webhooks: WebhookStore,
    events: EventStore,
    once: Once,
    clock: Callable[[], datetime],
    blocked: Blocked,
) -> None:
    """Add the pages of webhooks."""

    @app.get("/webhooks", operation_id="showWebhooks", include_in_schema=False)
    def show_webhooks(request: Request) -> Response:
        """All webhooks, and how each stands."""
        found: list[WebhookRow] = []
        while page := webhooks.list_webhooks(found[-1].webhook_id if found else 0, 200):
            found += page
        rows = [Webhook.of(blocked.webhook(row)).model_dump() for row in found]
        return answer(request, "webhooks.html", rows=rows, now=clock())

    @app.get("/webhooks/{name}", operation_id="showWebhook", include_in_schema=False)
    async def show_webhook(name: WebhookName, request: Request) -> Response:
        """One webhook, and its deliveries."""
        filters = read(DeliveryFilters, request.query_params.multi_items())
        row, before = await commands.find(name), decode("delivery", filters.page_token)
        asked = functools.partial(
            webhooks.list_webhook_deliveries, row.webhook_id, before, filters.page_size + 1, filters.status
        )
        page, token = cut("delivery", await run_in_threadpool(asked), filters.page_size, lambda one: one.seq)
        more = query({"status": filters.status, "page_token": token}) if token else None
        values: dict[str, Any] = {"webhook": Webhook.of(blocked.webhook(row)), "deliveries": page, "more": more}
        values["seen"] = await run_in_threadpool(events.last_event_seq)
        return answer(request, "webhook.html", now=clock(), **values)

    @app.post("/webhooks/{name}", operation_id="pressWebhook", include_in_schema=False)
    async def press_webhook(name: WebhookName, request: Request) -> Response:
        """Test, pause, resume or delete a webhook."""
        pressed = read(WebhookForm, await form(request))

        async def act() -> Told:
            href = "/webhooks" if pressed.do == "delete" else f"/webhooks/{name}"
            try:
                return Told(name, href, True, await _carried_out(commands, name, pressed))
            except NotInThisState as error:
                return Told(name, f"/webhooks/{name}", False, str(error))

        key = f"{pressed.key}.{pressed.do}.{pressed.seq}"
        return tell(request, pressed.action.title, [await once(key, act)], clock())


async def _carried_out(commands: WebhookCommands, name: str, pressed: WebhookForm) -> str:
    """Carry out what was pressed, and say in a sentence what became of it."""
    match pressed.action.path:
        case "test":
            event, note = await commands.test(name, caller_name(), pressed.seen)
            return " ".join(filter(None, (f"The test is number {event.seq} among its deliveries.", note)))
        case "pause":
            done = await commands.pause(name, signed(PauseWebhook(reason=pressed.reason)))
        case "delete":
            done = await commands.delete(name)
        case _:
            done = await commands.resume(name, ResumeWebhook(**pressed.action.body, skip_seq=pressed.seq))
    return pressed.said(True, done.note)
