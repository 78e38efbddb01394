"""Ports of schedules: their definitions and their firings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from crawler_lifecycle.domain.bounds import INT_MAX, Bound, check_number, check_time
from crawler_lifecycle.domain.schedules.decision import Decision
from crawler_lifecycle.domain.schedules.definition import TargetKind, check_schedule_name

#: Seconds for which Temporal and the database may differ about a schedule before it is reported.
UNTOLD = timedelta(minutes=10)
_REVISION = Bound(1, INT_MAX, whole=True, or_none=True)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One row of ``schedule``."""

    schedule_id: int
    name: str
    revision: int
    """The number of times that its definition was given or changed."""
    definition: Mapping[str, Any]
    """As ``ScheduleSpec`` in JSON."""
    created_at: datetime
    updated_at: datetime
    checked_until: datetime
    """Each due time before has its line."""
    requested_by: str | None = None
    paused_at: datetime | None = None
    pause_reason: str | None = None
    ended_at: datetime | None = None
    """Since when it has no further due times."""
    deleted_at: datetime | None = None
    told: int | None = None
    """The revision that Temporal has. An older one: its Temporal Schedule is about to be changed."""
    trouble: str | None = None
    """The error of the last update in Temporal, or the change that was found there."""


@dataclass(frozen=True, slots=True)
class TargetRef:
    """The run, manager or graph that a due time began."""

    kind: TargetKind
    id: int
    """Of the run, the manager or the graph."""


@dataclass(frozen=True, slots=True)
class DueRow:
    """One row of ``schedule_due``: a due time, and its result."""

    due_id: int
    schedule_id: int
    name: str
    revision: int
    """Of the definition by which it was decided."""
    due_at: datetime
    decision: Decision
    decided_at: datetime
    lateness_ms: int
    """From the due time to the decision."""
    reason: str | None = None
    asked_by: str | None = None
    """The person who requested this due time (``trigger`` and ``backfill``); ``None``: the schedule itself."""
    after_id: int | None = None
    """The firing whose target must have its verdict first."""
    target: TargetRef | None = None
    begun_at: datetime | None = None
    status: str | None = None
    """The present status of the target; only in lists."""


@dataclass(frozen=True, slots=True)
class PreviousTarget:
    """The target that must have its verdict before another one begins."""

    due_id: int
    live: bool
    target: TargetRef | None
    """``None``: it has not begun yet."""


@dataclass(frozen=True, slots=True)
class Noted:
    """Number of firings that were written for due times without one."""

    missed: int = 0
    paused: int = 0
    more: bool = False
    """True when there may be more of them."""


@dataclass(frozen=True, slots=True)
class ScheduleCounts:
    """The number of schedules."""

    active: int = 0
    paused: int = 0
    untold: int = 0
    """Number of schedules that have differed in Temporal for long, deleted ones included."""


@dataclass(frozen=True, slots=True)
class DueOrder:
    """Input of ``CrawlDueWorkflow``; without ``due_at`` the time for which Temporal fired.

    Raises ``InvalidRequest``.
    """

    name: str
    due_at: datetime | None = None
    revision: int | None = None
    """Of the definition that the Temporal Schedule has."""

    def __post_init__(self) -> None:
        check_schedule_name(self.name)
        check_number("revision", self.revision, _REVISION)
        check_time("due_at", self.due_at)
