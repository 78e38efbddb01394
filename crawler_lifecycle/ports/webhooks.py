"""Port of deliveries to webhooks."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.webhooks.definition import WebhookSpec

from .values import Event


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
