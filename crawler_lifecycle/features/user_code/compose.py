"""The composition of this feature: activities from adapters."""

from __future__ import annotations

from typing import cast

from crawler_lifecycle.compose import Parts
from crawler_lifecycle.features.graphs.activities.batches import GraphBatchActivities
from crawler_lifecycle.features.graphs.activities.starting import GraphStarts
from crawler_lifecycle.features.managers.activities.cycles import ManagerActivities
from crawler_lifecycle.ports.protocols import FunctionHosts, PlanHosts


def activities(p: Parts) -> tuple[GraphBatchActivities, ManagerActivities]:
    """Return the objects with the activities that execute users' code: functions of graphs, and classes of managers."""
    s = p.store
    start = GraphStarts(s.graphs, s.plans, p.directory, p.catalogue).start
    return (
        GraphBatchActivities(s.graphs, s.plans, cast(FunctionHosts, p.functions), p.directory, p.reading, start=start),
        ManagerActivities(
            *(s.managers, s.plans, cast(PlanHosts, p.hosts), p.catalogue, p.reading, p.cloud, p.buffer),
            start_graph=start,
        ),
    )
