"""The time of this machine, and the type of a clock. Tests pass a clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

#: Returns the present time, with its zone.
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the present time in UTC, with its time zone."""
    return datetime.now(UTC)
