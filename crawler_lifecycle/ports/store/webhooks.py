"""Ports of webhooks: their definitions, what is to be told to them, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from crawler_lifecycle.domain.webhooks.definition import WebhookSpec, check_webhook_name
from crawler_lifecycle.ports.values import Event


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """One row of ``webhook``."""

    webhook_id: int
    webhook_uid: str
    name: str
    revision: int
    """How often its definition was given or changed."""
    definition: Mapping[str, Any]
    """As ``WebhookSpec`` in JSON."""
    through_seq: int
    """Every event up to this number is delivered, or is none of its."""
    created_at: datetime
    updated_at: datetime
    requested_by: str | None = None
    follower: str | None = None
    """Who delivers at present; another one may not write any more."""
    failing_since: datetime | None = None
    """Since when the event behind ``through_seq`` is not taken."""
    error: str | None = None
    """Why the last try failed that did, while it fails."""
    delivered_at: datetime | None = None
    paused_at: datetime | None = None
    pause_reason: str | None = None
    deleted_at: datetime | None = None

    @property
    def state(self) -> Literal["active", "failing", "paused"]:
        """How it stands."""
        if self.paused_at is not None:
            return "paused"
        return "active" if self.failing_since is None else "failing"


@dataclass(frozen=True, slots=True)
class WaitingEvents:
    """What is to be told to a webhook next."""

    events: Sequence[Event]
    """In order; those that are delivered are left out, those that do not fit its filters too."""
    until_seq: int
    """Up to this number there is nothing else that is to be told."""
    more: bool = False
    """Whether there may be more behind it now."""
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    """One try to deliver an event; ``error`` ``None``: it was taken."""

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


class WebhookReader(Protocol):
    """What there is of webhooks."""

    def get_webhook(self, name: str) -> WebhookRow | None:
        """The webhook of this name, deleted ones too."""

    def list_webhooks(self, after_id: int = 0, limit: int = 100) -> list[WebhookRow]:
        """Webhooks behind ``after_id``, in the order in which they were made."""

    def list_webhook_deliveries(
        self, webhook_id: int, before_seq: int | None = None, limit: int = 100, status: str | None = None
    ) -> list[WebhookDelivery]:
        """What was delivered or tried, the latest event first."""


class WebhookStore(WebhookReader, Protocol):
    """What changes webhooks. Every method is one transaction; a webhook's row is locked first."""

    def put_webhook(
        self, name: str, definition: Mapping[str, Any], requested_by: str | None
    ) -> tuple[WebhookRow, bool]:
        """Make the webhook, or give it this definition; whether anything changed.

        A new one, also one that is there again, is told what happens from now on. Raises ``InvalidRequest`` when there
        are too many.
        """

    def pause_webhook(
        self, name: str, reason: str | None, *, skip: bool = False, skip_seq: int | None = None
    ) -> WebhookRow:
        """Pause it for this reason, with an event, or (``None``) let it go on.

        ``skip``: what happened until now is not told any more; ``skip_seq``: this one event is not.
        Raises ``RunNotFound``, and ``InvalidRequest`` where that event did not fail.
        """

    def delete_webhook(self, name: str) -> bool:
        """Have nothing told any more; whether it was there. Its deliveries stay on record."""

    def test_webhook(self, name: str, requested_by: str | None, seen: int | None = None) -> Event:
        """Append an event that is for this webhook alone. Raises ``RunNotFound``.

        ``seen``: the newest event there was when the caller looked. ``NotInThisState`` when it was tested since.
        """

    def follow_webhook(self, name: str, follower: str) -> WebhookRow | None:
        """Be the one who delivers; ``None``: it was deleted, or never was. Again: nothing more.

        Raises ``RowUnreadable`` for a definition that another hand spoilt.
        """

    def waiting_events(
        self, webhook_id: int, follower: str, spec: WebhookSpec, after_seq: int, limit: int
    ) -> WaitingEvents:
        """What is to be told of the next events behind that number; at most ``limit`` are looked at. Raises ``Fenced``
        when another one delivers by now."""

    def note_tries(
        self, webhook_id: int, follower: str, tried: Sequence[Tried], through_seq: int, *, settled: bool
    ) -> WebhookRow:
        """Write down tries, and up to which event all is delivered. ``settled``: nothing failed that is still to come.

        Raises ``Fenced`` when another one delivers by now.
        """


@dataclass(frozen=True, slots=True)
class WebhookOrder:
    """Input of ``CrawlWebhookWorkflow``. Raises ``InvalidRequest``."""

    name: str

    def __post_init__(self) -> None:
        check_webhook_name(self.name)
