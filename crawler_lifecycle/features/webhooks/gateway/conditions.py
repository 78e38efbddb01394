"""The conditions of webhooks and alerts that need attention."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.store.store import Store

from ..domain.definition import fix

#: A webhook that has been failing for a shorter time may accept the next try.
FAILS_FOR = timedelta(minutes=1)


def conditions(store: Store, now: datetime) -> Iterator[IncidentCondition]:
    """Return the webhooks that are failing, and those that were paused while they were failing."""
    for row in store.webhooks.every():
        since = row.failing_since
        if since is None or now - since < FAILS_FOR:
            continue
        yield IncidentCondition(
            f"webhook_{row.state}",
            f"webhooks/{row.name}",
            row.project,
            row.pause_reason or row.error or "its receiver accepts no events",
            since,
            row.paused_at or since,
            fix=fix(row.name, row.through_seq, fails=True),
        )
