"""The words and times of the ledger."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.cli.runs.verbs import KIND
from crawler_lifecycle.domain.audits.corrections import (
    MEANINGS,
    SOURCES,
    CorrectionKind,
    untrue_ms,
    untrue_since,
    wrong_words,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PAGE = (Path(__file__).parents[2] / "docs" / "truth.md").read_text()
moments = st.none() | st.datetimes(
    datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)
)


@given(moments, moments)
def test_a_time_of_being_untrue_is_never_negative_and_begins_when_both_hold(
    believed: datetime | None, truth: datetime | None
) -> None:
    since = untrue_since(believed, truth)
    assert (since is None) == (believed is None and truth is None)
    assert all(
        moment <= since for moment in (believed, truth) if moment is not None and since is not None
    )
    lag = untrue_ms(NOW, since)
    assert lag is None or lag >= 0
    assert (lag is None) == (since is None)


def test_a_time_is_rounded_to_milliseconds() -> None:
    assert untrue_ms(NOW, NOW - timedelta(microseconds=1499)) == 1
    assert untrue_ms(NOW, NOW + timedelta(days=1)) == 0


@pytest.mark.parametrize(
    ("worst", "kinds", "words"),
    [
        (None, {}, "no corrections this week"),
        (
            41_203,
            {"killed": 2, "late": 1},
            "wrong for at most 41.3 s this week: 3 corrections (killed 2, late 1)",
        ),
        (59_999, {"late": 1}, "wrong for at most 60 s this week: 1 correction (late 1)"),
        (60_001, {"late": 1}, "wrong for at most 61 s this week: 1 correction (late 1)"),
        (0, {"late": 1}, "wrong for at most 0 s this week: 1 correction (late 1)"),
        (None, {"repair": 1}, "wrong for an unknown time this week: 1 correction (repair 1)"),
    ],
)
def test_the_ledger_in_one_line(worst: int | None, kinds: dict[str, int], words: str) -> None:
    said = "a change that the next planned poll finds is not a correction"
    assert wrong_words(worst, kinds, "this week") == f"{words}; {said}"


@given(st.integers(0, 10**10))
def test_at_most_is_never_less_than_it_was(worst: int) -> None:
    found = re.search(r"at most ([0-9.]+) s", wrong_words(worst, {"late": 1}, "this week"))
    assert found is not None
    assert float(found[1]) * 1000 >= worst
    assert float(found[1]) * 1000 - worst < max(101, 1001 if worst >= 60_000 else 0)


def test_every_kind_has_its_sentence_everywhere() -> None:
    assert set(MEANINGS) == set(CorrectionKind)
    assert all(re.fullmatch(r"[A-Z].*\.", meaning) for meaning in MEANINGS.values())
    assert set(KIND.__args__) == {kind.value for kind in CorrectionKind}  # type: ignore[attr-defined]
    section = PAGE.partition("## Kinds of corrections")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^- `(\w+)`: (.+)$", section, re.M))
    assert {kind: rows.get(kind) for kind in CorrectionKind} == {
        kind: kind.meaning for kind in CorrectionKind
    }
    assert {source for source in SOURCES if f"`{source}`" not in PAGE} == set()
