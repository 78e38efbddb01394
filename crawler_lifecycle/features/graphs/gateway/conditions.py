"""The conditions under which graphs need attention."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from crawler_lifecycle.domain.conditions import IncidentCondition, failed_since_good, normalised
from crawler_lifecycle.store.store import Store

from ..domain.spec import GraphState

#: The maximum number of graphs that are read. The graphs that ended last are read.
ENDED_MAX = 100


def conditions(store: Store, now: datetime) -> Iterator[IncidentCondition]:
    """Yield the graphs that failed, unless a later graph with the same name completed."""
    states = [GraphState.COMPLETED, GraphState.DISCARDED]
    ended = store.graphs.newest(limit=ENDED_MAX, states=states)
    for failed in failed_since_good(
        ended,
        lambda row: (row.project, row.name or normalised(row.key)),
        lambda row: row.state is GraphState.COMPLETED,
    ):
        times = tuple(row.ended_at or row.updated_at for row in failed)
        newest = failed[0]
        subject, *earlier = [f"graphs/{row.key}" for row in failed]
        yield IncidentCondition(
            "graph_failed",
            subject,
            newest.project,
            newest.cause or "a step was discarded",
            times[-1],
            times[0],
            count=len(times),
            times=times,
            fix=f"crawlctl graph retry {newest.key}, after its cause is fixed",
            earlier=tuple(earlier),
        )
