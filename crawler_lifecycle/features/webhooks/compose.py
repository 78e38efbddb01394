"""The composition of this feature: it builds the activities from adapters."""

from __future__ import annotations

from crawler_lifecycle.activities.audits.parents import ParentKind
from crawler_lifecycle.compose import Parts

from .activities import WebhookActivities
from .ports import WebhookOrder


def activities(p: Parts) -> tuple[WebhookActivities]:
    """Return the objects with the activities of webhooks."""
    return (WebhookActivities(p.store.webhooks, p.webhooks),)


def recover(p: Parts) -> ParentKind:
    """Return the kind of webhooks."""
    [acts] = activities(p)
    return ParentKind(
        "webhook", acts.open, lambda _, id: WebhookOrder(id.partition("/")[2]), acts.give_up
    )
