"""Items of feeds: exactly what was written, however the bytes are split; anything else is counted
and explained.
"""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.items import matching, plain
from crawler_lifecycle.runner import item_reader as items
from crawler_lifecycle.runner.item_files import feeds
from crawler_lifecycle.runner.item_reader import (
    MENDED,
    NO_JSON,
    TOO_LONG,
    TOO_WIDE,
    TORN,
    UNREADABLE,
    Feed,
    SkippedData,
    read_items,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
OBJECTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)


def read(name: str, data: bytes, cut: int = 1 << 20) -> tuple[list[Any], Counter[str]]:
    skipped = SkippedData()
    pieces = (data[at : at + cut] for at in range(0, len(data), cut))
    return list(read_items(Feed(name), pieces, skipped)), skipped


@given(
    st.lists(OBJECTS),
    st.sampled_from(["jsonl", "json"]),
    st.integers(1, 50),
    st.sampled_from(["utf-8", "utf-16"]),
)
def test_what_was_written_is_read_however_it_is_cut(
    found: list[dict[str, Any]], kind: str, cut: int, encoding: str
) -> None:
    text = (
        "".join(json.dumps(one) + "\n" for one in found)
        if kind == "jsonl"
        else json.dumps(found, indent=1)
    )
    assert read(f"items.{kind}", text.encode(encoding), cut) == (found, Counter())


def test_numbers_that_json_does_not_have_are_nothing() -> None:
    assert read("items.jsonl", b'{"a": Infinity, "b": -Infinity, "c": NaN}\n')[0] == [
        {"a": None, "b": None, "c": None}
    ]


def test_long_values_end_nothing() -> None:
    """Python has limits for whole numbers and for CSV fields."""
    number, text = "9" * 5_000, "x" * 200_000
    assert read("items.json", f"[{number}, -1]".encode()) == ([number, -1], Counter())
    assert read("items.csv", f"a\n{text}\n1\n".encode()) == ([{"a": text}, {"a": "1"}], Counter())


@given(
    st.lists(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1),
            min_size=2,
            max_size=2,
        )
    )
)
def test_records_of_csv(rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["a", "b"], *rows])
    assert read("items.csv", text.getvalue().encode(), 7) == (
        [dict(zip("ab", row, strict=True)) for row in rows],
        {},
    )


@given(
    st.sampled_from(["jsonl", "json", "csv", "tsv"]), st.binary(max_size=300), st.integers(1, 40)
)
def test_any_bytes_have_an_end(kind: str, data: bytes, cut: int) -> None:
    found, skipped = read(f"x.{kind}", data, cut)
    assert len(found) <= len(data)
    assert len(skipped.sentences()) == len(skipped)


