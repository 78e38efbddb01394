"""The composition of this feature: activities from adapters."""

from __future__ import annotations

from crawler_lifecycle.compose import Parts

from .activities.managing import ManagingActivities


def activities(p: Parts) -> tuple[ManagingActivities]:
    """Return the objects with the activities of managers, without those that execute users' code."""
    return (ManagingActivities(p.store.managers, p.children, p.cloud),)
