"""The web pages of webhooks: a list, the tabs of each webhook, and a form."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar, get_args

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.names import EVENT_TYPES
from crawler_lifecycle.gateway.access.operations import caller_name, signed
from crawler_lifecycle.gateway.api.paging import Id
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.ui.parts import forms as fields
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.formats import number
from crawler_lifecycle.gateway.ui.parts.forms import ActionForm, form, read
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
from crawler_lifecycle.subjects import DELIVERIES, WEBHOOK, Subject
from crawler_lifecycle.web.problems import JsonBody, Problem

from ..domain.definition import FILTERS, KINDS
from ..domain.definition import shown as shown_definition
from ..ports import WebhookRow
from .answers import DeliveryFilters, DeliveryStatus, WebhookName
from .commands import (
    PauseWebhook,
    PutWebhook,
    WebhookCommands,
)

_PUT = JsonBody(PutWebhook)
_PAUSE = JsonBody(PauseWebhook)
_SECRETS = ("secret", "next_secret")
_KNOWN = (
    "name",
    "revision",
    "kind",
    "url",
    *_SECRETS,
    "events",
    *FILTERS,
    "paused",
    "was_paused",
    "reason",
)
_PLACES = {name: name for name in _KNOWN} | {"secrets": "secret"}
#: The types of events in the form: for each kind, first a pattern for all of its types, then each
#: type.
EVENTS = [*sorted({f"{event.partition('.')[0]}.*" for event in EVENT_TYPES}), *sorted(EVENT_TYPES)]


def add_form(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes that show and receive the form."""
    commands = gateway.webhook_commands

    @app.get("/webhooks/new", operation_id="showPutWebhook")
    async def show_put(request: Request, name: str = "") -> Response:
        """Show the form for a new webhook, or for changes to an existing one."""
        return await shown(request, of_row(await commands.find(name)) if name else {})

    @app.post("/webhooks/new", operation_id="pressPutWebhook")
    async def press_put(request: Request) -> Response:
        """Create a webhook, or change its definition. A repeat changes nothing."""
        given = fields.typed(await form(request), _KNOWN, several=["events"])

        async def kept() -> str:
            body = _PUT.read(json.dumps(body_of(given)).encode())
            name = given.get("name", "").strip()
            row = await commands.seen(name)
            body = body.over(row)
            # Check boxes have no order.
            if row is not None and set(body.events) == set(row.definition.get("events", [])):
                body = body.model_copy(update={"events": list(row.definition.get("events", []))})
            await fields.keep(commands, given, body, _PAUSE.read(fields.reason(given)))
            return WEBHOOK.path(name)

        return await fields.sent(kept, functools.partial(shown, request, given))

    async def shown(
        request: Request, given: Mapping[str, str], problem: Problem | None = None
    ) -> Response:
        # A value without ``env:`` may be the secret itself, so it is not written into the page.
        given = {
            name: text
            for name, text in given.items()
            if name not in _SECRETS or text.startswith("env:")
        }
        wrong = problem and fields.placed(problem, _PLACES)
        return answer(
            request,
            "webhook_form.html",
            status=problem.status if problem else 200,
            given=given,
            wrong=wrong,
            events=EVENTS,
            filters=FILTERS,
            kinds=KINDS,
            ticked=given.get("events", "").split("\n"),
        )


