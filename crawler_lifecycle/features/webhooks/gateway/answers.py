"""Responses about webhooks and their deliveries: filters, bodies, and the class that reads webhooks
for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, Self

from fastapi import Path
from pydantic import BaseModel

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.gateway.api.paging import Paging
from crawler_lifecycle.gateway.api.rows import OfRow
from crawler_lifecycle.gateway.runs.blocked import BlockedRuns

from ..domain.definition import NAME_MAX, shown, webhook_workflow_id
from ..ports import WebhookDelivery, WebhookRow
from ..store import WebhookStore

WebhookName = Annotated[str, Path(max_length=NAME_MAX)]
DeliveryStatus = Literal["delivered", "failed", "skipped"]


class DeliveryFilters(Paging):
    """Filters of ``GET /v1/webhooks/{name}/deliveries``."""

    status: DeliveryStatus | None = None


class Webhook(OfRow):
    """One webhook."""

    name: str
    project: str
    """The project whose events it gets; ``*`` stands for all projects."""
    definition: Mapping[str, Any]
    """The definition, in the form of the body of a put. The address of a chat ends in ``…`` instead
    of its secret part.
    """
    revision: int
    state: Literal["active", "failing", "paused"]
    failing_since: datetime | None
    """Since when the receiver has not accepted the next event. After 24 hours, the webhook
    is paused.
    """
    error: str | None
    """The error of the last try while deliveries are failing."""
    delivered_at: datetime | None
    """The time of the last delivery."""
    through_seq: int
    """Each event up to this number was delivered or skipped, or does not match the filters. If
    deliveries fail, the next event is the one that fails.
    """
    paused_at: datetime | None
    pause_reason: str | None
    requested_by: str | None
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: WebhookRow, **more: Any) -> Self:
        return cls.from_row(row, definition=shown(row.definition), **more)


class AcceptedWebhook(Webhook):
    """The webhook after a command.

    ``note`` is a sentence for people about what happens next, or about why nothing changed.
    """

    note: str | None


class WebhookPage(BaseModel):
    """A page of webhooks, in the order in which they were created."""

    webhooks: list[Webhook]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class Delivery(WebhookDelivery):
    """One event that was sent or tried."""

    status: DeliveryStatus
    """``delivered``, ``failed`` (it is retried), or ``skipped`` by a person."""


class DeliveryPage(BaseModel):
    """A page of deliveries to a webhook, with the latest event first."""

    deliveries: list[Delivery]
    next_page_token: str | None


class RequestedTest(BaseModel):
    """A test event for one webhook, which is sent after the events that wait."""

    seq: int
    """The number of the event, as in the list of deliveries."""
    note: str | None


@dataclass(eq=False)
class WebhookViews:
    """Reads webhooks for responses: one webhook and its deliveries."""

    webhooks: WebhookStore
    blocked: BlockedRuns
    clock: Clock

    def of(self, row: WebhookRow) -> Webhook:
        """Return the response about one webhook.

        If its workflow is missing or does not continue, the reason is reported as its error.
        """
        why = self.blocked.listed_workflow(webhook_workflow_id(row.name))
        if why is not None:
            row = replace(row, error=why, failing_since=row.failing_since or row.updated_at)
        return Webhook.of(row)

    def deliveries(self, row: WebhookRow, filters: DeliveryFilters) -> DeliveryPage:
        """Return a page of deliveries to a webhook, with the latest event first. This call
        blocks.
        """
        sent = partial(self.webhooks.list_webhook_deliveries, row.webhook_id, status=filters.status)
        page, token = filters.read("delivery", sent, lambda delivery: delivery.seq)
        return DeliveryPage(
            deliveries=[Delivery(**asdict(delivery)) for delivery in page], next_page_token=token
        )
