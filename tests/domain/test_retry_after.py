"""The wait that a server asks for in ``Retry-After``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.runner.inject.crawl_runner_retry_after import DAY_S, seconds_to_wait

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("0", 0), ("17", 17), ("86401", DAY_S), ("9" * 90, DAY_S), ("9" * 5000, None)),
        *((None, None), ("", None), ("soon", None), ("-3", None), (" 1.5 ", 1.5), ("nan", None)),
        *(("٣", None), ("Mon, 99 Nov 2026 12:00:00 GMT", None)),
        ("Mon, 30 Nov 2026 12:00:31 -0000", 31),
    ],
)
def test_a_number_or_a_date(text: str | None, seconds: float | None) -> None:
    assert seconds_to_wait(text, NOW) == seconds


@given(st.integers(-(10**8), 10**8))
def test_a_date_is_at_most_a_day_away(seconds: int) -> None:
    text = format_datetime(NOW + timedelta(seconds=seconds))
    assert seconds_to_wait(text, NOW) == min(max(0, seconds), DAY_S)


@given(st.text())
def test_any_text_is_bounded(text: str) -> None:
    found = seconds_to_wait(text, NOW)
    assert found is None or 0 <= found <= DAY_S
