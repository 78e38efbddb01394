"""The entries of the catalogue that the spiders of a package become."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.adapters.catalogue import read_document
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.packages.domain.entries import (
    entries_of,
    is_usable,
    possible_names,
)
from crawler_lifecycle.features.packages.domain.version import (
    DEFAULT_MAX,
    PackageVersion,
    Spider,
    check_spiders,
)

NAMES = st.text("aB9-_.!é ", min_size=1, max_size=8).map(str.strip).filter(bool)
RULES = st.one_of(
    st.just({"required": True}),
    st.fixed_dictionaries({"default": st.none() | st.text("ab=", min_size=1, max_size=20)}),
)
SPIDERS = st.lists(
    st.fixed_dictionaries({"name": NAMES, "args": st.dictionaries(NAMES, RULES, max_size=3)}),
    max_size=6,
)
LARGE: list[Spider] = [
    {"name": "l" * 70, "args": {}},
    {"name": "m", "args": {f"a{n}": {"default": "x" * DEFAULT_MAX} for n in range(60)}},
    {"name": "n", "args": {f"a{n}": {"default": "x" * DEFAULT_MAX} for n in range(70)}},
    {"name": "o", "args": {f"a{n}": {"default": "x" * 640} for n in range(100)}},
]


def version_with(spiders: list[Spider]) -> PackageVersion:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return PackageVersion(
        *("shop", "v1", "default", "", 0, 0, None), check_spiders(spiders), None, now, None, True
    )


def is_readable(document: dict[str, Any]) -> bool:
    try:
        read_document(document)
    except InvalidRequest:
        return False
    return True


@given(SPIDERS, st.dictionaries(st.sampled_from(["a", "b9", "shop.a"]), st.just(None)))
def test_usable_entries_are_those_that_a_catalogue_can_read(
    spiders: list[Spider], owners: dict[str, str | None]
) -> None:
    version = version_with(spiders)
    documents = entries_of(version, owners)
    assert {document["name"] for document in documents} <= possible_names(version)
    for document in documents:
        assert is_usable(document) == is_readable(document)


@pytest.mark.parametrize("spider", LARGE, ids=["a long name", "fits", "too many", "overhead"])
def test_a_large_spider_is_usable_if_a_catalogue_can_read_it(spider: Spider) -> None:
    [document] = entries_of(version_with([spider]), {})
    assert is_usable(document) == is_readable(document) == (spider["name"] == "m")
