"""Webhooks: how each stands, what was told to it, and what can be pressed about it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Any

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.gateway.access.operations import caller_name, signed
from crawler_lifecycle.gateway.api.paging import cut
from crawler_lifecycle.gateway.api.routes.webhooks import DeliveryFilters, Webhook, WebhookName
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.page.parts.forms import form, read
from crawler_lifecycle.gateway.page.parts.pressing import Once, Pressed, Told, tell
from crawler_lifecycle.gateway.page.parts.rendering import answer, query
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.webhooks.commands import WebhookCommands
from crawler_lifecycle.gateway.webhooks.requests import PauseWebhook, ResumeWebhook
from crawler_lifecycle.ports import EventReader, WebhookReader
from crawler_lifecycle.ports.store.webhooks import WebhookRow


class Do(StrEnum):
    """What can be pressed about a webhook."""

    TEST = "test"
    PAUSE = "pause"
    RESUME = "resume"
    SKIP = "skip"
    SKIP_ONE = "skip_one"
    DELETE = "delete"


class WebhookForm(Pressed):
    """The form of a webhook."""

    do: Do
    reason: str | None = Field(default=None, max_length=2000)
    seen: int | None = Field(default=None, ge=0, le=ID_MAX)
    """The newest event when the form was shown."""
    seq: int | None = Field(default=None, ge=1, le=ID_MAX)
    """The event that is left out."""


def add_webhooks(
    app: FastAPI,
    commands: WebhookCommands,
    webhooks: WebhookReader,
    events: EventReader,
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
        rows = [Webhook.of(blocked.webhook(row)) for row in found]
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
            href = "/webhooks" if pressed.do is Do.DELETE else f"/webhooks/{name}"
            try:
                return Told(name, href, True, await _carried_out(commands, name, pressed))
            except NotInThisState as error:
                return Told(name, f"/webhooks/{name}", False, str(error))

        key = f"{pressed.key}.{pressed.do}.{pressed.seq}"
        return tell(request, pressed.do.replace("_", " ").capitalize(), [await once(key, act)], clock())


async def _carried_out(commands: WebhookCommands, name: str, pressed: WebhookForm) -> str:
    """What became of it, in a sentence."""
    if pressed.do is Do.TEST:
        event, note = await commands.test(name, caller_name(), pressed.seen)
        return " ".join(filter(None, (f"The test is number {event.seq} among its deliveries.", note)))
    if pressed.do is Do.PAUSE:
        done, text = await commands.pause(name, signed(PauseWebhook(reason=pressed.reason))), "It is paused."
    elif pressed.do is Do.DELETE:
        done, text = await commands.delete(name), "It is deleted; its deliveries stay on record."
    else:
        body = ResumeWebhook(skip=pressed.do is Do.SKIP, skip_seq=pressed.seq if pressed.do is Do.SKIP_ONE else None)
        done, text = await commands.resume(name, body), "It goes on."
    return " ".join(filter(None, (text, done.note)))
