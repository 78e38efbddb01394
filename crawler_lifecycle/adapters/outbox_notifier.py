"""The notifier for installations without a push service."""

from __future__ import annotations

from crawler_lifecycle.ports.runs import Event


class OutboxNotifier:
    """The port ``Notifier`` without a push service.

    The event's row in the outbox table is the delivery. The gateway's event stream reads that
    table, so the front end gets the event without a push.
    """

    name = "outbox"
    sends = False

    def push(self, event: Event) -> None:
        """Do nothing, because the event is already recorded."""

    def check(self) -> str:
        """Return a sentence that states that nothing is pushed. This check cannot fail."""
        return (
            "nowhere: the gateway's event stream shows them (LIFECYCLE_PUSHER__APP_ID is not set)"
        )
