"""Every condition of a Job and its pod that the documentation lists, as a cluster showed it, and
how it is read.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.support.kubernetes_conditions import CONDITIONS, Condition, Row, rows

ROWS = {row.condition: row for row in rows()}


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: c.name)
def test_a_condition_reads_as_it_was_judged_and_as_the_documentation_says(
    condition: Condition,
) -> None:
    row, expected = ROWS[condition.row], condition.expected
    assert expected is not None, (
        f"{condition.name} was recorded, and nobody has written what is expected"
    )
    assert condition.read() == expected
    outcome = f" `{expected['outcome']}`" if "outcome" in expected else ""
    assert row.shows == expected["status"] + outcome
    sentence = expected.get("cause") or expected.get("reason") or ""
    assert _pattern(row).fullmatch(sentence), f"{sentence!r} is not {row.sentence!r}"
    assert row.again == {True: "yes", False: "no", None: ""}[expected.get("retryable")]


def test_every_row_has_a_recording_and_every_recording_a_row() -> None:
    twice = [name for name, count in Counter(row.condition for row in rows()).items() if count > 1]
    assert not twice
    assert {condition.row for condition in CONDITIONS} == set(ROWS)


def test_recordings_are_named_like_their_files_and_say_where_they_are_from() -> None:
    assert {condition.source for condition in CONDITIONS} == {"recorded", "written"}
    assert len({condition.name for condition in CONDITIONS}) == len(CONDITIONS)
    recorded = sum(condition.source == "recorded" for condition in CONDITIONS)
    assert recorded > len(CONDITIONS) / 2, "most conditions can be had from a real cluster"


def _pattern(row: Row) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in row.sentence.split("…")), re.DOTALL)
