"""The table of retention agrees with what executes it, and with the defaults that people see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.cli.admin import cluster_tidy, db_prune
from crawler_lifecycle.domain.retention import (
    DATABASE,
    DAY_S,
    FILES,
    LOCAL_FOLDERS,
    UPLOADS,
    KeptRun,
    Retention,
    RetentionState,
    folders_go,
    stand_of_name,
    upload_goes,
)
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.settings import ClusterSettings

NOW = datetime(2026, 11, 20, tzinfo=UTC)
UID = "a" * 32


@pytest.mark.parametrize("rule", [DATABASE, LOCAL_FOLDERS, FILES, UPLOADS])
def test_each_age_may_be_asked_for(rule: Retention) -> None:
    assert rule.default_s >= rule.least_s >= 0
    assert bool(rule.least_s) == bool(rule.why_least)


def test_the_ages_that_people_see_are_those_of_the_table() -> None:
    assert f"{DATABASE.default_s / DAY_S:g}d" == db_prune.DEFAULT_AGE
    assert f"{FILES.default_s / DAY_S:g}d" == cluster_tidy.DEFAULT_AGE
    assert ClusterSettings().keep_days == LOCAL_FOLDERS.default_s / DAY_S


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
    run = None if uid is None else KeptRun(7, uid, "shops", "COMPLETED", 1, old, "exported", None, old)
    assert stand_of_name(ref, run, NOW)[0] is state
