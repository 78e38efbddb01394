"""Port of the clock: what time it is, so that tests can say it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Now, aware, in UTC."""


def utc_now() -> datetime:
    """The clock of this machine."""
    return datetime.now(UTC)
