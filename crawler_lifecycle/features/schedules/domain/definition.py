"""The definition of a schedule: its target, its times, and the rule for overlapping targets."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from crawler_lifecycle.domain.bounds import (
    DAY_S,
    STRICT,
    YEAR_S,
    Bound,
    check_number,
    check_time,
    refusal,
)
from crawler_lifecycle.domain.due_ids import NAME_MAX, SCHEDULE_NAME
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import NAME_OF_FORM

from .calendar import (
    Calendar,
    ClockChange,
    clock_changes,
    due_minutes,
    in_utc,
    read_cron,
    read_zone,
    smallest_gap_s,
)

#: Matches a due-time placeholder in one of the target's strings. It accepts only the ``strftime``
#: directives that have the same meaning everywhere.
_DUE_TEXT = re.compile(r"\{due:((?:%[YmdHMSjyGVu%]|[^%{}])+)\}")
_DUE_FIX = (
    "give {due:FORMAT} with %Y %m %d %H %M %S %j %y %G %V %u and other characters, such as "
    "{due:%Y-%m-%d}"
)
EXCLUDED_MAX = 366
#: The largest UTC offset of a zone, in quarters of an hour.
_QUARTERS = 4 * 15
#: The maximum size of a schedule's target in bytes of JSON.
TARGET_BYTES = 128 * 1024
#: Bounds for the numbers of a schedule. Temporal accepts no catch-up window below 10 s.
LIMITS: Mapping[str, Bound] = {
    "every_s": Bound(10, YEAR_S, "seconds", whole=True, or_none=True),
    "offset_s": Bound(0, YEAR_S, "seconds", whole=True),
    "jitter_s": Bound(0, DAY_S, "seconds", whole=True),
    "catch_up_s": Bound(10, YEAR_S, "seconds", whole=True),
    "pause_after_failures": Bound(
        1, 1000, whole=True, or_none=True, fix=", or leave it out for no limit"
    ),
}


class Overlap(StrEnum):
    """The rule for a due time while the previous target has no verdict."""

    SKIP = "skip"
    QUEUE = "queue"
    STOP_PREVIOUS = "stop_previous"
    ALLOW = "allow"


class TargetKind(StrEnum):
    """The kind of a schedule's target."""

    RUN = "run"
    MANAGER = "manager"
    GRAPH = "graph"


