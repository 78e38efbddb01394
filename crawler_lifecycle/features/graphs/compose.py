"""Composes this feature: builds its activities from adapters."""

from __future__ import annotations

from crawler_lifecycle.activities.audits.parents import ParentKind
from crawler_lifecycle.compose import Parts

from .activities.graphs import GraphActivities
from .domain.commands import GraphOrder


def activities(p: Parts) -> tuple[GraphActivities]:
    """Return the objects with the activities for graphs, excluding activities that execute users'
    code.
    """
    return (GraphActivities(p.store.graphs, p.store.managers, p.children),)


def recover(p: Parts) -> ParentKind:
    """Return the parent kind for graphs."""
    [acts] = activities(p)
    audits = p.store.audits
    return ParentKind(
        "graph",
        read=audits.open_graphs,
        order=lambda number, _: GraphOrder(number),
        give_up=acts.give_up,
        steps=audits.steps_without_runs,
    )
