"""The port for deliveries to webhooks, and its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal, Protocol

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.names import WEBHOOK_WORKFLOW
from crawler_lifecycle.domain.projects import DEFAULT
from crawler_lifecycle.ports.runs import Event

from .domain.alerts import Alert
from .domain.definition import WebhookSpec, check_webhook_name


class ReceiverGone(NotDelivered):
    """The receiver does not want any further events (HTTP status 410)."""


class WebhookSender(Protocol):
    """The connections to the receiver of one webhook."""

    async def send(self, spec: WebhookSpec, event: Event) -> str:
        """Deliver one event within 10 seconds, and return the receiver's response.

        Raises ``NotDelivered``, and ``ReceiverGone`` after a 410.
        """


class Mailer(Protocol):
    """The mail server of the installation."""

    async def mail(self, to: Sequence[str], alert: Alert, id: str) -> str:
        """Send one e-mail within 10 seconds, and return the server's response.

        ``id`` is the same for every try. Raises ``NotDelivered``.
        """


class WebhookSenders(Protocol):
    """The source of senders to webhooks."""

    def connections(self) -> AbstractAsyncContextManager[WebhookSender]:
        """Return a sender for the running event loop. Its connections close when the block ends."""


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """One row of the table ``webhook``."""

    webhook_id: int
    webhook_uid: str
    name: str
    revision: int
    """The revision of its definition. Each new definition increases it by 1."""
    definition: Mapping[str, Any]
    """The definition: a ``WebhookSpec`` in JSON."""
    through_seq: int
    """The number of an event. Every event up to it was delivered or skipped, or does not match the
    filters.
    """
    created_at: datetime
    updated_at: datetime
    project: str = DEFAULT
    """The project whose events it gets; ``*`` stands for all projects."""
    requested_by: str | None = None
    follower: str | None = None
    """The workflow execution that delivers now. No other execution may record deliveries."""
    failing_since: datetime | None = None
    """Since when the webhook has not accepted an event after ``through_seq``."""
    error: str | None = None
    """The reason for the last failed try, or ``None`` while no delivery is failing."""
    delivered_at: datetime | None = None
    paused_at: datetime | None = None
    pause_reason: str | None = None
    deleted_at: datetime | None = None

    @property
    def state(self) -> Literal["active", "failing", "paused"]:
        """The state of the webhook for people: ``active``, ``failing`` or ``paused``."""
        if self.paused_at is not None:
            return "paused"
        return "active" if self.failing_since is None else "failing"


@dataclass(frozen=True, slots=True)
class WaitingEvents:
    """The next events to deliver to a webhook."""

    events: Sequence[Event]
    """The events in the order of their numbers, without those that were delivered or that the
    filters exclude.
    """
    until_seq: int
    """The number of the last examined event. No other events up to it need to be delivered."""
    more: bool = False
    """True if there may already be further events after ``until_seq``."""
    paused: bool = False


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One try to deliver an event. ``error`` is ``None`` if the receiver accepted it."""

    seq: int
    error: str | None = None
    answer: str | None = None
    """The response from a receiver that accepted a test."""


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """An event that was sent to a webhook at least once, or tried."""

    seq: int
    type: str
    subject: str
    created_at: datetime
    status: str
    """``delivered``, ``failed`` (it is retried) or ``skipped`` (it is not retried)."""
    tries: int
    error: str | None
    """The reason for a failure, or the receiver's response to a delivered test."""
    delivered_at: datetime | None


@dataclass(frozen=True, slots=True)
class WebhookOrder:
    """Input of ``CrawlWebhookWorkflow``. Raises ``InvalidRequest``."""

    WORKFLOW: ClassVar = WEBHOOK_WORKFLOW
    WAKES: ClassVar = False
    name: str

    def __post_init__(self) -> None:
        check_webhook_name(self.name)
