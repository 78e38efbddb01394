"""The notifier without a push service: the outbox table alone."""

from __future__ import annotations

from crawler_lifecycle.ports.runs import Event


class OutboxNotifier:
    """The port ``Notifier`` when no push service is configured: the event's row in the outbox is the delivery.

    The gateway's event stream reads that table, so the front end sees the event without anything being sent.
    """

    name = "outbox"
    sends = False

    def push(self, event: Event) -> None:
        """Nothing to do: the event is committed already."""

    def check(self) -> str:
        """Say that nothing is pushed; nothing can be wrong with that."""
        return "nowhere: the gateway's event stream shows them (LIFECYCLE_PUSHER__APP_ID is not set)"
