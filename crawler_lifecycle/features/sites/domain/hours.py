"""The hours and days at which a site may be visited."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from crawler_lifecycle.domain.bounds import refusal

_HOURS = re.compile(r"([0-2]\d):([0-5]\d)-([0-2]\d):([0-5]\d)(?: +(\S+))?")
_DAYS = re.compile(r"(\d{1,2})(?:-(\d{1,2}))?")
_TEXT_MAX = 100
_HOURS_FIX = "give hours and a time zone, such as 22:00-06:00 Europe/Berlin"
_DAYS_FIX = "give days of the month, such as 1-10 of the month or 1,15,31"


@dataclass(frozen=True, slots=True)
class OpenHours:
    """The times at which a site may be visited. ``begins`` and ``ends`` are local times of
    ``zone``; equal times mean the whole day.
    """

    begins: time
    ends: time
    zone: ZoneInfo
    days_off: frozenset[int]

    @classmethod
    @functools.lru_cache(10_000)
    def read(cls, hours: str | None, days_off: str | None) -> OpenHours | None:
        """Return the times that an entry defines; ``None`` for all times.

        Raises ``InvalidRequest``, which names the field, the value and the fix.
        """
        if hours is None and days_off is None:
            return None
        return cls(*_read_hours(hours), _read_days(days_off))

    def next(self, now: datetime) -> datetime:
        """Return the first time from ``now`` on at which the site may be visited."""
        now = now.astimezone(UTC)
        local = now.astimezone(self.zone)
        for days in range(63):
            for begins, ends in self._spans(local.date() + timedelta(days=days)):
                if max(now, begins) < ends:
                    return max(now, begins)
        raise AssertionError("each month has a day that is not off")  # _read_days has checked it

    def _spans(self, day: date) -> list[tuple[datetime, datetime]]:
        """Return the open times of one day, in order and in UTC.

        They are empty where the clocks skip them.
        """
        if day.day in self.days_off:
            return []
        begins = self._moment(day, self.begins)
        ends = self._moment(day, self.ends)
        midnight = self._moment(day, time())
        tomorrow = self._moment(day + timedelta(days=1), time())
        if self.begins == self.ends:
            return [(midnight, tomorrow)]
        if self.begins < self.ends:
            return [(begins, ends)]
        return [(midnight, ends), (begins, tomorrow)]

    def _moment(self, day: date, at: time) -> datetime:
        """Return a local time of a day in UTC."""
        return datetime.combine(day, at, self.zone).astimezone(UTC)


def _read_hours(text: str | None) -> tuple[time, time, ZoneInfo]:
    if text is None:
        return time(), time(), ZoneInfo("UTC")
    found = _HOURS.fullmatch(text.strip()) if len(text) <= _TEXT_MAX else None
    if found is None:
        raise refusal("hours", text[:_TEXT_MAX], _HOURS_FIX)
    try:
        begins = time(int(found[1]), int(found[2]))
        ends = time(int(found[3]) % 24, int(found[4]))
        return begins, ends, ZoneInfo(found[5] or "UTC")
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise refusal("hours", text, _HOURS_FIX) from None


def _read_days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset()
    if len(text) > _TEXT_MAX:
        raise refusal("not", f"{text[:60]}…", _DAYS_FIX)
    days = set[int]()
    for part in text.removesuffix("of the month").split(","):
        found = _DAYS.fullmatch(part.strip())
        if found is None:
            raise refusal("not", text, _DAYS_FIX)
        first = int(found[1])
        last = int(found[2] or first)
        if not 1 <= first <= last <= 31:
            raise refusal("not", text, _DAYS_FIX)
        days.update(range(first, last + 1))
    if days.issuperset(range(1, 29)):
        raise refusal("not", text, "leave at least one of the days 1 to 28")
    return frozenset(days)
