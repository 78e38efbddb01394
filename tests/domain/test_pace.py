from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crawler_lifecycle.domain.pace import pages_per_minute

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("pages", "seconds", "pace"),
    [
        *((120, 60.0, 120.0), (0, 60.0, 0.0), (1, 90.0, 0.7), (5, 1.0, 300.0)),
        *((5, 0.5, None), (5, -60.0, None), (None, 60.0, None), (-1, 60.0, None), (5, None, None)),
    ],
)
def test_pages_per_minute(pages: int | None, seconds: float | None, pace: float | None) -> None:
    until = None if seconds is None else START + timedelta(seconds=seconds)
    assert pages_per_minute(pages, START, until) == pace
    assert pages_per_minute(pages, None, until) is None
