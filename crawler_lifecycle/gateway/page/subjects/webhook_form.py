"""The form that makes or changes a webhook, also to rotate its secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.names import EVENT_TYPES
from crawler_lifecycle.domain.webhooks.definition import FILTERS
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.page.parts import fields
from crawler_lifecycle.gateway.page.parts.forms import form
from crawler_lifecycle.gateway.page.parts.rendering import answer
from crawler_lifecycle.gateway.webhooks.commands import WebhookCommands
from crawler_lifecycle.gateway.webhooks.requests import PauseWebhook, PutWebhook, ResumeWebhook
from crawler_lifecycle.ports.webhooks import WebhookRow
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
            name = await _carried_out(commands, given)
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


async def _carried_out(commands: WebhookCommands, given: Mapping[str, str]) -> str:
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