@pytest.mark.parametrize(("name", "data", "found", "skipped"), [
    ("a.jsonl", b'{"a": 1}\nno\n\n{"a": 2}\n[1', [{"a": 1}, {"a": 2}], {NO_JSON: 1, TORN: 1}),
    ("a.jsonl", b'{"a": NaN, "b": "\xff"}\r\n7\n', [{"a": None, "b": "ÿ"}, 7], {MENDED: 1}),
    ("a.jsonl", b'{"a": "' + b"x" * 300 + b'"}\n{"a": 1}\n', [{"a": 1}], {TOO_LONG: 1}),
    ("a.jsonl", b"[" * 100_000 + b"\n", [], {TOO_LONG: 1}),
    ("a.json", b'{"a": 1} {"a": 2}', [{"a": 1}, {"a": 2}], {}),
    ("a.json", b'[{"a": 1}, {"a": ', [{"a": 1}], {TORN: 1}),
    ("a.json", b"[12345, 1" + b"0" * 100 + b"]", [12345, 10**100], {}),
    ("a.json", b'[{"a": "' + b"x" * 500, [], {TOO_LONG: 1}),
    ("a.csv", b'a;b\n"1;\n3";4\n5;;6\n', [{"a": "1;\n3", "b": "4"}, {"a": "5", "(column 3)": "6"}], {}),
    ("a.csv", "a\nß\n".encode("cp1252"), [{"a": "ß"}], {MENDED: 1}),
    ("a.csv", b"", [], {}),
], ids=range(11))  # fmt: skip
def test_what_is_odd(
    name: str,
    data: bytes,
    found: list[Any],
    skipped: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(items, "ITEM_MAX", 200)
    monkeypatch.setattr(items, "_PART", 16)
    assert read(name, data, 5) == (found, skipped)


@given(st.lists(OBJECTS, min_size=1), st.sampled_from(["jsonl", "json"]))
def test_a_long_item_is_decoded_value_by_value_to_the_same(
    found: list[dict[str, Any]], kind: str
) -> None:
    text = (
        "".join(json.dumps(one) + "\n" for one in found) if kind == "jsonl" else json.dumps(found)
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(items, "_LONG", 0)
        assert read(f"items.{kind}", text.encode()) == (found, Counter())
        assert read("items.jsonl", b'{"a": ' + b"9" * 5_000 + b"}\n")[0] == [{"a": "9" * 5_000}]
        assert read("items.jsonl", json.dumps(found[0])[:-1].encode() + b"\n")[1][NO_JSON] == 1


WIDE = {"a": [0] * 50, "b": {str(n): {} for n in range(50)}}
NARROW: list[Any] = [{"a": list(range(97))}, 1]


@pytest.mark.parametrize(("name", "text", "found", "skipped", "note"), [
    ("a.jsonl", f"{json.dumps(WIDE)}\n{json.dumps(NARROW[0])}\n1\n", NARROW, {TOO_WIDE: 1}, ""),
    ("a.json", json.dumps([*NARROW, WIDE, 1]), NARROW, {TOO_WIDE: 1}, "line 1: the rest of this line is left out"),
    ("a.csv", f"a,b\n1,2\n{',' * 101}\n3,4\n", 
     [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}], {TOO_WIDE: 1}, "a.csv: line 3"),
    ("a.csv", f"{',' * 101}\n3,4\n", [], {TOO_WIDE: 1, UNREADABLE: 1}, "more than 100 names of columns"),
], ids=range(4))  # fmt: skip
def test_an_item_has_a_largest_number_of_values(
    name: str,
    text: str,
    found: list[Any],
    skipped: dict[str, int],
    note: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(items, "VALUES_MAX", 100)
    monkeypatch.setattr(items, "_LONG", 30)
    monkeypatch.setattr(items, "_PART", 16)
    monkeypatch.setitem(items._SENTENCES, TOO_WIDE, "{0} items")
    counted = SkippedData()
    assert list(read_items(Feed(name), [text.encode()], counted)) == found
    assert counted == skipped
    assert note in "".join(counted.sentences())


@pytest.mark.parametrize(
    ("endless", "skipped"),
    [(b'","\n', {TOO_LONG: 1}), (b"x\n", {TOO_LONG: 1}), (b'x,"""\n""",y\n', {})],
)
def test_a_record_of_csv_that_never_ends_is_read_line_by_line(
    endless: bytes, skipped: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quotes join lines, so a limit for lines does not limit memory.

    Keeping all of them would take 0.8 MB.
    """
    monkeypatch.setattr(items, "ITEM_MAX", 5_000)
    monkeypatch.setattr(items, "_IN_VAIN_MAX", 20_000)
    told = SkippedData()
    pieces = (endless * 1_000 for _ in range(12))
    found, peak = 0, 0
    tracemalloc.start()
    try:
        found = sum(1 for _ in read_items(Feed("items.csv"), chain([b'a,b\n1,2\n"'], pieces), told))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found > 9_000, told, peak < 2**19) == (True, skipped, True)


def test_no_more_is_read_than_is_asked_for() -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b'{"a": 1}\n' * 1000

    reading = read_items(Feed("items.jsonl"), endless(), SkippedData())
    assert [next(reading) for _ in range(5)] == [{"a": 1}] * 5
    assert taken < 20


@pytest.mark.parametrize(("names", "found"), [
    (["task-0/items.jsonl", "task-0/items.csv", "task-0/log.json"], ["task-0/items.jsonl"]),
    (["task-0/a.csv", "task-0/b/c.JSON", "task-1/items.jl"], ["task-0/a.csv", "task-0/b/c.JSON", "task-1/items.jl"]),
    (["task-0/items.csv", "task-0/items.jl", "task-0/items_b.csv"], ["task-0/items.jl", "task-0/items_b.csv"]),
    (["task-0/skipped.jsonl", "task-0/pages/1.json", "task-0/a.xlsx", "task-0/readme"], []),
    (["task-0/a.jsonl.gz", "task-0/a.xml", "task-0/b.ndgeojson", "task-0/1/2/3/c.json"],
     ["task-0/a.jsonl.gz", "task-0/b.ndgeojson"]),
    (["task-0/items.csv\n", "task-0/items.jl\n", "task-0/csv"], []),
], ids=range(6))  # fmt: skip
def test_feeds_of_a_run(names: list[str], found: list[str]) -> None:
    assert [feed.name for feed in feeds(names, lambda name: b"")] == found


@pytest.mark.parametrize(("field", "contains", "found"), [
    ("a", None, [0, 1, 3]),
    ("a", "TEE", [0]),
    (None, "tee", [0, 2]),
    (None, "9", [1, 4]),
    ("b", "x", []),
    (None, None, [0, 1, 2, 3, 4]),
], ids=range(6))  # fmt: skip
def test_a_filter_by_field_and_text(
    field: str | None, contains: str | None, found: list[int]
) -> None:
    some = [{"a": "Green Tee"}, {"a": 19}, {"b": ["tee"]}, {"a": False, "b": None}, 9]
    fits = matching(field, contains)
    assert [n for n, item in enumerate(some) if fits(item)] == found


def test_json_that_everybody_reads() -> None:
    deep: Any = float("inf")
    for _ in range(5_000):
        deep = [deep]
    assert json.loads(plain({"a": float("nan"), "b": [float("-inf"), 1.5]})) == {
        "a": None,
        "b": [None, 1.5],
    }
    assert "…" in plain(deep)