#: The fields of a target that each due time sets. The author of the schedule may not set them.
OF_THE_DUE_TIME: Mapping[TargetKind, tuple[str, ...]] = {
    TargetKind.RUN: ("trigger", "due_at", "request_id", "run_id", "rerun", "parent", "project"),
    TargetKind.MANAGER: ("flow_id", "request_id", "parent", "project"),
    TargetKind.GRAPH: ("id", "pages", "fingerprint", "request_id", "parent", "project"),
}


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """The definition of a schedule. Raises ``InvalidRequest``, which names the field, the value and
    the fix.

    A definition has exactly one target: ``run`` (a ``RunRequest``), ``manager`` (as in a graph's
    step) or ``graph`` (as it is sent to the API). A definition has either ``cron`` or ``every_s``.
    """

    __pydantic_config__: ClassVar = STRICT

    run: dict[str, Any] | None = None
    manager: dict[str, Any] | None = None
    graph: dict[str, Any] | None = None
    cron: str | None = None
    every_s: int | None = None
    offset_s: int = 0
    time_zone: str = "UTC"
    jitter_s: int = 0
    start_at: datetime | None = None
    end_at: datetime | None = None
    excluded: list[str] = field(default_factory=list)
    """Local dates on which nothing is due, such as ``2026-12-24``."""
    overlap: Overlap = Overlap.SKIP
    catch_up_s: int = 600
    """The catch-up window in seconds. A due time that is later than this does not begin its
    target.
    """
    pause_after_failures: int | None = None

    def __post_init__(self) -> None:
        for name, bound in LIMITS.items():
            check_number(name, getattr(self, name), bound)
        self._check_target()
        self._check_times()

    @classmethod
    def read(cls, definition: Mapping[str, Any]) -> ScheduleSpec:
        """Read a stored definition in the form that ``document`` writes. Raises
        ``InvalidRequest``.
        """
        values = dict(definition)
        for name in ("start_at", "end_at"):
            if values.get(name) is not None:
                values[name] = datetime.fromisoformat(values[name])
        try:
            return cls(**{**values, "overlap": Overlap(values.get("overlap", Overlap.SKIP))})
        except TypeError as error:
            raise InvalidRequest(f"definition: {error}") from None

    def document(self) -> dict[str, Any]:
        """The definition as JSON, omitting unset fields."""
        values: dict[str, Any] = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not None and value != []:
                values[option.name] = value.isoformat() if isinstance(value, datetime) else value
        return values

    @property
    def kind(self) -> TargetKind:
        return kind_of({kind: getattr(self, kind) for kind in TargetKind})

    @property
    def target(self) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self, self.kind)
        return found

    def target_at(self, due_at: datetime) -> dict[str, Any]:
        """Return the target of a due time, with each ``{due:FORMAT}`` replaced by the time in the
        schedule's zone.

        Raises ``InvalidRequest`` for any other string that begins with ``{due``.
        """
        found: dict[str, Any] = _filled(
            str(self.kind), self.target, due_at.astimezone(read_zone(self.time_zone))
        )
        return found

    def calendars(self) -> list[Calendar]:
        """The calendars of the cron expression. An interval has no calendars."""
        return [] if self.cron is None else read_cron(self.cron)

    def excluded_days(self) -> list[date]:
        return sorted({date.fromisoformat(text) for text in self.excluded})

    def clock_changes(self, after: datetime) -> list[ClockChange]:
        """Return the days of the coming year on which a clock change skips a due time or repeats
        it.
        """
        found = clock_changes(
            self.calendars(), read_zone(self.time_zone), max(after, self.start_at or after)
        )
        end = (
            None
            if self.end_at is None
            else self.end_at.astimezone(read_zone(self.time_zone)).date()
        )
        off = self.excluded_days()
        return [due for due in found if due.day not in off and (end is None or due.day <= end)]

    def is_due(self, at: datetime) -> bool:
        """Return whether this is a due time."""
        local = at.astimezone(read_zone(self.time_zone))
        if (self.start_at is not None and at < self.start_at) or (
            self.end_at is not None and at > self.end_at
        ):
            return False
        if local.date() in self.excluded_days():
            return False
        if self.every_s is not None:
            return (at.timestamp() - self.offset_s) % self.every_s == 0
        return not (at.second or at.microsecond) and any(
            calendar.has(local) for calendar in self.calendars()
        )

    def due_times(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Return the due times after ``after`` and up to ``until``, in UTC and in order.

        The due times do not come from Temporal, because when clocks go back, Temporal skips times
        in zones east of Greenwich, and fires at wrong times.
        """
        off = set(self.excluded_days())
        zone = read_zone(self.time_zone)
        until = until if self.end_at is None else min(until, self.end_at)
        if self.start_at is not None and after < self.start_at:
            after = self.start_at - timedelta(microseconds=1)
        if self.every_s is None:
            return due_minutes(self.calendars(), zone, after, until, off)
        return self._moments(self.every_s, after, until, zone, off)

    def _moments(
        self, every_s: int, after: datetime, until: datetime, zone: ZoneInfo, off: Container[date]
    ) -> Iterator[datetime]:
        number = int((after.timestamp() - self.offset_s) // every_s) + 1
        while (at := datetime.fromtimestamp(number * every_s + self.offset_s, UTC)) <= until:
            number += 1
            if self.excluded and (day := at.astimezone(zone).date()) in off:
                midnight = datetime.combine(day + timedelta(days=1), time(), zone).timestamp()
                number = max(number, int((midnight - self.offset_s) // every_s))
            else:
                yield at

    def firing(self, now: datetime) -> list[Calendar]:
        """Return the calendars in UTC by which Temporal fires: at every due time and at some times
        that are not due.
        """
        return in_utc(self.calendars(), read_zone(self.time_zone), now.year)

    def fires(self, at: datetime) -> bool:
        """Return whether Temporal may fire at this time automatically, whatever the rules of the
        zone are.

        At all other times, a person has triggered the schedule.
        """
        if self.every_s is not None:
            return (at.timestamp() - self.offset_s) % self.every_s == 0
        utc = at.astimezone(UTC)
        quarter = timedelta(minutes=15)
        clocks = [utc + n * quarter for n in range(-_QUARTERS, _QUARTERS + 1)]
        return not (utc.second or utc.microsecond) and any(
            calendar.has(at) for calendar in self.calendars() for at in clocks
        )

    def _check_target(self) -> None:
        given = [kind for kind in TargetKind if getattr(self, kind) is not None]
        if len(given) != 1:
            raise InvalidRequest("run: give exactly one of run, manager and graph as the target")
        check_own(self.kind, self.target)
        size = len(json.dumps(self.target))
        if size > TARGET_BYTES:
            raise InvalidRequest(
                f"{self.kind}: {size} bytes are too many; give at most {TARGET_BYTES}"
            )

    def _check_times(self) -> None:
        if (self.cron is None) == (self.every_s is None):
            raise InvalidRequest(
                "cron: give either cron (a calendar) or every_s (an interval), but not both"
            )
        read_zone(self.time_zone)
        gap = self.every_s if self.every_s is not None else smallest_gap_s(self.calendars())
        if self.offset_s and (self.every_s is None or self.offset_s >= self.every_s):
            raise refusal(
                "offset_s",
                self.offset_s,
                "give it only with every_s, and make it smaller than every_s",
            )
        if self.jitter_s >= gap:
            raise refusal(
                "jitter_s", self.jitter_s, f"give less than the {gap} s between two due times"
            )
        for name in ("start_at", "end_at"):
            check_time(name, getattr(self, name))
        if self.start_at is not None and self.end_at is not None and self.end_at < self.start_at:
            raise refusal(
                "end_at",
                self.end_at.isoformat(),
                f"give a time after start_at, {self.start_at.isoformat()}",
            )
        if len(self.excluded) > EXCLUDED_MAX:
            raise refusal("excluded", len(self.excluded), f"give at most {EXCLUDED_MAX} dates")
        for n, text in enumerate(self.excluded):
            try:
                fits = date.fromisoformat(text).isoformat() == text
            except ValueError:
                fits = False
            if not fits:
                raise refusal(f"excluded[{n}]", text, "give a date such as 2026-12-24")
        self.target_at(datetime.fromtimestamp(0, UTC))


def _filled(path: str, value: Any, local: datetime) -> Any:
    if isinstance(value, dict):
        return {name: _filled(f"{path}.{name}", part, local) for name, part in value.items()}
    if isinstance(value, list):
        return [_filled(f"{path}[{n}]", part, local) for n, part in enumerate(value)]
    if not isinstance(value, str):
        return value
    if "{due" in _DUE_TEXT.sub("", value):
        raise refusal(path, value, _DUE_FIX)
    return _DUE_TEXT.sub(lambda found: local.strftime(found[1]), value)


def kind_of(definition: Mapping[str, Any]) -> TargetKind:
    """Return the kind of target of a stored definition, even if the rest of the definition is
    unreadable.
    """
    return next((kind for kind in TargetKind if definition.get(kind) is not None), TargetKind.RUN)


def check_own(kind: TargetKind, given: Container[str]) -> None:
    """Raise ``InvalidRequest`` if the target has a field that each due time sets."""
    for name in OF_THE_DUE_TIME[kind]:
        if name in given:
            raise InvalidRequest(f"{kind}.{name}: leave it out; each due time has its own")


def check_schedule_name(name: str) -> None:
    """Raise ``InvalidRequest`` unless the string is allowed as the name of a schedule."""
    if not SCHEDULE_NAME.fullmatch(name):
        raise refusal(
            "name",
            name,
            f"give at most {NAME_MAX} letters, digits and _ . -; begin with a letter or digit",
        )
    if name == NAME_OF_FORM:
        raise refusal(
            "name", name, f"/schedules/{NAME_OF_FORM} is the page of the form; give another name"
        )
