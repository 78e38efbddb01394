"""The composition of this feature: it builds the activities from adapters."""

from __future__ import annotations

from crawler_lifecycle.activities.audits.parents import ParentKind
from crawler_lifecycle.compose import Parts
from crawler_lifecycle.domain.due_ids import due_of_workflow

from .activities.audits import ScheduleAudit
from .activities.due import DueActivities
from .ports import DueOrder


def activities(p: Parts) -> tuple[DueActivities, ScheduleAudit]:
    """Return the objects with the activities for schedules."""
    s = p.store
    return DueActivities(s.schedules, s.managers, s.graphs, p.children), ScheduleAudit(s, p.audit)


def recover(p: Parts) -> ParentKind:
    """Return the parent kind for due times."""
    audit = ScheduleAudit(p.store)
    return ParentKind(
        "due time", audit.open_due, lambda _, id: DueOrder(*due_of_workflow(id)), audit.give_up
    )
