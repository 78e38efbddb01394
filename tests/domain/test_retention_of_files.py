"""Whose files may go: nobody's, unless everything that is asked for is known to be so."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.retention import KeptRun, RetentionState, stand_of
from crawler_lifecycle.domain.run import RunStatus

BEFORE = datetime(2026, 11, 6, tzinfo=UTC)
LONG_AGO, LATER = BEFORE - timedelta(seconds=1), BEFORE
OLD = KeptRun(7, "a", "shops", "COMPLETED", 2, LONG_AGO, "exported", None, LONG_AGO)

times = st.none() | st.sampled_from([LONG_AGO, LATER])
runs = st.builds(
    KeptRun,
    run_id=st.just(7),
    run_uid=st.just("a"),
    crawler=st.just("shops"),
    status=st.sampled_from([*RunStatus.__members__]),
    attempt=st.just(2),
    ended_at=times,
    export=st.none() | st.sampled_from(["exported", "empty", "failed", "new"]),
    export_note=st.none() | st.just("3 files were left out"),
    exported_at=times,
    given_up=st.booleans(),
    removed=st.booleans(),
)


@given(runs, st.booleans())
def test_only_what_is_over_exported_and_long_ago_is_old(run: KeptRun, incomplete: bool) -> None:
    stand, why = stand_of(run, BEFORE, incomplete=incomplete)
    assert why
    over = run.status in ("COMPLETED", "FAILED") and run.ended_at is not None
    exported = run.export in ("exported", "empty") and run.exported_at == LONG_AGO
    whole = run.export_note is None or incomplete
    old = over and not run.removed and (run.given_up or (run.ended_at == LONG_AGO and exported and whole))
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
        ({"export": "failed", "export_note": "no bucket"}, RetentionState.NOT_EXPORTED, "no bucket"),
        ({"export_note": "3 files were left out"}, RetentionState.INCOMPLETE, "3 files were left out"),
        ({"given_up": True, "exported_at": LATER}, RetentionState.OLD, "its removal was begun before"),
        ({"given_up": True, "removed": True}, RetentionState.REMOVED, "its files are gone"),
    ],
)
def test_each_reason_is_told(change: dict[str, object], stand: RetentionState, word: str) -> None:
    assert stand_of(replace(OLD, **change), BEFORE) == (stand, word)  # type: ignore[arg-type]


def test_what_the_database_does_not_know_is_kept() -> None:
    assert stand_of(None, BEFORE) == (RetentionState.UNKNOWN, "the database has no such run")
