"""Items as JSON Lines and CSV: nothing is lost, and no cell is a formula for a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.item_export import (
    COLUMNS_MAX,
    HEAD_ITEMS,
    LEFT_OUT,
    PAUSE,
    as_csv,
    as_jsonl,
    chosen,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)
ITEMS = st.lists(
    st.dictionaries(TEXTS.filter(bool), TEXTS | st.integers() | st.none(), max_size=4), max_size=6
)


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
                assert cell.removeprefix("'") == ("" if value is None else str(value)).removeprefix(
                    "'"
                )


@pytest.mark.parametrize(("text", "cell"), [
    ("=1+1", "'=1+1"), ("@x", "'@x"), ("-2+3", "'-2+3"), ("+49 30", "'+49 30"), ("\t=1", "'\t=1"),
    ("\uff1d1", "'\uff1d1"),
    ("-5", "-5"), ("+1,200.50", "+1,200.50"), (-1e-7, "-1e-07"), ("a=1", "a=1"), (float("nan"), "null"), (True, "true"),
    ([1, {"a": None}], '[1, {"a": null}]'), (None, ""), ("\ud800", "?"),
])  # fmt: skip
def test_cells(text: object, cell: str) -> None:
    assert records([{"a": text, "b": 1}]) == [{"a": cell, "b": "1"}]


def _by_python(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode(), newline="")))


def _by_arrow(data: bytes) -> list[list[str]]:
    several_lines = pyarrow.csv.ParseOptions(newlines_in_values=True)
    as_texts = pyarrow.csv.ConvertOptions(
        column_types={"a": pyarrow.string(), "b": pyarrow.string()}
    )
    table = pyarrow.csv.read_csv(
        io.BytesIO(data), parse_options=several_lines, convert_options=as_texts
    )
    return [table.column_names, *(list(row.values()) for row in table.to_pylist())]


def _by_sqlite(data: bytes) -> list[list[str]]:
    program = shutil.which("sqlite3") or pytest.skip("needs the program sqlite3")
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        file.write(data)
        file.flush()
        words = [
            program,
            "-json",
            ":memory:",
            f".import --csv {file.name} items",
            "SELECT * FROM items",
        ]
        rows = json.loads(subprocess.run(words, check=True, capture_output=True, timeout=60).stdout)
    return [list(rows[0]), *(list(row.values()) for row in rows)]


@pytest.mark.parametrize("read", [_by_python, _by_arrow, _by_sqlite])
def test_no_text_leaves_its_cell(read: Callable[[bytes], list[list[str]]]) -> None:
    """Python before 3.13 does not quote carriage returns, at which all these readers end a row."""
    breaks = ["\r", "\n", "\r\n", '"', '"\r', ",", ";", "|", "\t", "\u2028", "\x85", "\x0b"]
    texts = [f"x{sign}=1+1" for sign in breaks] + ["\ufeff=1+1", "\r=1+1", "|cmd", "5", "-3.5"]
    data = b"".join(as_csv({"a": text, "b": "end"} for text in texts))
    rows = read(data)
    assert rows[0] == ["a", "b"]
    assert [row[0].removeprefix("'") for row in rows[1:]] == texts
    assert {row[1] for row in rows[1:]} == {"end"}
    assert not [
        cell for row in rows for cell in row if cell.lstrip("\ufeff").startswith(("=", "@", "\r"))
    ]
    assert data.startswith(b"a,b\n")
    assert data.endswith(b"\n5,end\n-3.5,end\n"), "numbers stay numbers, and rows end as before"


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

    assert numbers(field="even", contains="yes", fields=["n", "none"], offset=1, limit=2) == [
        {"n": 2},
        {"n": 4},
    ]
    assert numbers(offset=1_999) == [some[1_999]]
    assert list(chosen(some, contains="x")).count(PAUSE) == 4
    taken = iter(some)
    assert list(chosen(taken, limit=1)) == [some[0]]
    assert next(taken) == some[1]


def test_memory_stays_the_same() -> None:
    pieces = as_csv({"a": "x" * 1_000} for _ in range(30_000))
    assert max(map(len, pieces)) < 2**20 + 2**19
