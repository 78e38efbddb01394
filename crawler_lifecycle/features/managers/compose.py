"""Composes this feature: builds its activities from adapters."""

from __future__ import annotations

from crawler_lifecycle.activities.audits.parents import ParentKind
from crawler_lifecycle.compose import Parts

from .activities.managing import ManagingActivities
from .domain.manager import ManagerOrder


def activities(p: Parts) -> tuple[ManagingActivities]:
    """Return the objects with the activities for managers, excluding activities that execute users'
    code.
    """
    return (ManagingActivities(p.store.managers, p.children, p.cloud),)


def recover(p: Parts) -> ParentKind:
    """Return the parent kind for managers."""
    [acts] = activities(p)
    return ParentKind(
        "manager",
        p.store.audits.open_managers,
        lambda number, _: ManagerOrder(number),
        acts.give_up,
    )
