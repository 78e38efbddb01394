"""Routes of webhooks and their deliveries."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.lists import named_page
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import OfProject
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.commands import CommandResult
from crawler_lifecycle.gateway.runs.requests import BodyOf, OptionalBodyOf

from ..ports import WebhookRow
from .answers import (
    AcceptedWebhook,
    DeliveryFilters,
    DeliveryPage,
    RequestedTest,
    Webhook,
    WebhookName,
    WebhookPage,
)
from .commands import (
    AskTest,
    PauseWebhook,
    PutWebhook,
    ResumeWebhook,
)


def add_webhooks(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of webhooks, commands first."""
    commands = gateway.webhook_commands
    views = gateway.webhook_views

    def answer(done: CommandResult[WebhookRow]) -> AcceptedWebhook:
        return AcceptedWebhook.of(done.row, note=done.note)

    @app.put("/v1/webhooks/{name}")
    async def put_webhook(name: WebhookName, body: BodyOf[PutWebhook]) -> AcceptedWebhook:
        """Create a webhook, or replace its definition.

        A repeat with the same definition changes nothing. A new webhook receives only future
        events.
        """
        return answer(await commands.put(name, signed(body)))

    @app.delete("/v1/webhooks/{name}")
    async def delete_webhook(name: WebhookName) -> AcceptedWebhook:
        """Delete a webhook: no more events are sent. Its deliveries stay recorded."""
        return answer(await commands.delete(name))

    @app.post("/v1/webhooks/{name}/pause")
    async def pause_webhook(
        name: WebhookName, body: OptionalBodyOf[PauseWebhook]
    ) -> AcceptedWebhook:
        """Pause a webhook: no events are sent until it is resumed."""
        return answer(await commands.pause(name, signed(body)))

    @app.post("/v1/webhooks/{name}/resume")
    async def resume_webhook(
        name: WebhookName, body: OptionalBodyOf[ResumeWebhook]
    ) -> AcceptedWebhook:
        """Resume a paused webhook, and send the events of the pause.

        `skip` skips all events up to now, and `skip_seq` skips one event that keeps failing.
        """
        return answer(await commands.resume(name, skip=body.skip, skip_seq=body.skip_seq))

    @app.post("/v1/webhooks/{name}/test", status_code=202)
    async def test_webhook(name: WebhookName, body: OptionalBodyOf[AskTest]) -> RequestedTest:
        """Send an event `webhook.test` to the webhook, after the events that wait.

        `deliveries` shows the result.
        """
        event, note = await commands.test(name, signed(body).requested_by)
        return RequestedTest(seq=event.seq, note=note)

    @app.get("/v1/webhooks", **documents(WebhookPage))
    def list_webhooks(filters: Annotated[OfProject, Query()], request: Request) -> Response:
        """All webhooks, in the order in which they were created."""
        page = named_page(views.webhooks, filters, views.of)
        return conditional(request, WebhookPage(**page))

    @app.get("/v1/webhooks/{name}", **documents(Webhook))
    async def get_webhook(name: WebhookName, request: Request) -> Response:
        """One webhook: its definition and its state."""
        return conditional(request, views.of(await commands.find(name)))

    @app.get(
        "/v1/webhooks/{name}/deliveries",
        operation_id="listWebhookDeliveries",
        **documents(DeliveryPage),
    )
    async def list_deliveries(
        name: WebhookName, filters: Annotated[DeliveryFilters, Query()], request: Request
    ) -> Response:
        """The events that were sent to a webhook or tried, with the latest event first."""
        return conditional(
            request, await run_in_threadpool(views.deliveries, await commands.find(name), filters)
        )
