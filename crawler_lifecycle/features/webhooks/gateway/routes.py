"""Routes of webhooks and their deliveries, and the bodies of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.projects import narrowed
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import OfProject, Paging, cut
from crawler_lifecycle.gateway.api.rows import OfRow
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.runs.commands import Commanded
from crawler_lifecycle.web.problems import JsonBody

from ..domain.definition import NAME_MAX, shown
from ..ports import WebhookDelivery, WebhookRow
from ..store import WebhookStore
from .commands import (
    AskTest,
    PauseWebhook,
    PutWebhook,
    ResumeWebhook,
    WebhookCommands,
)

_Put = Annotated[PutWebhook, Depends(JsonBody(PutWebhook))]
_Pause = Annotated[PauseWebhook, Depends(JsonBody(PauseWebhook, optional=True))]
_Resume = Annotated[ResumeWebhook, Depends(JsonBody(ResumeWebhook, optional=True))]
_Test = Annotated[AskTest, Depends(JsonBody(AskTest, optional=True))]

WebhookName = Annotated[str, Path(max_length=NAME_MAX)]
DeliveryStatus = Literal["delivered", "failed", "skipped"]


class DeliveryFilters(Paging):
    """Filters of ``GET /v1/webhooks/{name}/deliveries``."""

    status: DeliveryStatus | None = None


class Webhook(OfRow):
    """One webhook."""

    name: str
    project: str
    """The project whose events it gets; ``*``: all projects."""
    definition: Mapping[str, Any]
    """The definition, in the form of the body of a put. The address of a chat has ``…`` in place of its secret end."""
    revision: int
    state: Literal["active", "failing", "paused"]
    failing_since: datetime | None
    """The time since when the receiver has not accepted the next event. After 24 hours, the webhook is paused."""
    error: str | None
    """The error of the last try, while deliveries fail."""
    delivered_at: datetime | None
    """The time of the last delivery."""
    through_seq: int
    """Each event up to this number was delivered or skipped, or does not fit the filters. If deliveries fail, the next
    event is the one that fails."""
    paused_at: datetime | None
    pause_reason: str | None
    requested_by: str | None
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: WebhookRow, **more: Any) -> Self:
        return cls.from_row(row, definition=shown(row.definition), **more)


class AcceptedWebhook(Webhook):
    """The webhook after a command. ``note`` is for people: what happens next, or why nothing changed."""

    note: str | None


class WebhookPage(BaseModel):
    """A page of webhooks, in the order in which they were created."""

    webhooks: list[Webhook]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class Delivery(WebhookDelivery):
    """One event that was sent or tried."""

    status: DeliveryStatus
    """``delivered``, ``failed`` (it is tried again), or ``skipped`` by a person."""


class DeliveryPage(BaseModel):
    """A page of deliveries to a webhook, the latest event first."""

    deliveries: list[Delivery]
    next_page_token: str | None


class RequestedTest(BaseModel):
    """A test event for one webhook, which is sent after the events that wait."""

    seq: int
    """The number of the event, as in the list of deliveries."""
    note: str | None


@dataclass(eq=False)
class WebhookViews:
    """Reads webhooks for answers: one webhook and its deliveries."""

    webhooks: WebhookStore
    blocked: Blocked
    clock: Clock

    def of(self, row: WebhookRow) -> Webhook:
        """Return the answer about one webhook."""
        return Webhook.of(self.blocked.webhook(row))

    def deliveries(self, row: WebhookRow, filters: DeliveryFilters) -> DeliveryPage:
        """Return a page of deliveries to a webhook, the latest event first. Blocks."""
        before = decode("delivery", filters.page_token)
        size = filters.page_size
        rows = self.webhooks.list_webhook_deliveries(row.webhook_id, before, size + 1, filters.status)
        page, token = cut("delivery", rows, size, lambda one: one.seq)
        return DeliveryPage(deliveries=[Delivery(**asdict(one)) for one in page], next_page_token=token)


def add_webhook_commands(app: FastAPI, commands: WebhookCommands) -> None:
    """Add the routes of commands on webhooks."""

    def answer(done: Commanded[WebhookRow]) -> AcceptedWebhook:
        return AcceptedWebhook.of(done.row, note=done.note)

    @app.put("/v1/webhooks/{name}")
    async def put_webhook(name: WebhookName, body: _Put) -> AcceptedWebhook:
        """Create a webhook, or replace its definition. A repeat with the same definition changes nothing.

        A new webhook receives only events from now on.
        """
        return answer(await commands.put(name, signed(body)))

    @app.delete("/v1/webhooks/{name}")
    async def delete_webhook(name: WebhookName) -> AcceptedWebhook:
        """Delete a webhook: no more events are sent. Its deliveries stay recorded."""
        return answer(await commands.delete(name))

    @app.post("/v1/webhooks/{name}/pause")
    async def pause_webhook(name: WebhookName, body: _Pause) -> AcceptedWebhook:
        """Pause a webhook: no events are sent until it is resumed."""
        return answer(await commands.pause(name, signed(body)))

    @app.post("/v1/webhooks/{name}/resume")
    async def resume_webhook(name: WebhookName, body: _Resume) -> AcceptedWebhook:
        """Continue a paused webhook, and send the events of the pause. `skip` skips all events up to now, and
        `skip_seq` skips one event that fails again and again.
        """
        return answer(await commands.resume(name, skip=body.skip, skip_seq=body.skip_seq))

    @app.post("/v1/webhooks/{name}/test", status_code=202)
    async def test_webhook(name: WebhookName, body: _Test) -> RequestedTest:
        """Send an event `webhook.test` to the webhook, after the events that wait. `deliveries` shows the result."""
        event, note = await commands.test(name, signed(body).requested_by)
        return RequestedTest(seq=event.seq, note=note)


def add_webhook_readers(app: FastAPI, commands: WebhookCommands, views: WebhookViews) -> None:
    """Add the routes that read webhooks."""

    @app.get("/v1/webhooks", **documents(WebhookPage))
    def list_webhooks(filters: Annotated[OfProject, Query()], request: Request) -> Response:
        """All webhooks, in the order in which they were created."""
        after = decode("webhook", filters.page_token) or 0
        with narrowed(filters.project):
            rows = views.webhooks.page(after, filters.page_size + 1)
        page, token = cut("webhook", rows, filters.page_size, lambda row: row.webhook_id)
        return conditional(request, WebhookPage(webhooks=[views.of(row) for row in page], next_page_token=token))

    @app.get("/v1/webhooks/{name}", **documents(Webhook))
    async def get_webhook(name: WebhookName, request: Request) -> Response:
        """One webhook: its definition and its state."""
        return conditional(request, views.of(await commands.find(name)))

    @app.get("/v1/webhooks/{name}/deliveries", operation_id="listWebhookDeliveries", **documents(DeliveryPage))
    async def list_deliveries(
        name: WebhookName, filters: Annotated[DeliveryFilters, Query()], request: Request
    ) -> Response:
        """The events that were sent to a webhook or tried, the latest event first."""
        return conditional(request, await run_in_threadpool(views.deliveries, await commands.find(name), filters))
