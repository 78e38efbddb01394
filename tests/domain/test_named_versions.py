"""The versions that documents with requests name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.features.packages.domain.needs import NamedVersion, named_in, names_pool

NAMED = NamedVersion("v1", "shop", "schedule nightly")
REQUESTS: list[Any] = [
    {"crawler": "shop", "version": "v1"},
    {"argv": ["shop", "--priority", "5", "--version", "v1"]},
    {"argv": ["shop", "--version=v1"]},
]
OTHERS = st.recursive(
    st.none() | st.integers() | st.sampled_from(["shop", "version", "v2"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["crawler", "args", "steps"]), inner, max_size=3)
    ),
)


@given(st.sampled_from(REQUESTS), st.lists(OTHERS, max_size=3), st.integers(0, 50))
def test_a_version_is_found_at_any_depth(request: Any, others: list[Any], depth: int) -> None:
    document = request
    for _ in range(depth):
        document = [*others, {"job": document}]
    assert [*named_in(document, "schedule nightly")] == [NAMED]


def test_what_names_no_version() -> None:
    nothing: list[Any] = [
        None,
        {"crawler": "shop", "version": None},
        {"version": "v1", "args": {"version": "v1", "crawler": "shop"}},
        {"argv": ["shop", "--version"]},
        ["--version", 3],
    ]
    assert [*named_in(nothing, "manager 1")] == []


@pytest.mark.parametrize(
    ("document", "is_named"),
    [
        ({"run": {"crawler": "plain", "pool": "shop"}}, True),
        ({"argv": ["plain", "--pool=shop"]}, True),
        ({"args": ["plain", "--pool", "shop"]}, True),
        ({"run": {"crawler": "plain", "args": {"pool": "shop"}}}, False),
        ({"run": {"tasks": [{"args": {"pool": "shop"}, "settings": {"pool": "shop"}}]}}, False),
        ({"jobs": [{"spider_args": {"pool": "shop"}, "job_settings": {"pool": "shop"}}]}, False),
        ({"argv": ["plain", "--pool=other", "-a", "pool=shop"]}, False),
    ],
)
def test_arguments_of_crawlers_name_no_pool(document: Any, is_named: bool) -> None:
    assert names_pool(document, "shop") == is_named


def test_a_document_can_be_nested_deeply() -> None:
    document: Any = REQUESTS[0]
    for _ in range(100_000):
        document = [document]
    assert [*named_in(document, NAMED.by)] == [NAMED]
