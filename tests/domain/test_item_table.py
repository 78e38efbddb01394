"""Tables of items: of whatever bytes there is one, or a sentence; of good files exactly what is in them."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crawler_lifecycle.domain.item_table import (
    CELL_MAX,
    COLUMNS_MAX,
    LINE,
    NAME_MAX,
    READ_MAX,
    ROWS_MAX,
    VALUE,
    ItemTable,
    item_table,
)
from crawler_lifecycle.domain.items import is_items

KINDS = ("jsonl", "json", "csv", "tsv")
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
objects = st.dictionaries(st.text(max_size=8), values, max_size=5)


def table(name: str, data: bytes, size: int | None = None) -> ItemTable:
    return item_table(name, data, len(data) if size is None else size)


def names(found: ItemTable) -> list[str]:
    return [column.name for column in found.columns]


def column(found: ItemTable, name: str) -> list[str | None]:
    place = names(found).index(name)
    return [row[place] for row in found.rows]


def is_sound(found: ItemTable) -> None:
    """What holds whatever the bytes were: bounds, and texts that any page and any terminal takes."""
    assert len(found.rows) <= ROWS_MAX
    assert len(found.columns) <= COLUMNS_MAX
    assert [one.filled for one in found.columns] == sorted((one.filled for one in found.columns), reverse=True)
    texts = [*names(found), *found.notes, *(cell for row in found.rows for cell in row if cell is not None)]
    for text in texts:
        text.encode()  # no half characters
        assert len(text) <= max(CELL_MAX, NAME_MAX)
        assert not any(ord(sign) < 32 and sign not in "\t\n" for sign in text)
    assert all(len(row) == len(found.columns) for row in found.rows)
    assert found.total is None or found.total >= len(found.rows)


@given(st.sampled_from(KINDS), st.binary(max_size=300), st.integers(0, 10**12))
@example("csv", b'"a\nb', 0)
@example("json", b"[1,]", 0)
@example("jsonl", b"\xff\xfe\x00", 10)
def test_of_any_bytes_there_is_a_table_or_a_sentence(kind: str, data: bytes, more: int) -> None:
    is_sound(table(f"items.{kind}", data, len(data) + more))


@given(st.sampled_from(KINDS), st.text(st.sampled_from('{}[]",:;\\\n\r\t a1é\ud800'), max_size=60))
def test_of_what_looks_like_items(kind: str, text: str) -> None:
    is_sound(table(f"items.{kind}", text.encode("utf-8", "surrogatepass")))


@given(
    st.lists(objects, min_size=1, max_size=4), st.booleans(), st.booleans(), st.sampled_from(["", "utf-8", "utf-16"])
)
def test_all_of_a_whole_file_is_shown(items: list[dict[str, Any]], lines: bool, escaped: bool, mark: str) -> None:
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


@given(st.lists(objects, min_size=1, max_size=6), st.integers(0, 400))
def test_a_beginning_shows_whole_items_only(items: list[dict[str, Any]], place: int) -> None:
    whole = "".join(json.dumps(one) + "\n" for one in items).encode()
    found, all_of_it = table("a.jsonl", whole[:place], len(whole)), table("a.jsonl", whole)
    is_sound(found)
    assert len(found.rows) == (whole[:place].count(b"\n") if place < len(whole) else len(items))
    assert found.total is None or place >= len(whole)
    for name in names(found):
        assert column(found, name) == column(all_of_it, name)[: len(found.rows)]


@given(
    st.lists(st.lists(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=5), min_size=2, max_size=2))
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
BIG = b'{"a": "' + b"x" * READ_MAX


@pytest.mark.parametrize(("name", "data", "size", "said"), [
    ("a.jsonl", BIG, 2**30, "first line is longer"),
    ("a.json", b"[" + BIG, 2**30, "first item is longer"),
    ("a.csv", b"a," * READ_MAX, 2**30, "first line is longer"),
    ("a.csv", b'a,b\n"' + b"x" * 200_000, None, "a quote without its end"),
    ("a.json", DEEP, None, "no JSON: maximum recursion depth"),
    ("a.jsonl", b'{"a": 1}\n{"a": 2', None, "its last line is not whole"),
    ("a.jsonl", b'{"a": 1, "a": 2}\n', None, "twice; the last one"),
    ("a.jsonl", b'{"a": "\xe9"}\n', None, "Windows-1252"),
    ("a.json", b'[{"a": 1} {"a": 2}]', None, "no JSON"),
    ("a.json", b'{"a": 1,', None, "no JSON"),
], ids=range(10))  # fmt: skip
def test_what_is_odd_is_said(name: str, data: bytes, size: int | None, said: str) -> None:
    found = table(name, data, size)
    is_sound(found)
    assert any(said in note for note in found.notes), found.notes


@pytest.mark.parametrize(("data", "cells", "said"), [
    ("[{\"a\": \"äöü\"}, {\"a\": \"ß".encode()[:-1], ["äöü"], "no JSON"),
    (b'{"a": "\xc3\xa4\xc3\xb6 \xff"}\n', ["äö \ufffd"], "some of its bytes are no UTF-8"),
    ('{"a": "Zürich, Köln"}\n'.encode("cp1252"), ["Zürich, Köln"], "Windows-1252"),
    ('{"a": "ä"}\n'.encode("utf-16"), ["ä"], "UTF-16"),
    ('{"a": "ä"}\n'.encode("utf-8-sig"), ["ä"], None),
    ('{"a": "\ufffd"}\n'.encode(), ["\ufffd"], None),
], ids=range(6))  # fmt: skip
def test_encodings(data: bytes, cells: list[str], said: str | None) -> None:
    found = table("a.json", data)
    assert column(found, "a") == cells
    assert any(said in note for note in found.notes) if said else found.notes == []


def test_numbers_keep_their_digits_and_all_else_is_text() -> None:
    big = "9" * 250
    line = '{"n": %s, "f": 1.10, "e": 1e999, "x": NaN, "s": "a\\u0000\\u001b[31m", "u": "\\ud800", '
    line += '"l": [1.50, {"k": null}]}'
    found = table("a.jsonl", (line % big).encode() + b"\n17\n" + DEEP + b"\n")
    assert dict(zip(names(found), found.rows[0], strict=True)) == {
        "n": big, "f": "1.10", "e": "1e999", "x": "NaN", "s": "a␀␛[31m", "u": "?", "l": '[1.50, {"k": null}]',
        VALUE: None, LINE: None,
    }  # fmt: skip
    assert (column(found, VALUE)[1], len(str(column(found, LINE)[2]))) == ("17", CELL_MAX)
    huge = table("a.jsonl", b'{"n": ' + b"9" * 100_000 + b"}\n")
    assert huge.rows[0][0] == "9" * (CELL_MAX - 1) + "…"


def test_columns_that_most_items_fill_come_first() -> None:
    items = [{"rare": 1} if n == 0 else {"empty": "", "often": n, f"own{n}": n} for n in range(400)]
    found = table("a.jsonl", "".join(json.dumps(one) + "\n" for one in items).encode())
    assert [(one.name, one.filled) for one in found.columns[:2]] == [("often", 199), ("rare", 1)]
    assert (found.total, len(found.rows), found.columns_left_out) == (400, 200, 199 + 3 - COLUMNS_MAX)


@pytest.mark.parametrize(("end", "total"), [(b'{"a": 2', 300), (b'{"a": 2}', 301), (b'{"a": 2\n', 301), (b"\n", 300)])
def test_a_line_that_is_being_written_does_not_count(end: bytes, total: int) -> None:
    found = table("a.jsonl", b'{"a": 1}\n' * 300 + end)
    assert (found.total, any("not whole" in note for note in found.notes)) == (total, end == b'{"a": 2')


def test_how_many_there_are_about() -> None:
    line = b'{"a": 1}\n'
    found = table("a.jsonl", line * 1000, len(line) * 10**6)
    assert (found.total, found.about) == (None, 10**6)
    found = table("a.json", b"[" + b"1," * 300_000 + b"1]")
    assert found.total is None
    assert found.about is not None
    assert abs(found.about - 300_001) < 10
    assert table("a.csv", b"a\n" + b"1\n" * 900).total == 900


def test_names_of_files() -> None:
    assert [name for name in ("items.jl", "A.JSON", "a.csv.gz", "a.txt", "csv", "x/feed.ndjson") if is_items(name)] == [
        "items.jl", "A.JSON", "x/feed.ndjson",
    ]  # fmt: skip
