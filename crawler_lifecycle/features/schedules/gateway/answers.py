"""Responses about schedules and their firings: filters, bodies, and the class that reads schedules
for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Annotated, Any, Self

from fastapi import Path
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.due_ids import NAME_MAX, due_request_id, due_workflow_id
from crawler_lifecycle.gateway.api.paging import Paging, cut
from crawler_lifecycle.gateway.api.rows import OfRow
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.runs.blocked import BlockedRuns
from crawler_lifecycle.gateway.runs.commands import mapping_of

from ..domain.calendar import ClockEffect
from ..domain.decision import Decision
from ..domain.definition import ScheduleSpec, TargetKind, kind_of
from ..ports import DueRow, ScheduleRow
from ..store.schedules import ScheduleStore
from ..temporal import AHEAD
from .calendar import zone_of

#: The number of future due times in a response.
NEXT = 5
#: The year 2100 as seconds since 1970.
TIME_MAX = 4_102_444_800
#: The length of the suffix of a firing's workflow id: a hyphen and the due time.
_DUE_LETTERS = len("-2026-03-01T12:00:00Z")

ScheduleName = Annotated[str, Path(max_length=NAME_MAX)]


class FiringFilters(Paging):
    """Filters of ``GET /v1/schedules/{name}/firings``."""

    decision: Decision | None = None


class Schedule(OfRow):
    """One schedule."""

    name: str
    project: str
    kind: TargetKind
    definition: Mapping[str, Any]
    """The definition, in the form of the body of a put. The built-in manager has its command line
    as ``argv``.
    """
    revision: int
    paused: bool
    paused_at: datetime | None
    pause_reason: str | None
    ended_at: datetime | None
    """Since when the schedule has no more due times."""
    in_temporal: bool
    """True if Temporal already has this definition."""
    trouble: str | None
    """A change in Temporal that was found and undone, or a firing without a workflow."""
    checked_until: datetime
    """Each due time before this time has a recorded firing."""
    requested_by: str | None
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: ScheduleRow, **more: Any) -> Self:
        more |= {"paused": row.paused_at is not None, "in_temporal": row.told == row.revision}
        return cls.from_row(
            row, definition=put_form(row.definition), kind=kind_of(row.definition), **more
        )


def put_form(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored definition in the form of the body of a put, in which ``argv`` has the
    options of a manager.
    """
    manager = definition.get("manager")
    if not isinstance(manager, dict):
        return definition
    own = {name: value for name, value in manager.items() if name != "options"}
    return {**definition, "manager": own | dict(manager.get("options", {}))}


class ClockChangeAnswer(OfRow):
    """A day with a clock change, on which a due time does not exist or occurs twice."""

    day: date
    effect: ClockEffect
    local_time: str


class ScheduleDetail(Schedule):
    """One schedule with its future due times."""

    next_due: list[datetime]
    """The next five due times, even while the schedule is paused."""
    clock_changes: list[ClockChangeAnswer]
    """The days of the next year with a clock change. A skipped local time does not fire, and a
    repeated one fires twice.
    """


class AcceptedSchedule(ScheduleDetail):
    """The schedule after a command.

    ``note`` is a sentence for people about what happens next, or about why nothing changed.
    """

    note: str | None


class SchedulePage(BaseModel):
    """A page of schedules, in the order in which they were created."""

    schedules: list[Schedule]
    next_page_token: str | None


class Firing(OfRow):
    """One firing: a due time and its result."""

    due_at: datetime
    decision: Decision
    reason: str | None
    decided_at: datetime
    lateness_ms: int
    asked_by: str | None
    kind: TargetKind | None
    """The kind of the started target; null if no target has started yet."""
    target_id: int | None
    """The id of the started run, manager or graph."""
    begun_at: datetime | None
    status: str | None
    """The current status of the started target."""
    request_id: str
    """The request id of the target's run."""

    @classmethod
    def of(cls, row: DueRow) -> Self:
        kind, number = (None, None) if row.target is None else (row.target.kind, row.target.id)
        return cls.from_row(
            row, kind=kind, target_id=number, request_id=due_request_id(row.name, row.due_at)
        )


class FiringPage(BaseModel):
    """A page of firings of a schedule, with the latest first."""

    firings: list[Firing]
    next_page_token: str | None


class RequestedFirings(BaseModel):
    """The firings that a person requested, with the earliest first."""

    firings: list[Firing]
    note: str | None


