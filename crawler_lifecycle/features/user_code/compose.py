"""Composes this feature: builds its activities from adapters."""

from __future__ import annotations

from typing import cast

from crawler_lifecycle.compose import Parts
from crawler_lifecycle.features.graphs.activities.batches import GraphBatchActivities
from crawler_lifecycle.features.graphs.activities.starting import GraphStarts
from crawler_lifecycle.features.managers.activities.cycles import ManagerActivities
from crawler_lifecycle.ports.protocols import FunctionHosts, UserCodeProcesses


def activities(p: Parts) -> tuple[GraphBatchActivities, ManagerActivities]:
    """Return the objects with the activities that execute users' code: functions of graphs, and
    classes of managers.
    """
    s = p.store
    start = GraphStarts(s.graphs, s.user_code, p.directory, p.catalogue).start
    functions = cast(FunctionHosts, p.functions)
    hosts = cast(UserCodeProcesses, p.hosts)
    batches = GraphBatchActivities(
        s.graphs, s.user_code, functions, p.directory, p.reading, start=start
    )
    cycles = ManagerActivities(
        s.managers, s.user_code, hosts, p.catalogue, p.reading, p.cloud, p.buffer, start_graph=start
    )
    return batches, cycles
