"""Port of deliveries to webhooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.webhooks.definition import WebhookSpec, check_webhook_name

from .runs import Event


class ReceiverGone(NotDelivered):
    """The receiver said that it wants nothing more, for ever (410)."""


class WebhookSender(Protocol):
    """Connections to the receiver of one webhook."""

    async def send(self, spec: WebhookSpec, event: Event) -> None:
        """Deliver one event, signed. Raises ``NotDelivered`` within 10 seconds, and ``ReceiverGone``."""


class WebhookSenders(Protocol):
    """Delivers to webhooks."""

    def connections(self) -> AbstractAsyncContextManager[WebhookSender]:
        """A sender for the event loop that runs."""


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """One row of ``webhook``."""

    webhook_id: int
    webhook_uid: str
    name: str
    revision: int
    """The number of times that its definition was given or changed."""
    definition: Mapping[str, Any]
    """As ``WebhookSpec`` in JSON."""
    through_seq: int
    """All events up to this number are delivered, or are not for this webhook."""
    created_at: datetime
    updated_at: datetime
    requested_by: str | None = None
    follower: str | None = None
    """The present deliverer; no other may write any more."""
    failing_since: datetime | None = None
    """Since when the event behind ``through_seq`` is not taken."""
    error: str | None = None
    """The reason why the last failed try failed, while it fails."""
    delivered_at: datetime | None = None
    paused_at: datetime | None = None
    pause_reason: str | None = None
    deleted_at: datetime | None = None

    @property
    def state(self) -> Literal["active", "failing", "paused"]:
        """The state of the webhook."""
        if self.paused_at is not None:
            return "paused"
        return "active" if self.failing_since is None else "failing"


@dataclass(frozen=True, slots=True)
class WaitingEvents:
    """The events that are to be delivered to a webhook next."""

    events: Sequence[Event]
    """In order, without delivered events and events that its filters exclude."""
    until_seq: int
    """Up to this number there is no other event to deliver."""
    more: bool = False
    """True when there may be more behind it now."""
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    """One try to deliver an event; ``error`` ``None``: it was accepted."""

    seq: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """An event that was tried to be delivered to a webhook."""

    seq: int
    type: str
    subject: str
    created_at: datetime
    status: str
    """``delivered`` or ``failed``, which is tried again unless it was skipped."""
    tries: int
    error: str | None
    delivered_at: datetime | None


@dataclass(frozen=True, slots=True)
class WebhookOrder:
    """Input of ``CrawlWebhookWorkflow``. Raises ``InvalidRequest``."""

    name: str

    def __post_init__(self) -> None:
        check_webhook_name(self.name)
