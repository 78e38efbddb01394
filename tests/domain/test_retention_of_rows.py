"""The rules of pruning: what is not known to be of no more use stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.audits.audit import AuditRules
from crawler_lifecycle.domain.names import PROPERTY_FILES_REMOVED, PROPERTY_PRUNED
from crawler_lifecycle.domain.retention import (
    DATABASE,
    Stays,
    event_stays,
    finding_stays,
    mark,
    marked_through,
    pruned_through,
    stays,
)
from crawler_lifecycle.domain.run import RunStatus

BEFORE = datetime(2026, 8, 1, tzinfo=UTC)
OLD, NEW = BEFORE - timedelta(microseconds=1), BEFORE
OVER = ("COMPLETED", "FAILED")
MOMENTS = st.sampled_from([OLD, NEW, None, "2026-02-30"])


@pytest.mark.parametrize(
    ("status", "ended", "updated", "why"),
    [
        ("COMPLETED", OLD, OLD, None),
        ("FAILED", OLD, OLD, None),
        ("FAILED", NEW, OLD, Stays.RECENT),
        ("FAILED", OLD, NEW, Stays.RECENT),
        ("PROCESSING", OLD, OLD, Stays.LIVE),
        ("BANANA", OLD, OLD, Stays.UNREADABLE),
        ("COMPLETED", None, OLD, Stays.UNREADABLE),
        ("COMPLETED", "soon", OLD, Stays.UNREADABLE),
        ("COMPLETED", OLD, "soon", Stays.UNREADABLE),
        (None, None, None, Stays.UNKNOWN),
    ],
)
def test_a_run(status: object, ended: object, updated: object, why: Stays | None) -> None:
    assert stays(status, RunStatus, OVER, (ended, updated), BEFORE) is why


@given(st.sampled_from([*RunStatus.__members__, "X", "", None]), MOMENTS, MOMENTS)
def test_only_of_a_run_that_ended_and_was_left_alone_anything_goes(
    status: object, ended: object, updated: object
) -> None:
    goes = stays(status, RunStatus, OVER, (ended, updated), BEFORE) is None
    assert goes == (status in OVER and (ended, updated) == (OLD, OLD))


@given(st.sampled_from([None, Stays.LIVE, Stays.RECENT, Stays.UNREADABLE]), st.sampled_from([None, "7/1/x"]), MOMENTS)
def test_only_events_that_may_repeat_go(run: Stays | None, key: object, created: object) -> None:
    goes = event_stays(run, key, created, BEFORE) is None
    assert goes == (run is None and key is None and created == OLD)


@given(
    st.sampled_from([None, Stays.LIVE, Stays.RECENT, Stays.UNREADABLE, Stays.UNKNOWN]),
    st.sampled_from(["open", "repaired", "gone", "", "OPEN", None]),
    MOMENTS,
    MOMENTS,
)
def test_only_findings_that_were_closed_go(run: Stays | None, status: object, seen: object, repaired: object) -> None:
    goes = finding_stays(run, status, (seen, repaired), BEFORE) is None
    old = all(moment in (None, OLD) for moment in (seen, repaired))
    assert goes == (run in (None, Stays.UNKNOWN) and status in ("repaired", "gone") and old)


@given(st.lists(st.integers(0, 2**62), max_size=4))
def test_marks_are_read_back_the_highest_counts(numbers: list[int]) -> None:
    rows = [{"name": PROPERTY_PRUNED, "value": mark(number, BEFORE)} for number in numbers]
    rows.append({"name": PROPERTY_FILES_REMOVED, "value": "done 2026"})
    assert pruned_through(rows) == max(numbers, default=None)


@given(st.text(max_size=40))
def test_a_mark_that_somebody_spoilt_counts_for_everything(text: str) -> None:
    head = text.partition(" ")[0]
    plain = head.isascii() and head.isdecimal() and len(head) <= 19
    assert marked_through(text) == (min(int(head), 2**63 - 1) if plain else 2**63 - 1)


def test_nobody_who_still_needs_it_is_younger_than_the_least_age() -> None:
    assert AuditRules().recent_s * 2 < DATABASE.least_s
