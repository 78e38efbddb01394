"""Items that the runner counts: the contents of feeds, within limits, whatever a crawler puts into
its folder.
"""

from __future__ import annotations

import ast
import json
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from crawler_lifecycle.runner import feeds as counting
from crawler_lifecycle.runner.feeds import Feeds
from crawler_lifecycle.runner.item_files import DECLARED


@pytest.mark.parametrize(("name", "text", "count", "fields"), [
    ("items.jsonl", '{"a": 1, "b": ""}\n\n{"a": 2}\nno JSON\n{"a": 3', 2, {"a": 1.0}),
    ("items.csv", 'a;b\n1;"two\nlines"\n2;\n', 2, {"a": 1.0, "b": 0.5}),
    ("items.json", '[\n{"a": 1},\n{"a": null, "b": [1]}\n]', 2, {"a": 0.5, "b": 0.5}),
    ("items.json", json.dumps([{"a": 1}, {"b": 2}], indent=2), 2, {"a": 0.5, "b": 0.5}),
    ("items.json", f'\n [{{"a": "[x]}}"}},{{"a":{"9" * 5_000}}}, 12, {{"a": NaN, "b": "\t"}}]\n', 4,
     {"a": 0.6667, "b": 0.3333}),
    ("items.json", '[{"a": 1}, {"a": 2}, {"a"', 2, {"a": 1.0}),
    ("items.json", "\ufeff[" + '{"a": 1},' * 9 + '{"a": 1}', 10, {"a": 1.0}),
    ("items.jsonl", '{"a": "' + "x" * 2**21 + '"}\n', 1, {"a": 1.0}),
    ("report.json", '{"a": 1}', 1, {"a": 1.0}),
    ("x/y/items.tsv", "a\tb\n1\t2\n", 1, {"a": 1.0, "b": 1.0}),
], ids=range(10))  # fmt: skip
def test_counts_and_fields(
    tmp_path: Path, name: str, text: str, count: int, fields: dict[str, float]
) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    found = Feeds(str(tmp_path), ["a"] if fields else ["a", "b"])
    assert (found.read_on(), found.items) == (False, None)
    data, step = text.encode(), max(7, len(text) // 500)
    for cut in range(0, len(data), step):  # as it is written
        with file.open("ab") as feed:
            feed.write(data[cut : cut + step])
        found.read_on()
    found.finish()
    assert (found.items, found.bytes, found.fields()) == (count, len(data), fields)


def test_a_long_list_in_one_line_is_counted_in_little_memory(tmp_path: Path) -> None:
    item = '{"a": "' + "x" * 90 + '"}'
    (tmp_path / "items.json").write_text(
        "[" + ",".join([item] * 100_000) + ',{"b": "' + "x" * 2**24 + '"},{}]'
    )
    found, peak = Feeds(str(tmp_path)), 0
    tracemalloc.start()
    try:
        while found.read_on():
            continue
        found.finish()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # An item of 16 MiB ends the feed, as for readers.
    assert (found.items, found.fields()) == (100_000, {"a": 1.0})
    assert peak < 40 * 2**20


@pytest.mark.parametrize(
    "file", sorted(Path(counting.__file__).parent.rglob("*.py")), ids=lambda file: file.name
)
def test_python_3_9_runs_it(file: Path) -> None:
    """Images bring their own Python, whose ``zip`` may not know ``strict``."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    calls = [node for node in calls if getattr(node.func, "id", "") == "zip"]
    assert not [
        node.lineno for node in calls if any(given.arg == "strict" for given in node.keywords)
    ]


def test_fields_that_are_wanted_are_told_whatever_stands_beside_them(tmp_path: Path) -> None:
    rows = [
        {**{f"f{n}": n + 1 for n in range(500)}, "a\nb": 1, **({"price": 1} if part else {})}
        for part in (0, 0, 0, 1)
    ]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = Feeds(str(tmp_path), ["price", "none"])
    found.read_on()
    found.finish()
    shares = found.fields()
    assert (shares.pop("price"), shares.pop("none"), len(shares)) == (
        0.25,
        0.0,
        counting.FIELDS_MAX - 2,
    )
    assert set(shares.values()) == {1.0}
    (tmp_path / "items.jsonl").write_text("[1]\n")
    assert not Feeds(str(tmp_path), ["price"]).read_on()


def test_a_feed_that_is_begun_anew_is_counted_anew(tmp_path: Path) -> None:
    file, found = tmp_path / "items.jsonl", Feeds(str(tmp_path))
    for text, count in (("1\n2\n3\n", 3), ("1\n", 1)):
        file.write_text(text)
        found.read_on()
        assert found.items == count
    (tmp_path / "new").write_text("1\n2\n")
    os.replace(tmp_path / "new", file)
    found.read_on()
    assert found.items == 2


def test_no_look_takes_more_than_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "READ_MAX", 1000)
    (tmp_path / "items.jsonl").write_text("1\n" * 2000)
    found = Feeds(str(tmp_path))
    looks = [found.read_on() for _ in range(6)]
    assert (looks, found.items) == ([True] * 4 + [False] * 2, 2000)


def test_hostile_folders_have_an_end(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_bytes(b'"' + b"x\n" * 400_000)
    (tmp_path / "items-2.jsonl").write_bytes(
        b"[" * 3_000_000 + b"\n" + json.dumps({"x" * 10**6: 1}).encode() + b"\n"
    )
    (tmp_path / "items-3.jsonl").write_text(json.dumps({f"f{n}": n for n in range(50_000)}) + "\n")
    (tmp_path / "items-4.jsonl").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "items-5.jsonl")
    (tmp_path / "items-6.jsonl").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path)
    for n in range(3_000):
        (tmp_path / f"z{n}.json").touch()
    found = Feeds(str(tmp_path))
    began = time.monotonic()
    found.read_on()
    found.finish()
    assert time.monotonic() - began < 300
    assert found.items == 2  # in the CSV file, the header has no end
    assert len(found.fields()) == counting.FIELDS_MAX


def test_a_key_that_came_in_a_replaced_file_alone_counts_no_more(tmp_path: Path) -> None:
    (tmp_path / DECLARED).write_text('{"files": "*.jsonl", "key": "id"}')
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"id": 1}\n{"id": 2}\n')
    second.write_text('{"id": 2}\n{"id": 3}\n{}\n')
    found = Feeds(str(tmp_path))
    found.read_on()
    assert (found.items, found.read) == (4, 5)
    first.write_text('{"id": 3}\n')
    while found.read_on():
        continue
    assert (found.items, found.read) == (3, 4)
    first.unlink()
    while found.read_on():
        continue
    assert (found.items, found.read) == (3, 3)


@pytest.mark.parametrize(
    "pattern", ["t/2026/11/28/2101/council.json", "t/*/council.json", "*council*", "[t]/*"]
)
def test_declared_feeds_in_many_folders_are_counted(tmp_path: Path, pattern: str) -> None:
    for other in range(3):
        (tmp_path / f"images/{other}/a/b").mkdir(parents=True)
        (tmp_path / f"images/{other}/a/b/x.jpg").touch()
    folder = tmp_path / "t/2026/11/28/2101"
    folder.mkdir(parents=True)
    (folder / "council.json").write_text('[{"a": 1}, {"a": 2}]')
    (tmp_path / DECLARED).write_text(json.dumps({"files": pattern}))
    found = Feeds(str(tmp_path))
    found.read_on()
    found.finish()
    assert found.items == 2


def test_other_folders_hide_no_declared_feed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "FILES_MAX", 6)
    for folder in ("images", "t"):
        (tmp_path / folder).mkdir()
        for number in range(5):
            (tmp_path / folder / f"{number}.jpg").write_text('{"a": 1}')
    (tmp_path / DECLARED).write_text('{"files": "t/*", "format": "jsonl"}')
    found = Feeds(str(tmp_path))
    found.read_on()
    found.finish()
    assert found.items == 5
