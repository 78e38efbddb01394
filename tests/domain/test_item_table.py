"""Tables of items: any bytes give a table or an error; good files give exactly their contents."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crawler_lifecycle.domain import item_table as tables
from crawler_lifecycle.domain.item_table import (
    CELL_MAX,
    CELLS_MAX,
    COLUMNS_MAX,
    DIGITS,
    NAME_MAX,
    VALUE,
    ItemTable,
    item_table,
)
from crawler_lifecycle.runner.item_files import is_items
from crawler_lifecycle.runner.item_reader import Feed, SkippedData, read_items

ROWS_MAX = 200
KINDS = ("jsonl", "json", "csv", "tsv")
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
objects = st.dictionaries(st.text(max_size=8), values, max_size=5)


def table(name: str, data: bytes, offset: int = 0) -> ItemTable:
    skipped = SkippedData()
    found = item_table(read_items(Feed(name), [data], skipped, DIGITS), offset, ROWS_MAX)
    return replace(found, notes=[*found.notes, *skipped.sentences()])


def names(found: ItemTable) -> list[str]:
    return [column.name for column in found.columns]


def column(found: ItemTable, name: str) -> list[str | None]:
    place = names(found).index(name)
    return [row[place] for row in found.rows]


def is_sound(found: ItemTable) -> None:
    """Check what holds for any bytes: bounds, and texts that any page and any terminal can show."""
    assert len(found.rows) <= ROWS_MAX
    assert len(found.columns) <= COLUMNS_MAX
    assert [one.filled for one in found.columns] == sorted(
        (one.filled for one in found.columns), reverse=True
    )
    texts = [
        *names(found),
        *found.notes,
        *(cell for row in found.rows for cell in row if cell is not None),
    ]
    for text in texts:
        text.encode()  # no lone surrogates
        assert len(text) <= max(CELL_MAX, NAME_MAX)
        assert not any(ord(sign) < 32 and sign not in "\t\n" for sign in text)
    assert all(len(row) == len(found.columns) for row in found.rows)
    assert found.total is None or found.total >= len(found.rows)


@given(st.sampled_from(KINDS), st.binary(max_size=300))
@example("csv", b'"a\nb')
@example("json", b"[1,]")
@example("jsonl", b"\xff\xfe\x00")
def test_of_any_bytes_there_is_a_table_or_a_sentence(kind: str, data: bytes) -> None:
    is_sound(table(f"items.{kind}", data))


@given(st.sampled_from(KINDS), st.text(st.sampled_from('{}[]",:;\\\n\r\t a1é\ud800'), max_size=60))
def test_of_what_looks_like_items(kind: str, text: str) -> None:
    is_sound(table(f"items.{kind}", text.encode("utf-8", "surrogatepass")))


@given(
    st.lists(objects, min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "utf-8", "utf-16"]),
)
def test_all_of_a_whole_file_is_shown(
    items: list[dict[str, Any]], lines: bool, escaped: bool, mark: str
) -> None:
    text = "\n".join(json.dumps(one, ensure_ascii=escaped) for one in items)
    if not lines:
        text = json.dumps(items, ensure_ascii=escaped, indent=1)
    encoding = {"": "utf-8", "utf-8": "utf-8-sig"}.get(mark, mark)
    found = table("items.jsonl" if lines else "items.json", text.encode(encoding, "replace"))
    is_sound(found)
    assert (found.total, len(found.rows)) == (len(items), len(items))
    shown = {name for one in items for name in one}
    assert len(found.columns) + found.columns_left_out == len(shown)
    for name in shown:
        if name and name.isascii() and name.isprintable():
            plain = [one.get(name) for one in items]
            for value, cell in zip(plain, column(found, name), strict=True):
                if isinstance(value, str) and value.isascii() and value.isprintable():
                    assert cell == value
                if value is None:
                    assert cell is None


@given(
    st.lists(
        st.lists(
            st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=5),
            min_size=2,
            max_size=2,
        )
    )
)
def test_csv_with_whatever_stands_in_its_cells(records: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["a", "b"], *records])
    found = table("items.csv", text.getvalue().encode())
    is_sound(found)
    assert found.total == len(records)
    for place, name in enumerate("ab"):
        if name in names(found):
            assert column(found, name) == [record[place] or None for record in records[:ROWS_MAX]]


DEEP = b"[" * 100_000


@pytest.mark.parametrize(("name", "data", "said"), [
    ("a.jsonl", b'{"a": "' + b"x" * 9_000_000, "1 items were longer"),
    ("a.csv", b'a,b\n"' + b"x" * 200_000, "an unclosed quotation mark"),
    ("a.json", DEEP, "1 lines were not JSON (a.json: line 1: too many levels"),
    ("a.jsonl", b'{"a": 1}\n{"a": 2', "1 last lines were incomplete"),
    ("a.jsonl", b'{"a": 1, "a": 2}\n', "twice; the last value"),
    ("a.jsonl", b'{"a": "\xe9"}\n', "Windows-1252"),
    ("a.json", b'[{"a": 1}, no, {"a": 2}]', "the rest of this line is left out"),
    ("a.jsonl", b'{"a": 1}\nno\nnor\n', "2 lines were not JSON"),
], ids=range(8))  # fmt: skip
def test_what_is_odd_is_said(name: str, data: bytes, said: str) -> None:
    found = table(name, data)
    is_sound(found)
    assert any(said in note for note in found.notes), found.notes


@pytest.mark.parametrize(("data", "cells"), [
    (b'{"a": "\xc3\xa4\xc3\xb6 \xff"}\n', ["äö \ufffd"]),
    ('{"a": "Zürich, Köln"}\n'.encode("cp1252"), ["Zürich, Köln"]),
    ('{"a": "ä"}\n'.encode("utf-16"), ["ä"]),
    ('{"a": "ä"}\n'.encode("utf-8-sig"), ["ä"]),
    ('{"a": "\ufffd"}\n'.encode(), ["\ufffd"]),
], ids=range(5))  # fmt: skip
def test_encodings(data: bytes, cells: list[str]) -> None:
    assert column(table("a.json", data), "a") == cells


def test_numbers_keep_their_digits_and_all_else_is_text() -> None:
    big = "9" * 250
    line = '{"n": %s, "f": 1.10, "e": 1e999, "x": NaN, "s": "a\\u0000\\u001b[31m", "u": "\\ud800", '
    line += '"l": [1.50, {"k": null}]}'
    found = table("a.jsonl", (line % big).encode() + b"\n17\n")
    assert dict(zip(names(found), found.rows[0], strict=True)) == {
        "n": big, "f": "1.10", "e": "1e999", "x": "NaN", "s": "a␀␛[31m", "u": "?", "l": '[1.50, {"k": null}]',
        VALUE: None,
    }  # fmt: skip
    assert column(found, VALUE)[1] == "17"
    huge = table("a.jsonl", b'{"n": ' + b"9" * 100_000 + b"}\n")
    assert huge.rows[0][0] == "9" * (CELL_MAX - 1) + "…"


def test_columns_that_most_items_fill_come_first() -> None:
    items = [{"rare": 1} if n == 0 else {"empty": "", "often": n, f"own{n}": n} for n in range(400)]
    found = table("a.jsonl", "".join(json.dumps(one) + "\n" for one in items).encode())
    assert [(one.name, one.filled) for one in found.columns[:2]] == [("often", 199), ("rare", 1)]
    assert (found.total, len(found.rows), found.columns_left_out) == (
        400,
        200,
        199 + 3 - COLUMNS_MAX,
    )


@pytest.mark.parametrize(
    ("end", "total"), [(b'{"a": 2', 300), (b'{"a": 2}', 301), (b'{"a": 2\n', 300), (b"\n", 300)]
)
def test_a_line_that_is_being_written_does_not_count(end: bytes, total: int) -> None:
    found = table("a.jsonl", b'{"a": 1}\n' * 300 + end)
    assert (found.total, any("incomplete" in note for note in found.notes)) == (
        total,
        end == b'{"a": 2',
    )


def test_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b'{"a": 1}\n' * 450
    pages = [table("a.jsonl", data, offset) for offset in (0, 200, 400, 450, 900)]
    assert [(one.offset, len(one.rows), one.next, one.total) for one in pages] == [
        (0, 200, 200, 450), (200, 200, 400, 450), (400, 50, None, 450), (450, 0, None, 450), (450, 0, None, 450),
    ]  # fmt: skip
    monkeypatch.setattr(tables, "COUNT_MAX", 100)
    assert (table("a.jsonl", data).next, table("a.jsonl", data).total) == (200, None)


def test_a_page_of_very_wide_items_ends_early() -> None:
    wide = json.dumps(dict.fromkeys(map(str, range(CELLS_MAX // 2)), "x")).encode() + b"\n"
    found = table("a.jsonl", wide * 5)
    assert (len(found.rows), found.next, found.total, found.columns_left_out) == (
        2,
        2,
        5,
        CELLS_MAX // 2 - COLUMNS_MAX,
    )


def test_a_page_of_very_long_names_ends_early() -> None:
    name = "x" * CELL_MAX * (CELLS_MAX // 2)
    found = item_table(({f"{number}{name}": 1} for number in range(200)), 0, ROWS_MAX)
    assert (len(found.rows), found.next, found.total) == (2, 2, 200)


def test_names_of_files() -> None:
    assert [name for name in ("items.jl", "A.JSON", "a.csv.gz", "a.txt", "csv", "x/feed.ndjson") if is_items(name)] == [
        "items.jl", "A.JSON", "a.csv.gz", "x/feed.ndjson",
    ]  # fmt: skip