@dataclass(eq=False)
class ScheduleViews:
    """Reads schedules for responses: one schedule, its future due times, and its firings."""

    schedules: ScheduleStore
    blocked: BlockedRuns
    clock: Clock

    def of(self, row: ScheduleRow) -> Schedule:
        """Return the response about one schedule, as in a list."""
        return Schedule.of(self._explained(row))

    async def detail(self, row: ScheduleRow) -> ScheduleDetail:
        """Return the response about one schedule with its future due times."""
        return ScheduleDetail.of(self._explained(row), **await self.ahead(row))

    async def ahead(self, row: ScheduleRow) -> dict[str, Any]:
        """Return the response's fields that the row does not have."""
        now = self.clock()
        spec = ScheduleSpec.read(row.definition)
        due = [] if row.deleted_at is not None else await run_in_threadpool(_next, spec, now)
        return {"next_due": due, "clock_changes": await run_in_threadpool(spec.clock_changes, now)}

    def listed(
        self,
        fits: Callable[[ScheduleRow], bool],
        known: Container[str],
        *,
        troubled: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the matching schedules, each with its next due time and its last firing. This call
        blocks.

        ``known`` are the crawlers of the catalogue, or empty if they are unknown. If ``troubled``
        is true, return only schedules whose last due time was missed or ended badly.
        """
        now = self.clock()
        found = [row for row in self.schedules.every() if fits(row)]
        last = self.schedules.latest_due()
        if troubled:
            found = [
                row for row in found if row.schedule_id in last and last[row.schedule_id].trouble
            ]
        rows = []
        for row in found:
            due = last.get(row.schedule_id)
            spec, unreadable = spec_of(row)
            more = {
                "next": next(iter(upcoming(row, spec, now, 1)), None),
                "last": due and Firing.of(due).model_dump(),
                "broken": unreadable or crawler_gone(row, known),
            }
            rows.append(self.of(row).model_dump() | more)
        return rows

    def of_crawler(self, crawler: str, known: Container[str]) -> list[dict[str, Any]]:
        """Return the schedules that start runs of this crawler, as ``listed`` does. This call
        blocks.
        """
        return self.listed(lambda row: _crawler_of(row) == crawler, known)

    def due(self, row: ScheduleRow, filters: FiringFilters) -> tuple[list[DueRow], str | None]:
        """Return a page of firings, with the latest first, and the token of the next page. This
        call blocks.

        If the workflow of a firing is missing or does not continue, the firing's reason shows this.
        """
        before = decode("due", filters.page_token)
        at = None if before is None else datetime.fromtimestamp(min(before, TIME_MAX), UTC)
        rows = self.schedules.list_firings(
            row.schedule_id, at, filters.page_size + 1, filters.decision
        )
        page, token = cut("due", rows, filters.page_size, lambda one: int(one.due_at.timestamp()))
        shown = []
        for firing in page:
            why = self.blocked.listed_workflow(due_workflow_id(firing.name, firing.due_at))
            if why is not None:
                firing = replace(firing, reason=f"{firing.reason}; {why}" if firing.reason else why)
            shown.append(firing)
        return shown, token

    def _explained(self, row: ScheduleRow) -> ScheduleRow:
        """Return the row.

        The ``trouble`` of the returned row also names the firing whose workflow is missing or does
        not continue.
        """
        mine = due_workflow_id(row.name)
        bad = [name for name in self.blocked.names() if name[:-_DUE_LETTERS] == mine]
        return replace(row, trouble=self.blocked.listed_workflow(*bad) or row.trouble)


def _next(spec: ScheduleSpec, now: datetime) -> list[datetime]:
    return list(itertools.islice(spec.due_times(now, now + AHEAD), NEXT))


def spec_of(row: ScheduleRow) -> tuple[ScheduleSpec | None, str | None]:
    """Return the definition, or else the reason why it cannot be read, with the fix.

    A person may have edited the row.
    """
    try:
        return ScheduleSpec.read(row.definition), None
    except (ValueError, TypeError) as error:
        return None, f"its definition cannot be read, so it starts nothing: {error}; put it again"


def _crawler_of(row: ScheduleRow) -> Any:
    return mapping_of(row.definition.get(TargetKind.RUN)).get("crawler")


def crawler_gone(row: ScheduleRow, known: Container[str]) -> str | None:
    """Return a sentence if the crawler of a schedule with a readable definition is not in the
    catalogue. ``known`` is empty if the catalogue is unknown.
    """
    crawler = _crawler_of(row)
    if not known or crawler is None or crawler in known:
        return None
    return (
        f"the catalogue no longer has the crawler {crawler}, so it starts nothing; add the crawler "
        "again, or change the schedule"
    )


def upcoming(
    row: ScheduleRow, spec: ScheduleSpec | None, now: datetime, count: int
) -> list[datetime]:
    """Return the next due times in the time zone of the schedule."""
    found = (
        spec.due_times(now, now + AHEAD)
        if spec and not row.paused_at and not row.deleted_at
        else ()
    )
    zone = zone_of(row)
    return [firing.astimezone(zone) for firing in itertools.islice(found, count)]
