"""Graphs in transit."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.graphs.domain.checks import check
from crawler_lifecycle.features.graphs.domain.pages import (
    PAGE_BYTES,
    decode_page,
    decode_pages,
    encode_pages,
    fingerprint,
    step_from_json,
    step_to_json,
)
from crawler_lifecycle.features.graphs.domain.spec import (
    GraphOptions,
    GraphSpec,
    StepKind,
    StepSpec,
)
from tests.domain.graph.steps import group, step
from tests.support.examples import examples

FULL = StepSpec(
    "g/ünï",
    StepKind.FUNCTION,
    {"call": "m:f", "style": "worker", "args": {"n": 1.5, "t": "\u2028"}, "label": "F"},
    deps=("a", "b"),
    ignore_cancelled=True,
    ignore_discarded=True,
    graft=True,
    timeout_s=600,
    max_attempts=20,
    backoff_s=0,
    priority=9,
    not_before=datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC),
    queue="big",
    resources=({"db": "1/3"}, {"gpu": "1"}),
)


def test_a_step_comes_back_as_it_was_and_says_nothing_of_its_defaults() -> None:
    assert step_from_json(json.loads(json.dumps(step_to_json(FULL)))) == FULL
    assert step_to_json(step("a")) == {
        "path": "a",
        "kind": "function",
        "job": {"call": "shop.steps:work"},
    }
    assert step_to_json(group("g", max_parallel=2)) == {
        "path": "g",
        "kind": "graph",
        "max_parallel": 2,
    }


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.sampled_from(list(step_to_json(FULL))), VALUES), st.booleans())
def test_whatever_comes_in_is_a_step_that_comes_back_or_is_refused(
    odd: dict[str, Any], whole: bool
) -> None:
    value = {**(step_to_json(FULL) if whole else {}), **odd}
    try:
        found = step_from_json(value)
    except InvalidRequest:
        return
    assert step_from_json(json.loads(json.dumps(step_to_json(found)))) == found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], r"step: \[\] is not allowed; give an object"),
        ({"kind": "crawl"}, r"step: path is missing"),
        ({"path": "a"}, r'step "a": kind is missing'),
        (
            {"path": "a", "kind": "shell"},
            r'step "a": kind: .shell. is not allowed; give one of function, crawl',
        ),
        (
            {"path": "a", "kind": "function", "command": "x"},
            r"command: 'x' is not allowed; this field does not exist",
        ),
        (
            {"path": "a", "kind": "function", "deps": "b"},
            r"deps: 'b' is not allowed; give a list of strings",
        ),
        (
            {"path": "a", "kind": "function", "graft": "yes"},
            r"graft: 'yes' is not allowed; give true or false",
        ),
        ({"path": "a", "kind": "function", "job": 1}, r"job: 1 is not allowed; give an object"),
        (
            {"path": "a", "kind": "function", "not_before": "soon"},
            r"not_before: 'soon' is not allowed; give a time",
        ),
        (
            {"path": "a", "kind": "function", "not_before": 5},
            r"not_before: 5 is not allowed; give a time",
        ),
    ],
)
def test_a_step_that_cannot_be(value: Any, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        step_from_json(value)


def test_pages_are_small_enough_and_hold_the_whole() -> None:
    big = replace(step("0"), job={"call": "m:f", "args": {"text": "ü" * 300_000}})
    steps = [replace(big, path=str(n)) for n in range(10)] + [step("end", *map(str, range(10)))]
    spec = GraphSpec(steps, GraphOptions(fail_fast=True), {"text": "x" * 1_000_000})
    check(spec)
    pages = encode_pages(spec)
    assert len(pages) == 4
    assert all(len(page) <= PAGE_BYTES for page in pages)
    assert decode_pages(pages, spec.options) == spec
    assert sum(len(decode_page(number, page)) for number, page in enumerate(pages)) == 11
    assert encode_pages(GraphSpec([])) == [b'{"context":{},"steps":[]}']


def test_a_step_too_large_for_a_page_is_refused() -> None:
    wide = step("end", *("x" * 190 + str(n) for n in range(12_000)))
    with pytest.raises(
        InvalidRequest, match=r'step "end": .* bytes are too many for one step; depend on a group'
    ):
        encode_pages(GraphSpec([wide]))


NO_PAGES = [
    *(b"", b"{", b"[]", b"{}", b'{"steps":{}}', b'{"steps":[],"more":1}', b"\xff"),
    b"[" * 100_000,
]


@pytest.mark.parametrize("data", [*NO_PAGES, b" " * PAGE_BYTES + b"{"])
def test_a_page_that_cannot_be_is_named(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^page 3: "):
        decode_page(3, data)


def test_the_context_travels_on_the_first_page_alone() -> None:
    page = b'{"context":{"a":1},"steps":[]}'
    assert decode_pages([page], GraphOptions()).context == {"a": 1}
    with pytest.raises(InvalidRequest, match="page 1: "):
        decode_pages([page, page], GraphOptions())
    with pytest.raises(InvalidRequest, match="context: "):
        decode_page(0, b'{"context":[],"steps":[]}')


def test_a_fingerprint_tells_graphs_apart_and_nothing_else() -> None:
    spec = GraphSpec([step("a"), FULL], GraphOptions(), {"x": 1, "y": 2})
    again = decode_pages(encode_pages(spec), GraphOptions())
    assert fingerprint(again) == fingerprint(spec)
    assert fingerprint(replace(spec, context={"y": 2, "x": 1})) == fingerprint(spec)
    others = [
        replace(spec, context={"x": 1}),
        replace(spec, options=GraphOptions(fail_fast=True)),
        replace(spec, steps=[FULL, step("a")]),
        *(
            replace(spec, steps=[step("a"), replace(FULL, **one)])
            for one in ({"priority": 8}, {"deps": ()}, {"job": {}})
        ),
    ]
    assert len({fingerprint(one) for one in [spec, *others]}) == 1 + len(others)
