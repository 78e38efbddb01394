"""Cron expressions with five fields, as in crontab, and the days on which a clock change affects
them.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from crawler_lifecycle.domain.bounds import refusal

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
#: The number of days of each month in a leap year.
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART = re.compile(r"(?P<first>\*|[a-z0-9]+)(?:-(?P<last>[a-z0-9]+))?(?:/(?P<step>[0-9]{1,4}))?")
_COMMENT = re.compile(r"\s#.*")
_ZONE = re.compile(r"\s*(?:CRON_)?TZ=(\S*)", re.IGNORECASE)
_FIVE = "give five fields (minute hour day month weekday), such as 30 2 * * MON-FRI"
#: Maps the names of common times to their fields.
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
CRON_MAX = 200
#: Names of files in a machine's time zone folder that we refuse: the local clock, the unknown zone,
#: and zones with leap seconds.
_OF_THE_MACHINE = re.compile(r"localtime$|posixrules$|Factory$|posix/|right/")


@dataclass(frozen=True, slots=True)
class Calendar:
    """The matching local times: each field lists its values. A weekday is a number from 0 (Sunday)
    to 6.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]

    def has_day(self, day: date) -> bool:
        return (
            day.month in self.months
            and day.day in self.days
            and day.isoweekday() % 7 in self.weekdays
        )

    def has(self, local: datetime) -> bool:
        """Return whether this minute matches."""
        return (
            local.minute in self.minutes and local.hour in self.hours and self.has_day(local.date())
        )


