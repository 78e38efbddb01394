"""The composition of this feature: activities from adapters."""

from __future__ import annotations

from crawler_lifecycle.activities.audits.parents import ParentKind
from crawler_lifecycle.compose import Parts

from .activities.graphs import GraphActivities


def activities(p: Parts) -> tuple[GraphActivities]:
    """Return the objects with the activities of graphs, without those that execute users' code."""
    return (GraphActivities(p.store.graphs, p.store.managers, p.children),)


def recover(p: Parts) -> ParentKind:
    """Return the kind of graphs."""
    [acts] = activities(p)
    audits = p.store.audits
    return ParentKind("graph", audits.open_graphs, p.directory.begin_graph, acts.give_up, audits.steps_without_runs)
