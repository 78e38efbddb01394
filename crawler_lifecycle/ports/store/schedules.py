"""Ports of schedules: their definitions, and what became of each due time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from crawler_lifecycle.domain.bounds import INT_MAX, Bound, check_number, check_time
from crawler_lifecycle.domain.schedules.decision import Decision
from crawler_lifecycle.domain.schedules.definition import TargetKind, check_schedule_name

#: For so long a schedule may be otherwise in Temporal than in the database until somebody should look.
UNTOLD = timedelta(minutes=10)
_REVISION = Bound(1, INT_MAX, whole=True, or_none=True)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One row of ``schedule``."""

    schedule_id: int
    name: str
    revision: int
    """How often its definition was given or changed."""
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
    """Why Temporal could not be told, or what was found changed there."""


@dataclass(frozen=True, slots=True)
class TargetRef:
    """What a due time began."""

    kind: TargetKind
    id: int
    """Of the run, the manager or the graph."""


@dataclass(frozen=True, slots=True)
class DueRow:
    """One row of ``schedule_due``: a due time, and what became of it."""

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
    """Who asked for this due time (``trigger`` and ``backfill``); ``None``: the schedule itself."""
    after_id: int | None = None
    """The line whose target must have its verdict first."""
    target: TargetRef | None = None
    begun_at: datetime | None = None
    status: str | None = None
    """Of the target, as it is now; only in lists."""


@dataclass(frozen=True, slots=True)
class PreviousTarget:
    """What must have its verdict before another target begins."""

    due_id: int
    live: bool
    target: TargetRef | None
    """``None``: it has not begun yet."""


@dataclass(frozen=True, slots=True)
class Noted:
    """Lines that were written for due times which had none."""

    missed: int = 0
    paused: int = 0
    more: bool = False
    """Whether there may be more of them."""


@dataclass(frozen=True, slots=True)
class ScheduleCounts:
    """How many schedules there are."""

    active: int = 0
    paused: int = 0
    untold: int = 0
    """Those of which Temporal has not been told for long what the database says; deleted ones too."""


class ScheduleReader(Protocol):
    """What there is of schedules."""

    def count_schedules(self, before: datetime) -> ScheduleCounts:
        """How many there are; ``untold`` counts what was changed before then."""

    def get_schedule(self, name: str) -> ScheduleRow | None:
        """The schedule of this name, deleted ones too."""

    def list_schedules(self, after_id: int = 0, limit: int = 100, *, deleted: bool = False) -> list[ScheduleRow]:
        """Schedules behind ``after_id``, in the order in which they were made."""

    def list_due(
        self, schedule_id: int, before: datetime | None = None, limit: int = 100, decision: Decision | None = None
    ) -> list[DueRow]:
        """Its due times, the latest first, with the status of what they began."""


class ScheduleStore(ScheduleReader, Protocol):
    """What changes schedules. Every method is one transaction; a schedule's row is locked first."""

    def put_schedule(
        self, name: str, definition: Mapping[str, Any], requested_by: str | None
    ) -> tuple[ScheduleRow, bool]:
        """Make the schedule, or give it this definition; whether anything changed. A deleted one is there again.

        What was due until now has its line first, by the definition of until now; the same before a pause ends, and
        before a deletion.
        """

    def pause_schedule(self, name: str, reason: str | None, at: datetime | None = None) -> ScheduleRow:
        """Pause it for this reason, or (``None``) let it go on. ``at``: since when. Raises ``RunNotFound``."""

    def delete_schedule(self, name: str) -> bool:
        """Have it deleted; whether it was there. Its due times stay on record."""

    def told_schedule(
        self, schedule_id: int, told: int | None, *, trouble: str | None, ended_at: datetime | None
    ) -> None:
        """Write down which revision Temporal has, what is wrong, and since when it has no further due times."""

    def decide_due(self, name: str, due_at: datetime, revision: int | None = None) -> DueRow | None:
        """Decide what becomes of a due time, once: again, the line that is there, also of a deleted schedule.

        ``revision``: of the definition by which Temporal fired. ``None``: no such schedule, or it is not due then.
        """

    def asked_due(self, name: str, request_key: str) -> DueRow | None:
        """The line that this request asked for, if there is one. Raises ``InvalidRequest``."""

    def ask_due(
        self,
        name: str,
        due_at: Sequence[datetime],
        asked_by: str,
        reason: str,
        seen: datetime | None = None,
        request_key: str | None = None,
    ) -> list[DueRow]:
        """Have these due times begin, because a person asks: each that began nothing yet. Raises ``RunNotFound``.

        ``request_key``, with one due time: of the request, which sent again finds the line that it asked for, whenever
        that is. ``NotInThisState`` when another request asked for the same second.

        ``seen``: the latest due time that this person saw a line of. ``NotInThisState`` when somebody asked for a later
        one since.
        """

    def unfired_due(self, schedule_id: int, until: datetime) -> list[datetime]:
        """Due times up to ``until`` that have no line, a thousand at most."""

    def note_due(self, schedule_id: int, until: datetime) -> Noted:
        """Write a line for each due time up to ``until`` that has none, some at once.

        They are ``paused`` where the schedule was, else ``missed``.
        """

    def get_due(self, due_id: int) -> DueRow:
        """The line. Raises ``RunNotFound``."""

    def previous_target(self, due_id: int) -> PreviousTarget | None:
        """What a queued line waits for; ``None``: nothing."""

    def give_way(self, due_id: int) -> bool:
        """Whether a queued line begins nothing, as it would be stopped at once for a later one; then written down.

        What waits for it waits then for what it waited for.
        """

    def due_begun(self, due_id: int, target: TargetRef) -> None:
        """Its target exists. Again: nothing more."""

    def due_failed(self, due_id: int, reason: str) -> None:
        """Nothing can ever be begun for it. Again, or once something was begun: nothing more."""

    def due_to_begin(self, until: datetime, after_id: int = 0, limit: int = 100) -> list[DueRow]:
        """Lines behind ``after_id`` decided before ``until`` whose target is still to be begun, by their id."""


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
