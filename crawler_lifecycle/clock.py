"""The time on this machine, and the type of a clock. Tests use their own clocks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

#: A function that returns the current time with its time zone.
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the current time in UTC, with its time zone."""
    return datetime.now(UTC)
