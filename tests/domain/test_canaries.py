"""The share of a canary, and the judgement of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.features.canaries.domain.canary import (
    GIVEN_MAX,
    Judge,
    gets_new,
    version_before,
)
from crawler_lifecycle.features.canaries.domain.judge import (
    FAULTS_MAX,
    ComparedRun,
    faults,
    judgement,
)

START = datetime(2026, 3, 1, tzinfo=UTC)
GOOD = ComparedRun(
    *(1, "default", "shop", "COMPLETED", "finished", None, None, 50, 100),
    Coverage(100, {"title": 1.0, "price": 0.98, "stars": 0.2}),
    START,
    START + timedelta(minutes=10),
)
OLD = [GOOD] * 5
BAD = replace(GOOD, coverage=Coverage(100, {"title": 1.0}))


def found(
    run: ComparedRun, old: Sequence[ComparedRun] = OLD, *judge: Judge
) -> list[tuple[str, str]]:
    return [(fault.name, fault.text) for fault in faults(run, old, judge or tuple(Judge))]


@given(st.floats(0.01, 0.5), st.integers(0, 300))
def test_a_share_is_exact_and_begins_at_once(share: float, asked: int) -> None:
    given_ = 0
    for n in range(asked):
        new = gets_new(share, n, given_)
        assert new or n > 0
        given_ += new
        assert share * (n + 1) - 1e-6 <= given_ < share * (n + 1) + 1


def test_no_more_runs_than_can_be_read_get_it() -> None:
    assert gets_new(0.5, 10_000, GIVEN_MAX - 1)
    assert not gets_new(0.5, 10_000, GIVEN_MAX)


def changed(**values: Any) -> ComparedRun:
    return replace(GOOD, **values)


@pytest.mark.parametrize(
    ("run", "name", "text"),
    [
        (
            BAD,
            "price",
            "price: 0 % of 100 items have it, the usual share is 98 % (median of 5 runs), "
            "expected at least 69 %",
        ),
        (
            changed(items=60),
            "items",
            "items: 60, the usual number is 100 (median of 5 good runs), expected at least 70",
        ),
        (changed(status="FAILED", cause="boom"), "errors", "it failed: boom"),
        (
            changed(ended_at=START + timedelta(minutes=21)),
            "duration",
            "it took 1,260 s, usually 600 s",
        ),
        (changed(lacks="unmet", cause="pages: 1, expected 5"), "expect", "pages: 1, expected 5"),
    ],
)
def test_what_is_bad(run: ComparedRun, name: str, text: str) -> None:
    assert found(run) == [(name, text)]
    others = [judge for judge in Judge if judge != ("coverage" if name == "price" else name)]
    if name != "expect":
        assert found(run, OLD, *others) == [], "it is not judged by it"


@pytest.mark.parametrize(
    "run",
    [
        GOOD,
        changed(items=70),
        changed(coverage=Coverage(100, {"title": 1.0, "price": 0.98})),
        changed(coverage=None),
        changed(ended_at=START + timedelta(minutes=20)),
    ],
)
def test_what_is_good(run: ComparedRun) -> None:
    assert found(run) == []


def test_without_enough_old_runs_only_expect_and_errors_count() -> None:
    assert found(replace(BAD, items=0), OLD[:2]) == []
    assert found(changed(status="FAILED"), []) == [("errors", "it failed: finished")]
    assert found(changed(status="FAILED"), [changed(status="FAILED")] * 3) == []
    assert found(changed(lacks="coverage", cause="price: 0 %"), []) == [("expect", "price: 0 %")]
    quick = [changed(ended_at=START + timedelta(seconds=2))] * 5
    assert found(changed(ended_at=START + timedelta(seconds=59)), quick) == [], "starts differ"


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(0, 20))
def test_an_early_verdict_is_the_final_one(bad: list[bool], ended: int) -> None:
    runs = [replace(BAD if is_bad else GOOD, run_id=n) for n, is_bad in enumerate(bad)]
    old = {GOOD.of: OLD}
    final = judgement(runs, old, Judge, len(runs))
    assert final.good == (2 * sum(bad) < len(bad))
    early = judgement(runs[:ended], old, Judge, len(runs))
    assert early.good in (None, final.good)
    assert early.good is not True or ended >= len(runs), "it can still become bad"


def test_a_crawler_none_of_whose_runs_meets_what_is_expected_is_bad() -> None:
    unmet = replace(GOOD, crawler="books", run_id=9, lacks="coverage", cause="isbn: 0 %")
    runs = [GOOD, GOOD, unmet]
    old = {GOOD.of: OLD, unmet.of: []}
    verdict = judgement(runs, old, Judge, 3)
    assert (verdict.good, verdict.bad, verdict.faults) == (False, 1, "books: isbn: 0 % (run 9)")
    assert judgement([*runs, replace(unmet, lacks=None)], old, Judge, 4).good is True


def test_the_result_names_few_faults_with_their_runs() -> None:
    runs = [replace(BAD, crawler=f"c-{n % 7}", run_id=n) for n in range(14)]
    said = judgement(runs, {run.of: OLD for run in runs}, Judge, 14).faults
    assert said.startswith("c-0: price: 0 % of 100 items")
    assert "(runs 0, 7); c-1: " in said
    assert said.endswith("; and 2 more")
    assert said.count("price") == FAULTS_MAX


@given(st.lists(st.text(), unique=True), st.data())
def test_the_version_before_is_the_newest_older_one_that_was_in_use(
    versions: list[str], data: st.DataObject
) -> None:
    current = data.draw(st.sampled_from([*versions, "another"]))
    tried = data.draw(st.sets(st.sampled_from([*versions, "another"])))
    before = version_before(versions, current, None, tried)
    older = versions[versions.index(current) + 1 :] if current in versions else []
    used = [version for version in older if version not in tried]
    assert before == (used[0] if used else None)
    assert before not in {current, *tried}
    for former in [*versions, "another"]:
        recorded = former in versions and former != current
        assert version_before(versions, current, former, tried) == (former if recorded else before)
