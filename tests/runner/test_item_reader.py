"""The reader of items: files of people's programs are read as intended, and what cannot be read is
named.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.item_table import DIGITS
from crawler_lifecycle.runner import item_reader
from crawler_lifecycle.runner.feeds import Feeds
from crawler_lifecycle.runner.item_files import (
    DECLARED,
    NO_FEEDS,
    declared,
    feeds,
    items_of,
    no_feeds,
)
from crawler_lifecycle.runner.item_reader import Feed, SkippedData, read_items

A, B, C = {"a": 1}, {"a": 2}, {"a": 3}


def read(feed: str | Feed, data: str | bytes) -> tuple[list[Any], list[str]]:
    feed = Feed(feed) if isinstance(feed, str) else feed
    raw = data.encode() if isinstance(data, str) else data
    skipped = SkippedData()
    return list(read_items(feed, [raw], skipped)), skipped.sentences()


@pytest.mark.parametrize(("name", "text"), [
    ("a.json", '[{"a": 1},{"a": 2}]\n[{"a": 3}]\n'),
    ("a.json", '[{"a": 1},{"a": 2}][{"a": 3}]'),
    ("a.json", '[{"a": 1}][{"a": 2},\n{"a": 3}]'),
    ("a.json", '[{"a": 1}]\n[{"a": 2}\n]\n[\n{"a": 3}]'),
    ("a.json", '{"a": 1}\n{"a": 2}\n{"a": 3}\n'),
    ("a.json", '{"a": 1},\n{"a": 2},\n{"a": 3},\n'),
    ("a.json", '[\n{"a": 1},\n,\n{"a": 2},{"a": 3},\n]'),
    ("a.jsonl", '[\n{"a": 1},\n{"a": 2}\n]\n[\n{"a": 3}\n]\n'),
    ("a.jsonl", '[{"a": 1}, \n {"a": 2}, \n {"a": 3}]'),
    ("a.jsonl", "\n".join(json.dumps(one, indent=2) for one in (A, B, C))),
    ("a.jsonl", '{"a": 1} {"a": 2}\n\n{"a": 3}'),
    ("a.jsonl", '\x1e{"a": 1}\n\x1e{"a": 2}\n\x1e{"a": 3}\n'),
    ("a.csv", '{"a": 1}\n{"a": 2}\n{"a": 3}\n'),
    ("a.ndgeojson", '{"a": 1}\n{"a": 2}\n{"a": 3}\n'),
    ("a.geojsonl", '{"a": 1}\n{"a": 2}\n{"a": 3}\n'),
], ids=range(15))  # fmt: skip
def test_json_of_any_shape(name: str, text: str) -> None:
    assert read(name, text) == ([A, B, C], [])
    packed = gzip.compress(text[:9].encode()) + gzip.compress(text[9:].encode()) + b"\0" * 512
    assert read(f"{name}.gz", packed) == ([A, B, C], [])


@pytest.mark.parametrize("delimiter", list(",;\t|^~:\x1f"))
@pytest.mark.parametrize("text", ["two\nlines", "a\r\n\r\nb", "x" + "\n" * 15])
def test_a_delimiter_is_found_beside_lines_in_values(delimiter: str, text: str) -> None:
    """The record after the header is used, not the line."""
    table = io.StringIO()
    csv.writer(table, delimiter=delimiter).writerows([["title", "text"], [text, "{"], ["b", "c"]])
    assert read("a.csv", table.getvalue()) == (
        [{"title": text, "text": "{"}, {"title": "b", "text": "c"}],
        [],
    )


@pytest.mark.parametrize(("text", "items", "told"), [
    ('{"a": 1}\n{"a": 2\n{"a": 3}\n', [A, C], "not JSON (a.jsonl: line 2: Expecting ',' delimiter)"),
    ('{"a": 1}\n{"a": "x\n{"a": 3}\n', [A, C], "not JSON (a.jsonl: line 2: Expecting ',' delimiter)"),
    ('[\n  {\n    "a": no,\n    "b": {\n      "c": [\n        1\n      ]\n    }\n  },\n  {\n    "a": 3\n  }\n]', [C],
     "1 lines were not JSON (a.jsonl: line 2: Expecting value, the rest of this line is left out)"),
    ('[{"a": 1},\n {"a": no},\n {"a": 3}]', [A, C], "line 2: Expecting value, the rest of this line is left out"),
    ('{"a": 1}\n2026-11-28 INFO: done\n{"a": 3}\n', [A, C], "not JSON (a.jsonl: line 2: no JSON)"),
    ('{"a": 1}\n{"a": 3}\n{"a":', [A, C], "incomplete: they are being written, or their crawler died (a.jsonl: line 3"),
    ('[\n{"a": 1},\n{"a": 3},\n{"a": [', [A, C], "incomplete"),
], ids=range(7))  # fmt: skip
def test_what_is_no_json_is_named_and_hides_nothing_else(
    text: str, items: list[Any], told: str
) -> None:
    found, notes = read("a.jsonl", text)
    assert (found, len(notes)) == (items, 1)
    assert told in notes[0]


def _rows(*rows: str) -> str:
    return "name,size,n\n" + "".join(f"{row}\n" for row in rows)


@pytest.mark.parametrize(("name", "text", "rows"), [
    ("a.csv", _rows('TV,32" wide,1', 'TV,"40" wide,2', 'TV,7",3'), [["TV", '32" wide', "1"], ["TV", '"40" wide', "2"],
     ["TV", '7"', "3"]]),
    ("a.csv", _rows('TV,"32" set, black",1', 'TV,"24"",2', 'TV,"30"",3'), [["TV", '32" set, black', "1"],
     ["TV", '24"', "2"], ["TV", '30"', "3"]]),
    ("a.csv", _rows("TV,plain,1", 'TV,"24"",2'), [["TV", "plain", "1"], ["TV", '24"', "2"]]),
    ("a.csv", _rows('TV,"say ""hi"",\n\nbye",1', 'TV,"\\"x\\"",2'), [["TV", 'say "hi",\n\nbye', "1"],
     ["TV", '\\"x\\"', "2"]]),
    ("a.tsv", "name\tsize\n" + 'a\t1\n"b\t2\nc\t3\nd\t4\n"e\t5\nf\t6\n', [["a", "1"], ['"b', "2"], ["c", "3"],
     ["d", "4"], ['"e', "5"], ["f", "6"]]),
    ("a.csv", "name;size, m;n\na,b;c;\n\n'd';\"e;f\";3\n", [["a,b", "c"], ["'d'", "e;f", "3"]]),
    ("a.csv", "name^size\na^b\n", [["a", "b"]]),
    ("a.csv", '"name"~"size"~"n"\n"a~\nb"~"c"~"d"\n', [["a~\nb", "c", "d"]]),
    ("a.csv", "name\x01size\r\na\x01b\r\n", [["a", "b"]]),
    ("a.csv", "name\rone\rtwo", [["one"], ["two"]]),
    ("a.csv", "title\nhttp://x\n\"\"\n", [["http://x"], []]),
], ids=range(11))  # fmt: skip
def test_csv_as_people_write_it(name: str, text: str, rows: list[list[str]]) -> None:
    items, notes = read(name, text)
    assert ([list(one.values()) for one in items], notes) == (rows, [])


def test_the_entry_says_what_cannot_be_seen() -> None:
    assert read(Feed("a.txt", "csv", ":"), 'a:b\n1:"x\n')[0] == [{"a": "1", "b": '"x'}]
    assert read(Feed("a.csv", quote="none"), 'a,b\n"1","2"\n')[0] == [{"a": '"1"', "b": '"2"'}]
    assert read(Feed("data", "jsonl"), '{"a": 1}\n')[0] == [A]
    assert read(Feed("data"), "a;b\n1;2\n")[0] == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("piece", [1, 3, 100])
def test_utf_16_without_a_mark_is_read(encoding: str, piece: int) -> None:
    for name, text in (
        ("a.csv", "a:b\n1:é\n"),
        ("a.csv", "a\n1"),
        ("a.jsonl", '{"a": "é"}\n{"a": "€"}\n'),
    ):
        data, skipped = text.encode(encoding), SkippedData()
        parts = [data[at : at + piece] for at in range(0, len(data), piece)]
        assert list(read_items(Feed(name), parts, skipped)) == read(name, text)[0]
        assert not skipped


def test_the_indentation_in_an_empty_element_of_xml_is_no_value() -> None:
    text = "<items>\n  <item>\n    <tags>\n    </tags>\n    <a>\n      <value>x</value>\n      <value>\n      </value>"
    text += "\n    </a>\n    <b> </b>\n    <c>x\n</c>\n  </item>\n</items>"
    assert read("items.xml", text) == ([{"tags": "", "a": ["x", ""], "b": " ", "c": "x\n"}], [])


def test_a_declared_file_may_be_in_many_folders() -> None:
    path = "2026/11/28/2101/council.json"
    said = {"t/.crawl_items.jsonl": json.dumps({"files": "2026/*.json"}).encode()}
    assert [one.name for one in feeds([f"t/{path}", *said], said.__getitem__)] == [f"t/{path}"]
    said = {"t/.crawl_items.jsonl": b'{"format": "json"}'}
    assert feeds([f"t/{path}", *said], said.__getitem__) == []


def test_xml_of_scrapy() -> None:
    text = '<?xml version="1.0" encoding="utf-8"?>\n<items>\n<item><a>1 &amp; ü</a><b></b><c><value>x</value><value>y'
    text += "</value></c><d><e>2</e></d></item><item></item>\n</items>"
    items = [{"a": "1 & ü", "b": "", "c": ["x", "y"], "d": {"e": "2"}}, {}]
    assert read("items.xml", text) == (items, [])
    assert read("items.xml", text[:-12])[1] == [
        "1 last lines were incomplete: they are being written, or their crawler died "
        "(items.xml: the end of the root is missing)"
    ]
    for odd, told in (
        ("<urlset><url/></urlset>", "the root is <urlset>, not <items>"),
        (
            '<!DOCTYPE x [<!ENTITY a "b">]><items><item>&a;</item></items>',
            "document types are not supported",
        ),
        ("<items><item></b></items>", "no XML: mismatched tag: line 1"),
        ("<items><item>" + "<a>" * 200_000, "more than 100,000 values"),
    ):
        assert told in read("items.xml", odd)[1][0]
    assert read("items.jsonl", "<!doctype html><html>no")[1] != []


def test_a_packed_file_that_is_cut_or_damaged_is_told() -> None:
    packed = gzip.compress(b'{"a": 1}\n' * 9_000, 0)
    items, notes = read("items.jsonl.gz", packed[:-20])
    assert 8_990 < len(items) < 9_000
    assert "the end of the gzip file is missing" in "".join(notes)
    damaged = packed[:40_000] + b"\xff" * 100 + packed[40_100:]
    assert (
        "could not be read to their end (items.jsonl: byte " in read("items.jsonl", damaged)[1][-1]
    )
    assert read("items.jsonl", bz2.compress(b"1\n"))[0] == []


def test_a_packed_bomb_takes_little_memory_and_ends_a_pass(tmp_path: Path) -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    first, other = (bomb.compress(b" " * 2**20) + bomb.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    (tmp_path / "items.jsonl.gz").write_bytes(first + other * 599)
    found, began = Feeds(str(tmp_path)), time.process_time()
    tracemalloc.start()
    try:
        more = found.read_on()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (more, peak < 8 * 2**20, time.process_time() - began < 60) == (True, True, True)


@given(st.lists(st.lists(st.text("a,;\"\n\r'\t ", max_size=6), min_size=3, max_size=3)))
def test_csv_of_a_proper_writer_is_read_exactly(rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["a", "b", "c"], *rows])
    named = [{name: value for name, value in zip("abc", row, strict=True) if value} for row in rows]
    assert read("a.csv", text.getvalue()) == (named, [])


def test_files_that_are_named_are_items(tmp_path: Path) -> None:
    said = '{"files": "out/*", "format": "csv", "delimiter": ":"}\nno\n{"files": 5}\n'
    (tmp_path / "out").mkdir()
    for name, text in (("out/products", 'a:b\n1:""\n'), ("log.json", "[1, 2]"), (DECLARED, said)):
        (tmp_path / name).write_text(text)
    found = Feeds(str(tmp_path), ["b"])
    found.read_on()
    found.finish()
    assert (found.items, found.fields()) == (1, {"b": 0.0, "a": 1.0})
    names = ["task-0/log.json", f"task-0/{DECLARED}", "task-0/out/products", "task-1/log.json"]
    assert feeds(names, lambda name: said.encode()) == [
        Feed("task-0/out/products", "csv", ":"),
        Feed("task-1/log.json"),
    ]


def test_a_field_that_no_row_of_any_delimiter_fills_is_known(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text(
        "name;text;price\n" + "".join(f"a{n};x, y, z;\n" for n in range(50))
    )
    found = Feeds(str(tmp_path), ["price"])
    found.read_on()
    found.finish()
    assert (found.items, found.fields()) == (50, {"price": 0.0, "name": 1.0, "text": 1.0})


@pytest.mark.parametrize(("names", "counted", "said"), [
    ([], None, NO_FEEDS),
    (["task-0/skipped.jsonl", f"task-0/{DECLARED}"], 0, NO_FEEDS),
    (["task-0/a.dat", "task-0/b"], None, "no file is read as items, but these exist: task-0/a.dat, task-0/b;"),
    ([], 3, "3 items were counted, but there is no file with items"),
])  # fmt: skip
def test_a_run_without_feeds(names: list[str], counted: int | None, said: str) -> None:
    assert no_feeds(names, counted).startswith(said)


@pytest.mark.parametrize(("said", "why"), [
    (5, ": 5 is not allowed; give off, or some of files, format, delimiter, quote, key"),
    ({}, ": {} is not allowed"),
    ({"file": "x"}, ".file: unknown key; known: files, format, delimiter, quote, key"),
    ({"files": "../x"}, ".files: '../x' is not allowed; give a relative path"),
    ({"files": "/x"}, ".files: "),
    ({"format": "parquet"}, ".format: 'parquet' is not allowed; give one of jsonl"),
    ({"delimiter": "ab"}, ".delimiter: 'ab' is not allowed; give one ASCII character"),
    ({"quote": "'"}, '.quote: "\'" is not allowed; give none, or leave it out'),
    ({"key": 5}, ".key: 5 is not allowed; give the name of a field, or a list of 1 to 10 names"),
    ({"key": ""}, ".key: '' is not allowed"),
    ({"key": []}, ".key: [] is not allowed"),
    ({"key": ["id", " "]}, ".key: ['id', ' '] is not allowed"),
    ({"key": ["id"] * 11}, ".key: ['id', "),
    ({"key": {"id": 1}}, ".key: {'id': 1} is not allowed"),
    ({"key": "id", "files": None}, ".files: None is not allowed"),
])  # fmt: skip
def test_what_an_entry_may_not_say(said: object, why: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|unknown") as raised:
        declared(said)
    assert str(raised.value).startswith(why)


LINES = [
    *(
        '{"a": 1}',
        '{"a": [1',
        "2]}",
        '{"a": {"b": 2',
        '"c": 3}}',
        "[1",
        "2]",
        '{"a": 1},{"b": 2}',
        "",
        "7",
        "no",
    ),
    *(
        '{"a": "\\u001e"}',
        '{"a": "\x1e"}',
        '{"a": 1},"\\u001e",{"b": 2}',
        '{"a": 1},',
        '{"a": 1}\r',
        '[{"a": 1}]',
        "[",
    ),
]


@given(st.lists(st.sampled_from(LINES), max_size=30), st.sampled_from(["a.jsonl", "a.json"]))
def test_lines_that_are_read_together_are_those_that_are_read_alone(
    lines: list[str], name: str
) -> None:
    text = "\n".join(lines) + "\n{}"
    together = read(name, text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(item_reader._Json, "_objects", lambda self: [])
        assert read(name, text) == together


def test_whole_lines_are_decoded_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(self: Any, text: str, place: int = 0) -> Any:
        nonlocal calls
        calls += 1
        return decode(self, text, place)

    decode = item_reader.ItemDecoder.raw_decode
    monkeypatch.setattr(item_reader.ItemDecoder, "raw_decode", counted)
    for name, text in (
        ("a.jsonl", '{"a": [{"b": 1}, {}]}\n' * 1000),
        ("a.jsonl", '{"a": 1}\r\n' * 1000),
        ("a.json", "[\n" + '{"a": 1},\n' * 999 + '{"a": 1}\n]'),
    ):
        assert len(read(name, text)[0]) == 1000
    assert calls < 10


def test_items_with_the_same_key_count_once() -> None:
    lines = [f'{{"id": 1, "n": {n}}}' for n in range(3)]
    lines += [
        '{"id": "1"}',
        '{"id": 1.5}',
        '{"id": 1.50}',
        '{"id": null}',
        '{"id": null}',
        "{}",
        '{"id": ""}',
        "[1]",
        "[1]",
    ]
    lines += [
        '{"id": NaN}',
        '{"id": [1]}',
        '{"id": [1]}',
        '{"id": -0}',
        '{"id": 0}',
        '{"id": "\\ud800"}',
        '{"id": true}',
    ]
    text = "\n".join(lines).encode()
    feed = Feed("task-0/items.jsonl", key=("id",))
    for decoder in ({}, {"decoder": DIGITS}):
        found = list(items_of([feed], lambda name: [text], SkippedData(), **decoder))
        assert found[0]["n"] in (0, "0"), "the first one counts"
        assert len(found) == 14
    again = [
        feed,
        Feed("task-1/items.jsonl", key=("id",)),
        feed._replace(name="task-0-attempt-2/items.jsonl"),
    ]
    assert len(list(items_of(again, lambda name: [text], SkippedData()))) == 14 + 14 + 9, (
        "each task for itself"
    )
    pairs = b'{"a": "x", "b": "y"}\n{"a": "x", "b": "z"}\n{"a": "x", "b": "z"}\n{"a": "x"}\n{"a": "x"}\n'
    assert (
        len(
            list(
                items_of(
                    [Feed("task-0/a.jsonl", key=("a", "b"))], lambda name: [pairs], SkippedData()
                )
            )
        )
        == 4
    )
    assert declared({"key": ["a", "b"]}) == Feed("", key=("a", "b"))


def test_more_keys_than_are_known_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_reader, "KEYS_MAX", 5_000)
    text = "".join(f'{{"id": {n % 6_000}}}\n' for n in range(12_000)).encode()
    skipped = SkippedData()
    found = list(items_of([Feed("task-0/items.jsonl", key=("id",))], lambda name: [text], skipped))
    assert (len(found), skipped["too_many"]) == (7_000, 2_000)
    assert "items came after" in skipped.sentences()[0]
