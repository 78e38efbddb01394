"""Items as JSON Lines and CSV: all that was in them comes out, and nothing that a spreadsheet runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.item_export import COLUMNS_MAX, HEAD_ITEMS, LEFT_OUT, PAUSE, as_csv, as_jsonl, chosen

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=9)
ITEMS = st.lists(st.dictionaries(TEXTS.filter(bool), TEXTS | st.integers() | st.none(), max_size=4), max_size=6)


def records(items: Iterable[Any], fields: list[str] | None = None) -> list[dict[str, str]]:
    text = b"".join(as_csv(items, fields)).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


@given(ITEMS)
def test_all_that_is_in_items_comes_out(items: list[dict[str, Any]]) -> None:
    assert [json.loads(line) for line in b"".join(as_jsonl(items)).splitlines()] == items
    names = list(dict.fromkeys(name for item in items for name in item))
    if names:
        for row, item in zip(records(items), items, strict=True):
            for name, cell in row.items():
                value = item.get(name.removeprefix("'"), item.get(name))
                assert cell.removeprefix("'") == ("" if value is None else str(value)).removeprefix("'")


@pytest.mark.parametrize(("text", "cell"), [
    ("=1+1", "'=1+1"), ("@x", "'@x"), ("-2+3", "'-2+3"), ("+49 30", "'+49 30"), ("\t=1", "'\t=1"),
    ("\uff1d1", "'\uff1d1"),
    ("-5", "-5"), ("+1,200.50", "+1,200.50"), (-1e-7, "-1e-07"), ("a=1", "a=1"), (float("nan"), "null"), (True, "true"),
    ([1, {"a": None}], '[1, {"a": null}]'), (None, ""), ("\ud800", "?"),
])  # fmt: skip
def test_cells(text: object, cell: str) -> None:
    assert records([{"a": text, "b": 1}]) == [{"a": cell, "b": "1"}]


def test_the_header_says_what_it_left_out() -> None:
    items: list[Any] = [{"a": n} for n in range(HEAD_ITEMS)] + [{"a": 1, "=late": [2]}, 7]
    rows = records(items)
    assert [row[LEFT_OUT] for row in rows[-3:]] == ["", '{"=late": [2]}', '{"(value)": 7}']
    assert LEFT_OUT not in records(items[:9])[0]
    wide = records([{f"f{n}": n for n in range(5_000)}])[0]
    assert (len(wide), len(json.loads(wide[LEFT_OUT]))) == (COLUMNS_MAX + 1, 4_000)
    assert records(items, ["=late", "a"])[-2] == {"'=late": "[2]", "a": "1"}


def test_some_of_them() -> None:
    some = [{"n": n, "even": "no" if n % 2 else "Yes"} for n in range(2_000)]

    def numbers(**choice: Any) -> list[Any]:
        return [item for item in chosen(some, **choice) if item is not PAUSE]

    assert numbers(field="even", contains="yes", fields=["n", "none"], offset=1, limit=2) == [{"n": 2}, {"n": 4}]
    assert numbers(offset=1_999) == [some[1_999]]
    assert list(chosen(some, contains="x")).count(PAUSE) == 4
    taken = iter(some)
    assert list(chosen(taken, limit=1)) == [some[0]]
    assert next(taken) == some[1]


def test_memory_stays_the_same() -> None:
    pieces = as_csv({"a": "x" * 1_000} for _ in range(30_000))
    assert max(map(len, pieces)) < 2**20 + 2**19
