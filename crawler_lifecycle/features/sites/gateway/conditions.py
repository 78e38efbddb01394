"""The conditions of sites that need attention."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.projects import ALL
from crawler_lifecycle.store.store import Store

#: A site that is closed for a shorter time opens before anybody could help.
CLOSED_FOR = timedelta(minutes=1)
#: The maximum number of closed sites with an incident.
SITES_MAX = 1_000


def conditions(store: Store, now: datetime) -> Iterator[IncidentCondition]:
    """Return the sites that refused a request, and are closed for a while or are probed."""
    for row in store.sites.closed_sites(SITES_MAX):
        if row.closed_until - row.since < CLOSED_FOR:
            continue
        run = row.closed_by_run
        why = row.closed_by or f"{row.closed_status or 'a refusal'} to run {run}"
        yield IncidentCondition(
            "site_closed",
            f"sites/{row.site}",
            ALL,
            f"closed until {row.closed_until:%Y-%m-%d %H:%M} UTC after {why}",
            row.since,
            row.since,
            run_id=run,
            fix="lower its limits (crawlctl site set), or open it (crawlctl site open)",
        )
