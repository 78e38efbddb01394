"""What may be removed from the database, from files and from uploads: nothing that may still be
needed.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.cli.admin import cluster_gc, db_prune
from crawler_lifecycle.domain.audits.audit import RECENT
from crawler_lifecycle.domain.names import PROPERTY_FILES_REMOVED, PROPERTY_PRUNED
from crawler_lifecycle.domain.retention import (
    DATABASE,
    DAY_S,
    FILES,
    UPLOADS,
    RetainedRun,
    Retention,
    RetentionState,
    Stays,
    event_stays,
    finding_stays,
    folders_go,
    mark,
    marked_through,
    pruned_through,
    stand_of,
    stand_of_name,
    stays,
    upload_goes,
)
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.settings import ClusterSettings

NOW = datetime(2026, 11, 20, tzinfo=UTC)
UID = "a" * 32


@pytest.mark.parametrize("rule", [DATABASE, FILES, UPLOADS])
def test_each_age_may_be_asked_for(rule: Retention) -> None:
    assert rule.default_s >= rule.least_s >= 0
    assert bool(rule.least_s) == bool(rule.why_least)


def test_the_ages_that_people_see_are_those_of_the_table() -> None:
    assert f"{DATABASE.default_s / DAY_S:g}d" == db_prune.DEFAULT_AGE
    assert f"{FILES.default_s / DAY_S:g}d" == cluster_gc.DEFAULT_AGE
    assert ClusterSettings().keep_days == FILES.default_s / DAY_S


@given(st.lists(st.tuples(st.none() | st.sampled_from([9.0, 10.0]), st.booleans()), max_size=4))
def test_folders_go_only_when_every_task_ended_before_and_nobody_is_there(
    tasks: list[tuple[float | None, bool]],
) -> None:
    assert folders_go(tasks, 10.0) == (bool(tasks) and set(tasks) == {(9.0, False)})


def test_an_upload_goes_when_nothing_came_for_the_time() -> None:
    assert upload_goes(NOW - timedelta(seconds=20), NOW, 20.0)
    assert not upload_goes(NOW - timedelta(seconds=19.9), NOW, 20.0)


@pytest.mark.parametrize(
    ("ref", "uid", "state"),
    [
        (None, UID, RetentionState.UNKNOWN),
        (RunRef(7, UID), None, RetentionState.UNKNOWN),
        (RunRef(7, UID), "b" * 32, RetentionState.UNKNOWN),
        (RunRef(7, UID), UID, RetentionState.OLD),
    ],
)
def test_only_what_bears_the_name_of_a_run_of_ours_may_go(
    ref: RunRef | None, uid: str | None, state: RetentionState
) -> None:
    old = NOW - timedelta(days=1)
    run = (
        None
        if uid is None
        else RetainedRun(7, uid, "shops", "COMPLETED", 1, old, "exported", None, old)
    )
    assert stand_of_name(ref, run, NOW)[0] is state


# --- files

BEFORE = datetime(2026, 11, 6, tzinfo=UTC)
LONG_AGO, LATER = BEFORE - timedelta(seconds=1), BEFORE
OLD = RetainedRun(7, "a", "shops", "COMPLETED", 2, LONG_AGO, "exported", None, LONG_AGO)

file_times = st.none() | st.sampled_from([LONG_AGO, LATER])
kept_runs = st.builds(
    RetainedRun,
    run_id=st.just(7),
    run_uid=st.just("a"),
    crawler=st.just("shops"),
    status=st.sampled_from([*RunStatus.__members__]),
    attempt=st.just(2),
    ended_at=file_times,
    export=st.none() | st.sampled_from(["exported", "empty", "failed", "new"]),
    export_note=st.none() | st.just("3 files were left out"),
    exported_at=file_times,
    given_up=st.booleans(),
    removed=st.booleans(),
)


@given(kept_runs, st.booleans())
def test_only_what_is_over_exported_and_long_ago_is_old(run: RetainedRun, incomplete: bool) -> None:
    stand, why = stand_of(run, BEFORE, incomplete=incomplete)
    assert why
    over = run.status in ("COMPLETED", "FAILED") and run.ended_at is not None
    exported = run.export in ("exported", "empty") and run.exported_at == LONG_AGO
    whole = run.export_note is None or incomplete
    old = (
        over
        and not run.removed
        and (run.given_up or (run.ended_at == LONG_AGO and exported and whole))
    )
    assert (stand is RetentionState.OLD) is old


@pytest.mark.parametrize(
    ("change", "stand", "word"),
    [
        ({}, RetentionState.OLD, "exported"),
        ({"export": "empty"}, RetentionState.OLD, "it left no files"),
        ({"status": "PROCESSING"}, RetentionState.LIVE, "it is PROCESSING"),
        ({"ended_at": LATER}, RetentionState.RECENT, "it ended too recently"),
        ({"exported_at": LATER}, RetentionState.RECENT, "it was exported too recently"),
        ({"export": None}, RetentionState.NOT_EXPORTED, "no export of this attempt has ended"),
        (
            {"export": "failed", "export_note": "no bucket"},
            RetentionState.NOT_EXPORTED,
            "no bucket",
        ),
        (
            {"export_note": "3 files were left out"},
            RetentionState.INCOMPLETE,
            "3 files were left out",
        ),
        (
            {"given_up": True, "exported_at": LATER},
            RetentionState.OLD,
            "its removal has already begun",
        ),
        ({"given_up": True, "removed": True}, RetentionState.REMOVED, "its files were removed"),
    ],
)
def test_each_reason_is_told(change: dict[str, object], stand: RetentionState, word: str) -> None:
    assert stand_of(replace(OLD, **change), BEFORE) == (stand, word)  # type: ignore[arg-type]


def test_what_the_database_does_not_know_is_kept() -> None:
    assert stand_of(None, BEFORE) == (RetentionState.UNKNOWN, "the database has no such run")


# --- rows

PRUNED_BEFORE = datetime(2026, 8, 1, tzinfo=UTC)
OLD_ROW, NEW_ROW = PRUNED_BEFORE - timedelta(microseconds=1), PRUNED_BEFORE
OVER = ("COMPLETED", "FAILED")
MOMENTS = st.sampled_from([OLD_ROW, NEW_ROW, None, "2026-02-30"])


@pytest.mark.parametrize(
    ("status", "ended", "updated", "why"),
    [
        ("COMPLETED", OLD_ROW, OLD_ROW, None),
        ("FAILED", OLD_ROW, OLD_ROW, None),
        ("FAILED", NEW_ROW, OLD_ROW, Stays.RECENT),
        ("FAILED", OLD_ROW, NEW_ROW, Stays.RECENT),
        ("PROCESSING", OLD_ROW, OLD_ROW, Stays.LIVE),
        ("BANANA", OLD_ROW, OLD_ROW, Stays.UNREADABLE),
        ("COMPLETED", None, OLD_ROW, Stays.UNREADABLE),
        ("COMPLETED", "soon", OLD_ROW, Stays.UNREADABLE),
        ("COMPLETED", OLD_ROW, "soon", Stays.UNREADABLE),
        (None, None, None, Stays.UNKNOWN),
    ],
)
def test_a_run(status: object, ended: object, updated: object, why: Stays | None) -> None:
    assert stays(status, RunStatus, OVER, (ended, updated), PRUNED_BEFORE) is why


@given(st.sampled_from([*RunStatus.__members__, "X", "", None]), MOMENTS, MOMENTS)
def test_only_of_a_run_that_ended_and_was_left_alone_anything_goes(
    status: object, ended: object, updated: object
) -> None:
    goes = stays(status, RunStatus, OVER, (ended, updated), PRUNED_BEFORE) is None
    assert goes == (status in OVER and (ended, updated) == (OLD_ROW, OLD_ROW))


@given(
    st.sampled_from([None, Stays.LIVE, Stays.RECENT, Stays.UNREADABLE]),
    st.sampled_from([None, "7/1/x"]),
    MOMENTS,
)
def test_only_events_that_may_repeat_go(run: Stays | None, key: object, created: object) -> None:
    goes = event_stays(run, key, created, PRUNED_BEFORE) is None
    assert goes == (run is None and key is None and created == OLD_ROW)


@given(
    st.sampled_from([None, Stays.LIVE, Stays.RECENT, Stays.UNREADABLE, Stays.UNKNOWN]),
    st.sampled_from(["open", "repaired", "gone", "", "OPEN", None]),
    MOMENTS,
    MOMENTS,
)
def test_only_findings_that_were_closed_go(
    run: Stays | None, status: object, seen: object, repaired: object
) -> None:
    goes = finding_stays(run, status, (seen, repaired), PRUNED_BEFORE) is None
    old = all(moment in (None, OLD_ROW) for moment in (seen, repaired))
    assert goes == (run in (None, Stays.UNKNOWN) and status in ("repaired", "gone") and old)


@given(st.lists(st.integers(0, 2**62), max_size=4))
def test_marks_are_read_back_the_highest_counts(numbers: list[int]) -> None:
    rows = [{"name": PROPERTY_PRUNED, "value": mark(number, PRUNED_BEFORE)} for number in numbers]
    rows.append({"name": PROPERTY_FILES_REMOVED, "value": "done 2026"})
    assert pruned_through(rows) == max(numbers, default=None)


@given(st.text(max_size=40))
def test_a_mark_that_somebody_spoilt_counts_for_everything(text: str) -> None:
    head = text.partition(" ")[0]
    plain = head.isascii() and head.isdecimal() and len(head) <= 19
    assert marked_through(text) == (min(int(head), 2**63 - 1) if plain else 2**63 - 1)


def test_nobody_who_still_needs_it_is_younger_than_the_least_age() -> None:
    assert RECENT.total_seconds() * 2 < DATABASE.least_s
