"""Fields that items fill: which reports are accepted, their sum, and the verdict on them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.coverage import (
    FIELDS_MAX,
    Brought,
    Coverage,
    ExpectedCoverage,
    judged,
    summed,
)
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import RunStatus, Verdict
from crawler_lifecycle.runner import feeds

DONE = Verdict(RunStatus.COMPLETED, "finished", "The crawler finished, exit 0")
USUAL = Coverage(1000, {"price": 0.98, "title": 1.0})
FULL = Coverage(1000, {f"f{n}": 1.0 for n in range(FIELDS_MAX)})
SAID = "price: 41 % of 1,200 items have it, the usual share is 98 % (median of 10 runs), expected at least 93 %"


def judge(
    coverage: Coverage | None,
    before: list[Coverage],
    expected: ExpectedCoverage,
    verdict: Verdict = DONE,
    items: int = 9,
) -> Verdict:
    """Return the verdict on a run with items, by its fields."""
    return judged(verdict, Brought(items=items, coverage=coverage), expected, before, [])


def test_the_sentence() -> None:
    found = judge(Coverage(1200, {"price": 0.41}), [USUAL] * 10, ExpectedCoverage({"price": 0.95}))
    assert found == Verdict(RunStatus.COMPLETED, "coverage", SAID, EndedBy.SERVICE, "coverage")


@pytest.mark.parametrize(("coverage", "before", "parts", "causes"), [
    (Coverage(9, {"price": 0.931}), [USUAL] * 3, {"price": 0.95}, []),  # just enough
    (Coverage(9, {"price": 0.9305}), [USUAL] * 3, {"price": 0.95}, ["price: 93.0 % ", "least 93.1 %"]),
    (Coverage(9, {"price": 0.1}), [USUAL] * 2, {"price": 0.95}, []),  # too few runs before
    (Coverage(9, {"title": 1.0}), [USUAL] * 3, {"price": 0.95}, ["price: 0 % "]),  # no item has it
    (Coverage(9, {}), [USUAL] * 3, {"price": 1e-6, "title": 1.0}, ["price: 0", "; title: 0 % "]),
    (FULL, [USUAL] * 3, {"price": 0.95}, []),  # others replaced it: unknown
    (Coverage(9, {}), [FULL, FULL, USUAL], {"price": 0.95}, []),  # also unknown before
    # Most had none.
    (Coverage(9, {}), [USUAL, Coverage(5, {}), Coverage(5, {})], {"price": 0.95}, []),
    (Coverage(9, {}), [USUAL, USUAL, USUAL, Coverage(5, {})], {"price": 0.95}, ["is 98 % (median of 4 runs)"]),
    (Coverage(9, {}), [FULL] * 3, {f"f{n}": 0.5 for n in range(9)}, ["f4: 0 %", "; and 4 more"]),
    (None, [USUAL] * 3, {"price": 0.95}, []),  # nobody told
])  # fmt: skip
def test_what_is_too_little(
    coverage: Coverage | None, before: list[Coverage], parts: dict[str, float], causes: list[str]
) -> None:
    found = judge(coverage, before, ExpectedCoverage(parts, fail=True))
    if causes:
        assert (found.status, found.outcome) == (RunStatus.FAILED, "coverage")
        assert all(cause in found.cause for cause in causes), found.cause
    else:
        assert found == DONE


@pytest.mark.parametrize(("shares", "before", "said"), [
    ({"title": 1.0, "titel": 0.0}, 0, ": did you mean title?"),
    ({"price": 1.0}, 9, ", or leave it out"),
    ({"titel": 0.01}, 9, None),
])  # fmt: skip
def test_a_field_that_no_item_ever_had_is_told_and_fails_nothing(
    shares: dict[str, float], before: int, said: str | None
) -> None:
    found = judge(
        Coverage(9, shares), [Coverage(9, {})] * before, ExpectedCoverage({"titel": 0.9}, fail=True)
    )
    cause = f"titel: no item of this run or of the {before} before it has this field; correct expect in the catalogue{said}"
    assert found == (
        Verdict(RunStatus.COMPLETED, "coverage", cause, EndedBy.SERVICE, "coverage")
        if said
        else DONE
    )


def test_only_what_completed_is_judged_and_what_was_partial_says_so() -> None:
    bad, parts = Coverage(9, {}), ExpectedCoverage({"price": 1.0})
    failed, partial = (
        Verdict(RunStatus.FAILED, "banned", "no"),
        Verdict(RunStatus.COMPLETED, "partial", "1 of 2 failed"),
    )
    assert judge(bad, [USUAL] * 3, parts, failed) is failed
    assert judge(bad, [USUAL] * 3, parts, partial).cause.endswith("; 1 of 2 failed")


_odd: Any = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70)
_odd = st.recursive(
    _odd, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=70), inner)
)
_shares = st.dictionaries(st.text(max_size=70), st.floats(-0.5, 1.5) | _odd, max_size=50)


@given(
    _odd | st.fixed_dictionaries({"items": st.integers(0, 2**60) | _odd, "shares": _shares | _odd})
)
def test_whatever_is_said_is_believed_within_bounds(said: object) -> None:
    found = Coverage.of(said)
    if found is not None:
        assert found.items >= 1
        assert len(found.shares) <= FIELDS_MAX
        assert all(
            0 < len(name) <= 60 and "\0" not in name and 0 <= share <= 1
            for name, share in found.shares.items()
        )
        assert Coverage.of({"items": found.items, "shares": found.shares}) == found


@pytest.mark.parametrize("said", [
    None, [], "x", {}, {"items": 0, "shares": {}}, {"items": True, "shares": {}}, {"items": 2**70, "shares": {}},
    {"items": 5, "shares": [1]},
])  # fmt: skip
def test_what_says_nothing(said: object) -> None:
    assert Coverage.of(said) is None


def test_lies_are_left_out() -> None:
    lies = {
        "a": 7,
        "b": math.nan,
        "c": True,
        "d": "1",
        "e" * 10**6: 1,
        "f\0": 1,
        "": 1,
        "\ud800": 1,
        "good": 0.5,
    }
    assert Coverage.of({"items": 5, "shares": lies}) == Coverage(5, {"good": 0.5})
    many = Coverage.of({"items": 5, "shares": {f"f{n}": 1 for n in range(10_000)}})
    assert many is not None
    assert len(many.shares) == FIELDS_MAX == feeds.FIELDS_MAX


_coverage = st.builds(
    Coverage, st.integers(1, 10**6), st.dictionaries(st.sampled_from("abcde"), st.floats(0, 1))
)


@given(st.lists(_coverage, max_size=5))
def test_a_sum_is_weighted_by_items(told: list[Coverage]) -> None:
    found = summed(told)
    assert (found is None) == (not told)
    if found is not None:
        assert found.items == sum(one.items for one in told)
        for name, share in found.shares.items():
            assert share == pytest.approx(
                sum(one.shares.get(name, 0) * one.items for one in told) / found.items, abs=1e-4
            )


def test_what_is_expected_is_told_first() -> None:
    found = summed([FULL, Coverage(1000, {"price": 0.1})], ["price"])
    assert found is not None
    assert (found.shares["price"], found.shares["f0"], len(found.shares)) == (0.05, 0.5, FIELDS_MAX)


@pytest.mark.parametrize("parts", [{"a": 0}, {"a": 2}, {"a": math.nan}, {"a": True}, {"a": "1"}, {"a": None}, {"": 1},
                                   {"a" * 61: 1}, {"a\0": 1}, {f"f{n}": 1 for n in range(100)}])  # fmt: skip
def test_what_cannot_be_expected(parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="expect") as caught:
        ExpectedCoverage(parts).check()
    assert len(str(caught.value)) < 400