def body_of(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of the API for the values of the form."""
    body: dict[str, Any] = {
        name: fields.lines(given[name]) for name in ("events", *FILTERS) if name in given
    }
    body |= {name: given[name].strip() for name in ("kind", "url") if name in given}
    return body | {"secrets": [given[name].strip() for name in _SECRETS if name in given]}


def of_row(row: WebhookRow) -> dict[str, str]:
    """Return the form's values for a webhook.

    If they are sent back unchanged, nothing changes. Raises ``Problem`` 409.
    """
    definition = shown_definition(row.definition)
    given = {
        "name": row.name,
        "revision": str(row.revision),
        "url": str(definition["url"]),
        "kind": definition.get("kind", ""),
        **dict(zip(_SECRETS, definition.get("secrets", ()), strict=False)),
    }
    for name in ("events", *FILTERS):
        values = definition.get(name, [])
        given[name] = "\n".join(values)
        if fields.lines(given[name]) != values or not fields.can_be_typed(values):
            fix = f"change it with PUT /v1/webhooks/{row.name}"
            raise Problem(
                409, "not_in_this_state", f"{name}: has a value that a form cannot contain; {fix}"
            )
    if row.paused_at is not None:
        given |= {"paused": "yes", "was_paused": "yes"}
    return {name: text for name, text in given.items() if text}


class WebhookForm(ActionForm):
    """The form of a webhook."""

    subject: ClassVar[Subject] = WEBHOOK
    apart = ("seq",)
    seen: int | None = Field(default=None, ge=0, le=ID_MAX)
    """The number of the newest event when the form was shown."""
    seq: Id | None = None
    """The number of an event to be skipped."""


CHOOSER = Chooser(
    WEBHOOK,
    "/webhooks",
    "Name, kind, address, event, reason",
    sorts=held_sorts(WEBHOOK.columns),
    links=[("pressPutWebhook", "/webhooks/new", "New webhook")],
)


DELIVERIES_OF = Chooser(
    Subject(
        "delivery",
        "seq",
        columns=DELIVERIES,
        empty="No event has been sent yet. Test sends the first one.",
    ),
    "",
    "Event, type, subject, status, reason",
    facets={"status": "Status"},
    values={"status": get_args(DeliveryStatus)},
    sorts=held_sorts(DELIVERIES),
    presets={"All": {}, "Failed": {"status": "failed"}},
    newest_first=True,
)
#: The maximum number of deliveries that are counted for the tab.
COUNTED_MAX = 100


class ListedDeliveries(HeldFilters, DeliveryFilters):
    """Filters of the list of deliveries."""


def add_webhooks(app: FastAPI, gateway: Gateway) -> None:
    """Add the web pages of webhooks."""
    commands = gateway.webhook_commands
    views = gateway.webhook_views
    clock = views.clock

    @app.get("/webhooks")
    def show_webhooks(request: Request) -> Response:
        """List all webhooks with their states."""
        rows = [views.of(row).model_dump() for row in views.webhooks.every()]
        filters = filters_of(request, HeldFilters)
        return list_page(request, CHOOSER, filters, held(CHOOSER, rows), now=clock())

    async def head(name: str) -> tuple[WebhookRow, dict[str, Any]]:
        """Return the webhook, and the values that all its tabs show."""
        row = await commands.find(name)
        return row, await run_in_threadpool(values_of, row)

    def values_of(row: WebhookRow) -> dict[str, Any]:
        sent = views.webhooks.list_webhook_deliveries(row.webhook_id, None, COUNTED_MAX + 1)
        counted = number(min(len(sent), COUNTED_MAX)) + "+" * (len(sent) > COUNTED_MAX)
        counts = {"Overview": None, "Deliveries": counted, "Definition": None}
        values: dict[str, Any] = {
            "head": "webhook_head.html",
            "webhook": views.of(row),
            "now": clock(),
            "seen": gateway.store.events.last_event_seq(),
        }
        values["tabs"] = tabs_of(WEBHOOK.path(row.name), counts)
        return values

    @app.get("/webhooks/{name}")
    async def show_webhook(name: WebhookName, request: Request) -> Response:
        """Show the state of one webhook."""
        _, values = await head(name)
        return answer(request, "webhook.html", **values)

    @app.get("/webhooks/{name}/deliveries")
    async def show_deliveries(name: WebhookName, request: Request) -> Response:
        """List the events that were sent to a webhook, or tried, with the latest first."""
        filters = filters_of(request, ListedDeliveries)
        row, values = await head(name)

        def found(asked: DeliveryFilters) -> RowPage:
            page = views.deliveries(row, asked)
            return RowPage(list(map(asdict, page.deliveries)), page.next_page_token)

        own = {"template": "webhook_deliveries.html", "tab": "Deliveries", **values}
        page = functools.partial(list_page, **own)
        find = windowed(DELIVERIES_OF, found)
        return await run_in_threadpool(page, request, DELIVERIES_OF, filters, find)

    @app.get("/webhooks/{name}/definition")
    async def show_webhook_definition(name: WebhookName, request: Request) -> Response:
        """Show the definition of a webhook, as the API accepts it."""
        _, values = await head(name)
        definition = values["webhook"].definition
        return answer(request, "definition.html", definition=definition, **values)

    @app.post("/webhooks/{name}")
    async def press_webhook(name: WebhookName, request: Request) -> Response:
        """Test, pause, resume or delete a webhook."""
        asked = read(WebhookForm, await form(request))
        act = functools.partial(_carried_out, commands, name, asked)
        return await fields.carry_out(request, gateway.once, asked, name, act)


async def _carried_out(commands: WebhookCommands, name: str, asked: WebhookForm) -> str:
    """Carry out the action of the form. Return a sentence about the result."""
    match asked.action.path:
        case "test":
            event, note = await commands.test(name, caller_name(), asked.seen)
            return " ".join(
                filter(
                    None, (f"The test has the number {event.seq} in the list of deliveries.", note)
                )
            )
        case "pause":
            done = await commands.pause(name, signed(PauseWebhook(reason=asked.reason)))
        case "delete":
            done = await commands.delete(name)
        case _:
            done = await commands.resume(name, **asked.action.body, skip_seq=asked.seq)
    return asked.sentence(True, done.note)
