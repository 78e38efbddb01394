from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crawler_lifecycle.domain.audits.overdue import OVERDUE_S, SEARCH_S, OverduePolls, overdue_words

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("polls", "words"),
    [
        (OverduePolls(), None),
        (
            OverduePolls(3, NOW - timedelta(seconds=164), 7, NOW - timedelta(hours=1)),
            "3 polls are overdue, the oldest (run 7) by 2 min 44 s: nothing after 2026-03-01T11:00:00Z is verified",
        ),
        (
            OverduePolls(1, NOW - timedelta(seconds=44), 7),
            "1 poll is overdue (run 7) by 44 s: nothing is verified",
        ),
        (
            OverduePolls(1, NOW - timedelta(minutes=60), 7),
            "1 poll is overdue (run 7) by 1 h: nothing is verified",
        ),
        (
            OverduePolls(2, NOW - timedelta(hours=50), 7),
            "2 polls are overdue, the oldest (run 7) by 2 d 2 h: nothing is verified",
        ),
        (
            OverduePolls(1, NOW - timedelta(seconds=44), 7, error="403 Forbidden"),
            "1 poll is overdue (run 7) by 44 s: nothing is verified (403 Forbidden)",
        ),
        (OverduePolls(lost=1, lost_what="manager 3 has none"), "manager 3 has none"),
        (
            OverduePolls(1, NOW - timedelta(seconds=44), 7, lost=3, lost_what="manager 3 has none"),
            "1 poll is overdue (run 7) by 44 s: nothing is verified; manager 3 has none; and 2 more without a workflow",
        ),
    ],
)
def test_words(polls: OverduePolls, words: str | None) -> None:
    assert overdue_words(polls, NOW) == words


def test_an_overdue_poll_is_found_within_a_minute() -> None:
    assert OVERDUE_S + SEARCH_S < 60
