"""Figures of webhooks for Prometheus, out of the database."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.webhooks.definition import WEBHOOKS_MAX
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.store.events import EventStore
from crawler_lifecycle.store.webhooks import WebhookStore


def count_webhooks(webhooks: WebhookStore, events: EventStore, metrics: Metrics) -> None:
    """Bring the gauges up to date. Blocks. A database that does not answer makes them unknown, not zero."""
    try:
        rows, newest = webhooks.list_webhooks(0, WEBHOOKS_MAX), events.last_event_seq()
        states: Mapping[str, float] = Counter(row.state for row in rows)
        behind: float = max((newest - row.through_seq for row in rows if row.paused_at is None), default=0)
    except LifecycleError:
        states, behind = dict.fromkeys(("active", "failing", "paused"), math.nan), math.nan
    for state in ("active", "failing", "paused"):
        metrics.webhooks.labels(state).set(states.get(state, 0))
    metrics.webhook_behind.set(behind)