class ClockEffect(StrEnum):
    """The effect of a clock change on a due time."""

    SKIPPED = "skipped"
    TWICE = "twice"


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A day on which a due time does not exist or occurs twice."""

    day: date
    effect: ClockEffect
    local_time: str
    """The first affected local time of the day, as ``HH:MM``."""


def read_cron(text: str) -> list[Calendar]:
    """Return the calendars of a cron expression. A time is due when one of them matches.

    If both day and weekday are restricted, there are two calendars, because either of them may
    match, as in crontab. Names such as ``@daily`` are accepted, but a comment after the fields is
    not. Raises ``InvalidRequest``.
    """
    if len(text) > CRON_MAX:
        raise refusal("cron", text, f"give at most {CRON_MAX} characters")
    plain = _COMMENT.sub("", text).strip().lower()
    words = _NAMED.get(plain, plain).split()
    if plain.startswith("@") and len(words) != 5:
        raise refusal("cron", text, f"{_FIVE}, or @daily and the like; for intervals give every_s")
    if (zone := _ZONE.match(text)) is not None:
        raise refusal(
            "cron",
            text,
            f"give the time zone in time_zone: {zone[1]}, and only the five fields here",
        )
    if len(words) != 5:
        raise refusal(
            "cron", text, _FIVE + ("; seconds cannot be chosen" if len(words) > 5 else "")
        )
    minutes = _field(text, "minute", words[0], 0, 59)
    hours = _field(text, "hour", words[1], 0, 23)
    days = _field(text, "day", words[2], 1, 31)
    months = _field(text, "month", words[3], 1, 12, _MONTHS)
    weekdays = tuple(sorted({n % 7 for n in _field(text, "weekday", words[4], 0, 7, _WEEKDAYS)}))
    if not words[2].startswith("*") and not words[4].startswith("*"):
        either = [Calendar(minutes, hours, tuple(range(1, 32)), months, weekdays)]
        own = Calendar(minutes, hours, days, months, tuple(range(7)))
        return [own, *either] if _possible(own) else either
    found = Calendar(minutes, hours, days, months, weekdays)
    if not _possible(found):
        raise refusal(
            "cron", text, "no year has such a day; give a day that exists in these months"
        )
    return [found]


def _possible(calendar: Calendar) -> bool:
    return any(day <= _DAYS[month - 1] for month in calendar.months for day in calendar.days)


def _field(
    cron: str, name: str, text: str, least: int, most: int, words: Sequence[str] = ()
) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None or (match["first"] == "*" and match["last"] is not None):
            raise refusal("cron", cron, f"{part!r} is not a valid {name}; {_FIVE}")
        step = int(match["step"] or 1)
        if match["first"] == "*":
            first = least
            last = most
        else:
            first = _value(cron, name, match["first"], least, most, words)
            open_end = most if match["step"] else first
            last = (
                _value(cron, name, match["last"], least, most, words) if match["last"] else open_end
            )
            if words is _WEEKDAYS and match["last"] == "sun":
                last = 7  # here, as in FRI-SUN, Sunday is the last day of the week
        if step < 1 or last < first:
            raise refusal(
                "cron",
                cron,
                f"{part!r} is not a valid {name}: a range must go upwards, in steps of at least 1",
            )
        found |= set(range(first, last + 1, step))
    return tuple(sorted(found))


def _value(cron: str, name: str, text: str, least: int, most: int, words: Sequence[str]) -> int:
    if text in words:
        return words.index(text) + (1 if least == 1 else 0)
    number = int(text) if text.isdecimal() and text.isascii() and len(text) <= 4 else -1
    if not least <= number <= most:
        names = f", or {words[0].upper()} to {words[-1].upper()}" if words else ""
        raise refusal(
            "cron", cron, f"{text!r} is not a valid {name}; give {least} to {most}{names}"
        )
    return number


def smallest_gap_s(calendars: Sequence[Calendar]) -> int:
    """Return a lower bound for the seconds between two due times. Clock changes are ignored."""
    times = sorted(
        {
            hour * 60 + minute
            for calendar in calendars
            for hour in calendar.hours
            for minute in calendar.minutes
        }
    )
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return 60 * min([*gaps, 24 * 60 + times[0] - times[-1]])


def read_zone(name: str) -> ZoneInfo:
    """Return the IANA zone of this name. Raises ``InvalidRequest``."""
    try:
        if not _OF_THE_MACHINE.match(name):
            # An invalid name can be a folder or another file, for which ``ZoneInfo`` raises an
            # ``OSError``.
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise refusal(
        "time_zone",
        name,
        "give a zone of the IANA database, such as Europe/Berlin; UTC always exists",
    )


def due_minutes(
    calendars: Sequence[Calendar],
    zone: ZoneInfo,
    after: datetime,
    until: datetime,
    off: Container[date],
) -> Iterator[datetime]:
    """Yield, in UTC, each minute after ``after`` and up to ``until`` whose local time matches,
    except on the days in ``off``.

    A local time that occurs twice yields two minutes.
    """
    at = after.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    while at <= until:
        local = at.astimezone(zone)
        # Clocks change only at full quarters of an hour.
        quarter = at + timedelta(minutes=15 - local.minute % 15)
        if local.date() in off or not any(calendar.has_day(local.date()) for calendar in calendars):
            midnight = at + timedelta(minutes=24 * 60 - 60 * local.hour - local.minute)
            at = midnight if midnight.astimezone(zone).utcoffset() == local.utcoffset() else quarter
            continue
        if not any(local.hour in calendar.hours for calendar in calendars):
            at = quarter
            continue
        if any(calendar.has(local) for calendar in calendars):
            yield at
        at += timedelta(minutes=1)


def in_utc(calendars: Sequence[Calendar], zone: ZoneInfo, year: int) -> list[Calendar]:
    """Return calendars in UTC that contain every time of these calendars in the zone, and some
    times that are not due.
    """
    found: dict[Calendar, None] = {}
    for offset in _offsets(zone, year):
        for calendar in calendars:
            moved = [
                hour * 60 + minute - offset
                for hour in calendar.hours
                for minute in calendar.minutes
            ]
            minutes = tuple(sorted({n % 60 for n in moved}))
            hours = tuple(sorted({n // 60 % 24 for n in moved}))
            days = {d + n for d in calendar.days for n in (-1, 0, 1) if 1 <= d + n <= 31}
            days |= {28, 29, 30, 31} if 1 in calendar.days else set()
            days |= {1} if max(calendar.days) >= 28 else set()
            months = {(m + n - 1) % 12 + 1 for m in calendar.months for n in (-1, 0, 1)}
            weekdays = {(w + n) % 7 for w in calendar.weekdays for n in (-1, 0, 1)}
            wide = (tuple(sorted(days)), tuple(sorted(months)), tuple(sorted(weekdays)))
            found[Calendar(minutes, hours, *wide)] = None
    return list(found)


@functools.lru_cache(maxsize=256)
def _offsets(zone: ZoneInfo, year: int) -> tuple[int, ...]:
    """Return the UTC offsets of a zone, in minutes, from the year before ``year`` to two years
    after it.
    """
    at = datetime(year - 1, 1, 1, tzinfo=UTC)
    found = set()
    while at.year <= year + 2:
        offset = at.astimezone(zone).utcoffset()
        assert offset is not None, "a zone has an offset at every time"
        found.add(int(offset.total_seconds()) // 60)
        at += timedelta(days=3)
    return tuple(sorted(found))


def clock_changes(
    calendars: Sequence[Calendar], zone: ZoneInfo, after: datetime, days: int = 366
) -> list[ClockChange]:
    """Return the days on which a clock change skips a due time or repeats it."""
    found: dict[tuple[date, ClockEffect], ClockChange] = {}
    midnight = datetime.combine(after.astimezone(zone).date(), time(), zone)
    for _ in range(days):
        at, midnight = midnight, midnight + timedelta(days=1)
        if at.utcoffset() == midnight.utcoffset():
            continue
        for minute in range(24 * 60):
            local = at + timedelta(minutes=minute)
            # When clocks go back, local times occur twice. When clocks go forward, local times are
            # skipped.
            times = {local.replace(fold=fold).astimezone(UTC) for fold in (0, 1)}
            if len(times) == 2 and any(calendar.has(local) for calendar in calendars):
                back = all(
                    time_.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None)
                    for time_ in times
                )
                effect = ClockEffect.TWICE if back else ClockEffect.SKIPPED
                found.setdefault(
                    (at.date(), effect), ClockChange(at.date(), effect, f"{local:%H:%M}")
                )
    return list(found.values())
