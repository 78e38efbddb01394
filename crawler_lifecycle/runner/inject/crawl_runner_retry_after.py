"""The header ``Retry-After``, for crawlers, for the runner and for the service."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

#: The longest wait in seconds that is read.
DAY_S = 86_400.0


def seconds_to_wait(text: str | None, now: datetime | None = None) -> float | None:
    """Return the wait in seconds that a server asks for with a number or a date, from 0 to one day;
    ``None`` without a valid value.

    A date counts from ``now``; ``None`` means the time of this machine.
    """
    text = (text or "").strip()
    if len(text) > 100:
        return None
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?", text):
        return min(float(text), DAY_S)
    until = _time_of(text)
    if until is None:
        return None
    now = now or datetime.now(timezone.utc)  # noqa: UP017 (Python 3.9)
    return min(max(0.0, (until - now).total_seconds()), DAY_S)


def response_wait(text: str | None, date: str | None) -> float | None:
    """Return the same for a response with this header ``Date``, so that a wrong clock does not
    matter.
    """
    return seconds_to_wait(text, _time_of(date or ""))


def _time_of(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)  # noqa: UP017
