"""The values of schedules: their definitions and their firings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from crawler_lifecycle.domain.bounds import INT_MAX, Bound, check_number, check_time
from crawler_lifecycle.domain.names import DUE_WORKFLOW
from crawler_lifecycle.domain.projects import DEFAULT

from .domain.decision import Decision
from .domain.definition import TargetKind, check_schedule_name

#: The longest time for which Temporal's definition of a schedule can differ from the definition in
#: the database before this is reported.
UNTOLD = timedelta(minutes=10)
#: Statuses of runs, managers and graphs that ended badly.
BAD_ENDS = ("FAILED", "DISCARDED", "CANCELLED")
_REVISION = Bound(1, INT_MAX, whole=True, or_none=True)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One row of the table ``schedule``."""

    schedule_id: int
    name: str
    revision: int
    """The revision of its definition. Each new definition increases it by 1."""
    definition: Mapping[str, Any]
    """The definition: a ``ScheduleSpec`` in JSON."""
    created_at: datetime
    updated_at: datetime
    checked_until: datetime
    """The end of the last check. Each due time before this time has a firing."""
    project: str = DEFAULT
    requested_by: str | None = None
    paused_at: datetime | None = None
    pause_reason: str | None = None
    ended_at: datetime | None = None
    """Since when the schedule has no further due times."""
    deleted_at: datetime | None = None
    told: int | None = None
    """The revision that Temporal has. If it is lower than ``revision``, the Temporal Schedule will
    be updated soon.
    """
    trouble: str | None = None
    """The error from the last update in Temporal, or a manual edit that was found there."""


@dataclass(frozen=True, slots=True)
class TargetRef:
    """The run, manager or graph that was started for a due time."""

    kind: TargetKind
    id: int
    """The number of the run, the manager or the graph."""


@dataclass(frozen=True, slots=True)
class DueRow:
    """One row of ``schedule_due``: the firing of a due time, and its result."""

    due_id: int
    schedule_id: int
    name: str
    revision: int
    """The revision of the definition that was valid when the decision was made."""
    due_at: datetime
    decision: Decision
    decided_at: datetime
    lateness_ms: int
    """The time from the due time to the decision, in milliseconds."""
    reason: str | None = None
    asked_by: str | None = None
    """The person who requested this due time (by ``trigger`` or ``backfill``); ``None`` if the due
    time comes from the schedule itself.
    """
    after_id: int | None = None
    """The firing whose target must end before this one starts its own."""
    target: TargetRef | None = None
    begun_at: datetime | None = None
    status: str | None = None
    """The current status of the target, which only lists contain."""

    @property
    def trouble(self) -> str | None:
        """A sentence if the due time was missed or its target ended badly, and otherwise
        ``None``.
        """
        if self.decision in (Decision.MISSED, Decision.FAILED):
            return f"{self.decision}: {self.reason}"
        if self.target is None or self.status not in BAD_ENDS:
            return None
        return f"{self.target.kind} {self.target.id} is {self.status}"


@dataclass(frozen=True, slots=True)
class PreviousTarget:
    """The earlier firing whose target must end before the target of this firing starts."""

    due_id: int
    live: bool
    target: TargetRef | None
    """The target, or ``None`` if the target has not started yet."""


@dataclass(frozen=True, slots=True)
class NotedFirings:
    """The numbers of firings that were written for due times without one, and whether there may be
    more.
    """

    missed: int = 0
    paused: int = 0
    more: bool = False
    """True if there may be more due times without a firing."""


@dataclass(frozen=True, slots=True)
class ScheduleCounts:
    """The number of schedules in each state."""

    active: int = 0
    paused: int = 0
    untold: int = 0
    """The number of schedules, including deleted ones, whose definition Temporal has not received
    for a long time.
    """


@dataclass(frozen=True, slots=True)
class DueOrder:
    """The input of ``CrawlDueWorkflow``.

    Without ``due_at``, the workflow uses the time for which Temporal fired. Raises
    ``InvalidRequest`` for an invalid field.
    """

    WORKFLOW: ClassVar = DUE_WORKFLOW
    WAKES: ClassVar = False
    name: str
    due_at: datetime | None = None
    revision: int | None = None
    """The revision of the definition that the Temporal Schedule has."""

    def __post_init__(self) -> None:
        check_schedule_name(self.name)
        check_number("revision", self.revision, _REVISION)
        check_time("due_at", self.due_at)
