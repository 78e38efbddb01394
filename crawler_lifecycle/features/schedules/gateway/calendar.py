"""The calendar of a schedule: firings of the last days and due times of the next days, with one row
for each local day.

A schedule can fire thousands of times a day. Therefore, only the newest firings are read
individually. The firings of earlier days are counted by the database, at most ``COUNTED`` for each
day. A day with more than ``MARKS`` firings shows only counts.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from crawler_lifecycle.domain.due_ids import due_graph_key
from crawler_lifecycle.domain.status_words import state_word
from crawler_lifecycle.gateway.cursors import encode
from crawler_lifecycle.gateway.ui.parts.formats import span
from crawler_lifecycle.gateway.ui.parts.rendering import query
from crawler_lifecycle.subjects import GRAPH, SCHEDULE

from ..domain.calendar import read_zone
from ..domain.decision import Decision
from ..domain.definition import ScheduleSpec, TargetKind
from ..ports import BAD_ENDS, DueRow, ScheduleRow
from ..store.schedules import ScheduleStore

#: The number of days before and after today.
DAYS = 14
#: The maximum number of marks for a day.
MARKS = 24
#: The maximum number of firings that are read.
READ = 24 * 15
#: The maximum number of firings of a day that are counted.
COUNTED = 1_440
_INSTANT = timedelta(microseconds=1)


class Outcome(NamedTuple):
    """The result of a due time: the colour and shape of its mark, and a word."""

    kind: str
    shape: str
    word: str


_COMES = Outcome("", "○", "due")
_UNKNOWN = Outcome("queued", "◌", "not on record yet")
_DECIDED = {
    Decision.MISSED: Outcome("lost", "✕", "missed"),
    Decision.FAILED: Outcome("lost", "✕", "not started"),
    Decision.PAUSED: Outcome("", "=", "paused"),
    Decision.SKIPPED_OVERLAP: Outcome("", "»", "skipped"),
}


class Mark(NamedTuple):
    """One due time in the time zone of the schedule, and the page of the target that it started."""

    at: datetime
    outcome: Outcome
    path: str | None = None
    about: str = ""


@dataclass
class Day:
    """One local day.

    A day with too many marks has ``counts`` instead. ``most`` is true if there are more firings
    than were counted.
    """

    day: date
    note: str
    marks: list[Mark] = field(default_factory=list)
    counts: Counter[Outcome] = field(default_factory=Counter)
    most: bool = False
    path: str | None = None
    """The address of the list of its firings, below the calendar."""


def outcome_of(decision: Decision, begun: bool, status: str | None) -> Outcome:
    """Return the result of a due time with this decision.

    ``status`` is the status of the target, if the target has ``begun``.
    """
    if not decision.begins:
        return _DECIDED[decision]
    if not begun:
        return Outcome("queued", "◔", "is waiting to start")
    if status is None or status.lower() == "completed":
        return (
            Outcome("completed", "●", "completed")
            if status
            else Outcome("", "?", "no longer on record")
        )
    bad = status in BAD_ENDS
    return Outcome(
        "failed" if bad else "processing", "▲" if bad else "◆", state_word(status).lower()
    )


def path_of(one: DueRow) -> str | None:
    """Return the page of the run, manager or graph that was started for a due time."""
    if one.target is None:
        return None
    is_graph = one.target.kind is TargetKind.GRAPH
    return (
        GRAPH.path(due_graph_key(one.name, one.due_at))
        if is_graph
        else f"/{one.target.kind}s/{one.target.id}"
    )


def calendar(
    schedules: ScheduleStore,
    row: ScheduleRow,
    spec: ScheduleSpec | None,
    newest: list[DueRow],
    now: datetime,
) -> list[Day]:
    """Return the days, earliest first, from the first firing to the last due time at most. This
    call blocks.

    ``newest`` has the newest ``READ`` firings. ``spec`` is ``None`` if the definition cannot be
    read or the schedule is paused; then there are no future due times.
    """
    zone = zone_of(row)
    today = now.astimezone(zone).date()
    whole = len(newest) < READ
    oldest = newest[-1].due_at if newest else now
    begin = max(today - timedelta(DAYS), min(oldest, row.created_at).astimezone(zone).date())
    days = [
        _day(begin + timedelta(n), zone, spec)
        for n in range((today - begin).days + 1 + (DAYS if spec else 0))
    ]
    unknown = schedules.unfired_due(row.schedule_id, now) if spec else []
    for day in days:
        since = _midnight(day.day, zone)
        until = _midnight(day.day + timedelta(1), zone)
        if since <= now:
            day.path = SCHEDULE.path(row.name, "/due-times") + query(
                {"page_token": encode("due", int(until.timestamp()))}
            )
        if whole or since > oldest:
            day.marks += [
                _mark(due, zone) for due in reversed(newest) if since <= due.due_at < until
            ]
            day.marks += [
                Mark(at.astimezone(zone), _UNKNOWN) for at in unknown if since <= at < until
            ]
            day.counts.update(mark.outcome for mark in day.marks)
        else:
            found = schedules.count_due(row.schedule_id, since, until, COUNTED + 1)
            for which, many in found.items():
                day.counts[outcome_of(*which)] += many
        if spec is not None and until > now:
            coming = (
                _due(spec, max(since, now + _INSTANT), until)
                if since <= now
                else _due_on(_times(spec), day.day)
            )
            day.marks += [Mark(at.astimezone(zone), _COMES) for at in coming[:MARKS]]
            day.counts.update([_COMES] * len(coming))
        day.most = day.counts.total() > COUNTED
        (day.counts if len(day.marks) == day.counts.total() <= MARKS else day.marks).clear()
    return days[
        : max(
            (n for n, day in enumerate(days) if day.day <= today or day.marks or day.counts),
            default=0,
        )
        + 1
    ]


def zone_of(row: ScheduleRow) -> ZoneInfo:
    """Return the time zone of a schedule, or UTC if the schedule's definition cannot be read."""
    try:
        return read_zone(str(row.definition.get("time_zone", "UTC")))
    except ValueError:
        return ZoneInfo("UTC")


def _day(day: date, zone: ZoneInfo, spec: ScheduleSpec | None) -> Day:
    moved = 24 * 3600 - (_midnight(day + timedelta(1), zone) - _midnight(day, zone)).total_seconds()
    clock = (
        f"the clock goes {'forward' if moved > 0 else 'back'} by {span(abs(moved))}"
        if moved
        else ""
    )
    return Day(day, "excluded" if spec and day.isoformat() in spec.excluded else clock)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _mark(one: DueRow, zone: ZoneInfo) -> Mark:
    begun = f"{one.target.kind} {one.target.id}" if one.target else one.reason or ""
    return Mark(
        one.due_at.astimezone(zone),
        outcome_of(one.decision, one.target is not None, one.status),
        path_of(one),
        begun,
    )


def _times(spec: ScheduleSpec) -> str:
    """Return the objects on which the due times depend."""
    return json.dumps({**spec.document(), **dict.fromkeys(TargetKind), "run": {}}, sort_keys=True)


@functools.lru_cache(maxsize=256)
def _due_on(times: str, day: date) -> list[datetime]:
    spec = ScheduleSpec.read(json.loads(times))
    zone = read_zone(spec.time_zone)
    return _due(spec, _midnight(day, zone), _midnight(day + timedelta(1), zone))


def _due(spec: ScheduleSpec, since: datetime, until: datetime) -> list[datetime]:
    return list(itertools.islice(spec.due_times(since - _INSTANT, until - _INSTANT), COUNTED + 1))
