"""The header ``Retry-After``."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

#: The longest wait in seconds that is read.
DAY_S = 86_400.0


def seconds_to_wait(text: str | None, now: datetime) -> float | None:
    """Return the wait in seconds that a server asks for with a number or a date, from 0 to one day;
    ``None`` without a valid value.
    """
    if not text or len(text) > 100:
        return None
    if text.isascii() and text.isdecimal():
        return min(float(text), DAY_S)
    try:
        until = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return min(max(0.0, (until - now).total_seconds()), DAY_S)
