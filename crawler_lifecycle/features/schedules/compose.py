"""The composition of this feature: activities from adapters."""

from __future__ import annotations

from crawler_lifecycle.compose import Parts

from .activities import DueActivities


def activities(p: Parts) -> tuple[DueActivities]:
    """Return the objects with the activities of schedules."""
    s = p.store
    return (DueActivities(s.schedules, s.managers, s.graphs, p.children),)
