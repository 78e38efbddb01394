"""What a run must produce: numbers of items, pages and errors, and the verdict on a run that
produced less.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.coverage import Brought, Coverage, ExpectedCoverage, judged
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import verdict_events
from crawler_lifecycle.domain.run import NO_ITEMS, UNMET_OUTCOMES, RunStatus, Verdict

DONE = Verdict(RunStatus.COMPLETED, "finished", "The crawler finished, exit 0")
HUNDRED = [Brought(200, 100, 0)] * 5
WATCHED = ExpectedCoverage(watched=True)
USUAL = ", the usual number is 100 (median of 5 good runs), expected at least"


def of(expect: dict[str, Any], **more: bool) -> ExpectedCoverage:
    found = ExpectedCoverage.of(expect, **more)
    found.check()
    return found


def judge(
    brought: Brought, expected: ExpectedCoverage, good: list[Brought] | None = None
) -> Verdict:
    return judged(DONE, brought, expected, [], HUNDRED if good is None else good)


@pytest.mark.parametrize(("expect", "brought", "word", "cause"), [
    ({"items": 1}, Brought(27, 0, 24), "empty", f"items: 0{USUAL} 1"),
    ({"items": {"min": 10}}, Brought(27, 9), "unmet", f"items: 9{USUAL} 10"),
    ({"items": {"min": 10}}, Brought(27, 10), None, ""),
    ({"items": {"drop": 0.5}}, Brought(27, 50), None, ""),
    ({"items": {"drop": 0.5}}, Brought(27, 49), "dropped",
     f"items: 49{USUAL} 50"),
    ({"items": {"min": 60, "drop": 0.5}}, Brought(27, 49), "dropped", f"items: 49{USUAL} 60"),
    ({"items": {"drop": 0.5}}, Brought(27, 0), "empty", "items: 0, the usual"),
    ({"items": {"drop": 0}}, Brought(27, 99), "dropped", "items: 99, "),
    ({"items": {"min": 0}}, Brought(27, 0, 1), NO_ITEMS, ""),
    ({"items": {"min": 0}, "price": 0.9}, Brought(27, 0, 1), NO_ITEMS, ""),
    ({"items": {"min": 0, "drop": 0.5}}, Brought(27, 0), "empty", "items: 0, the usual"),
    ({"pages": 10}, Brought(9, 1), "unmet", "pages: 9, the usual number is 200 (median"),
    ({"pages": 10}, Brought(0, 1), "unmet", "pages: 0, the usual"),
    ({"pages": {"drop": 0.1}}, Brought(179, 100), "dropped",
     "pages: 179, the usual number is 200 (median of 5 good runs), expected at least 180"),
    ({"errors": {"max_share": 0.1}}, Brought(100, 1, 10), None, ""),
    ({"errors": {"max_share": 0.1}}, Brought(100, 1, 11), "unmet",
     "errors: 11 with 100 pages and 1 items, expected at most 10 %"),
    ({"errors": {"max_share": 0.1}}, Brought(0, 20, 11), "unmet", "errors: 11 with 0 pages and 20 items"),
    ({"errors": {"max_share": 0.1}}, Brought(0, 0, 2), "unmet", "errors: 2 with 0 pages and 0 items"),
    ({"errors": {"max_share": 0}}, Brought(5, 5, 0), None, ""),
    ({"price": 0.9}, Brought(27, 0), "empty", "items: 0, "),
    ({"fields": {"items": 0.9}}, Brought(27, 0), "empty", "items: 0, "),
    ({}, Brought(27, 0, 24), NO_ITEMS, ""),  # a command without expectations
])  # fmt: skip
def test_what_is_too_little(
    expect: dict[str, Any], brought: Brought, word: str | None, cause: str
) -> None:
    found = judge(brought, of(expect))
    assert found.lacks == word
    if word in UNMET_OUTCOMES:
        assert (found.status, found.outcome, found.ended_by) == (
            RunStatus.COMPLETED,
            word,
            EndedBy.SERVICE,
        )
        assert found.cause.startswith(cause)
        assert found.attention == word
        failed = judge(brought, of(expect, fail=True))
        assert (failed.status, failed.cause, failed.attention) == (
            RunStatus.FAILED,
            found.cause,
            word,
        )
    else:
        assert (found.status, found.outcome, found.cause) == (DONE.status, DONE.outcome, DONE.cause)
        assert found.attention is None


@pytest.mark.parametrize(("brought", "good", "word", "cause"), [
    # Its layout changed.
    (Brought(27, 0, 24), HUNDRED, "empty", "items: 0, the usual number is 100"),
    (Brought(27, 0, 24), [], None, ""),  # it is not known to have items
    (Brought(27, 0, 0), HUNDRED[:1], "empty", "items: 0, the usual number is 100 (median of 1 good runs)"),
    # Every request was refused.
    (Brought(0, 0, 2), [], "empty", "no page and no item, but 2 errors"),
    (Brought(0, 0, 0), [], None, ""),
    (Brought(27, 1, 24), HUNDRED, None, ""),
])  # fmt: skip
def test_a_spider_that_brings_nothing_is_told_without_any_expectation(
    brought: Brought, good: list[Brought], word: str | None, cause: str
) -> None:
    found = judge(brought, WATCHED, good)
    assert (found.lacks, found.attention) == (word, word)
    assert found.cause.startswith(cause)


def test_the_word_with_which_a_spider_closed_itself_stays_in_the_cause() -> None:
    closed = Verdict(
        RunStatus.COMPLETED, "no credentials", "The crawler ended with 'no credentials', exit 0"
    )
    found = judged(closed, Brought(0, 0, 0), WATCHED, [], HUNDRED)
    assert (found.outcome, found.cause) == ("empty", f"items: 0{USUAL} 1; {closed.cause}")


def test_only_errors_are_told_whatever_is_expected() -> None:
    assert judge(Brought(0, 0, 2), of({"items": {"min": 0}}, watched=True)).attention == "empty"


def test_the_worst_is_the_outcome_and_all_of_it_the_cause() -> None:
    expected = of(
        {
            "items": {"drop": 0.1},
            "pages": 10,
            "errors": {"max_share": 0.1},
            "price": 0.9,
            "items ": 0.5,
        }
    )
    before = [Coverage(9, {"price": 1.0, "items ": 1.0})] * 3
    found = judged(DONE, Brought(5, 5, 5, Coverage(5, {})), expected, before, HUNDRED)
    assert found.outcome == "dropped"
    assert [part.partition(":")[0] for part in found.cause.split("; ")] == [
        "items",
        "pages",
        "errors",
        "price",
        "items ",
    ]


def test_what_failed_or_was_stopped_is_not_judged() -> None:
    failed = Verdict(RunStatus.FAILED, "failed", "exit 1")
    assert judged(failed, Brought(0, 0, 2), of({"items": 1}, watched=True), [], HUNDRED) is failed
    assert failed.attention == "failed"
    assert Verdict(RunStatus.FAILED, "failed", "Stopped", EndedBy.PERSON).attention is None


@pytest.mark.parametrize(("attention", "types"), [
    (None, ["run.ended"]),
    ("failed", ["run.attention", "run.ended"]),
    ("coverage", ["run.attention", "run.ended"]),
    ("unmet", ["run.attention", "run.ended"]),
    ("dropped", ["run.dropped", "run.attention", "run.ended"]),
    ("empty", ["run.empty", "run.attention", "run.ended"]),
])  # fmt: skip
def test_the_events_about_a_verdict(attention: str | None, types: list[str]) -> None:
    assert verdict_events(attention) == types


def test_fields_with_the_names_of_counters_have_a_spelling_of_their_own() -> None:
    found = of({"price": 0.9, "pages": 3, "fields": {"items": 0.5, "pages": 1}})
    assert (found.parts, found.numbers) == (
        {"price": 0.9, "items": 0.5, "pages": 1},
        {"pages": {"min": 3}},
    )
    assert of({"fields": 0.5}).parts == {"fields": 0.5}


_wild: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["min", "drop", "max_share"]), inner)
    ),
)


@given(
    st.dictionaries(
        st.sampled_from(["items", "pages", "errors", "fields", "price"]) | st.text(max_size=70),
        _wild,
    )
)
def test_whatever_is_expected_is_refused_with_its_name_or_can_be_judged(
    expect: dict[str, Any],
) -> None:
    refused, expected = "", None
    try:
        expected = of(expect)
    except InvalidRequest as error:
        refused = str(error)
    if expected is None:
        assert refused.startswith("expect")
        assert len(refused) < 500
        return
    for items in (0, 7):
        judge(Brought(items, items, items), expected)


_count = st.integers(0, 300)
_share = st.floats(0, 1)
_rules = st.fixed_dictionaries({}, optional={"min": st.integers(1, 200), "drop": _share}).filter(
    bool
)
_expect = st.fixed_dictionaries({}, optional={
    "items": _rules, "pages": _rules, "errors": st.fixed_dictionaries({"max_share": _share}), "a": st.floats(0.1, 1),
})  # fmt: skip
_before = st.lists(
    st.builds(Coverage, st.integers(1, 99), st.fixed_dictionaries({"a": _share})), max_size=5
)
_good = st.lists(st.builds(Brought, _count, st.integers(1, 300)), max_size=5)


def _badness(found: Verdict) -> tuple[int, int]:
    """Return how bad a verdict is, by its outcome, then by its status."""
    words = [None, NO_ITEMS, *reversed(UNMET_OUTCOMES)]
    return (found.status is RunStatus.FAILED, words.index(found.lacks))


@given(
    _expect, st.booleans(), st.booleans(), _before, _good, _count, _count, _count, _count, _share
)
def test_fewer_items_never_look_better(
    expect: dict[str, Any], fail: bool, watched: bool, before: list[Coverage], good: list[Brought],
    pages: int, items: int, fewer: int, errors: int, share: float,
) -> None:  # fmt: skip
    expected = of(expect, fail=fail, watched=watched)
    many, few = (
        judged(
            DONE,
            Brought(pages, n, errors, Coverage(n, {"a": share}) if n else None),
            expected,
            before,
            good,
        )
        for n in (max(items, fewer), min(items, fewer))
    )
    assert _badness(few) >= _badness(many), (many, few)
    if not min(items, fewer) and good:
        assert few.lacks is not None, "an empty run resolves nothing"
