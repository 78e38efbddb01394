"""The conditions under which graphs need attention."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from crawler_lifecycle.domain.conditions import IncidentCondition, failed_since_good, normalised
from crawler_lifecycle.store.store import Store

from ..domain.spec import GraphState

#: The maximum number of open incidents about failed graphs.
OPEN_MAX = 1_000


def conditions(store: Store, now: datetime) -> Iterator[IncidentCondition]:
    """Yield the graphs that failed, unless a later graph with the same name completed."""
    # Newer failures of other graphs do not end an incident.
    incidents = store.incidents.list_incidents(limit=OPEN_MAX, kind="graph_failed")
    known = [incident.name for incident in incidents]
    for failed in failed_since_good(
        store.graphs.failures(GraphState.DISCARDED, GraphState.COMPLETED, known),
        lambda row: (row.project, row.name or normalised(row.key)),
        lambda row: row.state is GraphState.COMPLETED,
    ):
        times = tuple(row.ended_at or row.updated_at for row in failed)
        last = failed[0]
        subject, *earlier = [f"graphs/{row.key}" for row in failed]
        yield IncidentCondition(
            "graph_failed",
            subject,
            last.project,
            last.cause or "a step was discarded",
            times[-1],
            times[0],
            count=len(times),
            times=times,
            fix=f"crawlctl graph retry {last.key}, after its cause is fixed",
            earlier=tuple(earlier),
        )
