"""``crawlctl items``: what is shown, what each format contains, and what is reported about the
rest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import respx

from crawler_lifecycle.cli.runs import parquet
from crawler_lifecycle.domain.item_export import HEAD_ITEMS, LEFT_OUT
from tests.cli.cli_support import Crawlctl

NAMES = ["task-0/items.jsonl", "task-0/skipped.jsonl", "task-1/items.csv"]
FILES = [{"task_id": 70, "path": name[7:], "name": name, "bytes": 9} for name in NAMES]
LIVE: dict[str, Any] = {"run_id": 7, "readable": True, "files": FILES, "left_out": 0, "note": None}
FIRST = b'{"a": "\xc3\xa4\x1b", "n": 1}\nno \x07JSON\n{"a": "=1+1", "n": NaN}\n'
NO_LINE = "1 lines were not JSON (task-0/items.jsonl: line 2: Expecting value)"
COUNTED = "1 lines were not JSON (items.jsonl: line 2: Expecting value); 4 items"
ALL = [{"a": "ä\x1b", "n": 1}, {"a": "=1+1", "n": None}, {"a": "5", "b": "x"}]


@pytest.fixture
def feeds(gateway: respx.MockRouter) -> None:
    gateway.get("/v1/runs/7").respond(json={"fields": {"note": COUNTED}})
    gateway.get("/v1/runs/7/files").respond(json=LIVE)
    gateway.get("/v1/runs/7/file", params={"name": NAMES[0]}).respond(content=FIRST)
    gateway.get("/v1/runs/7/file", params={"name": NAMES[2]}).respond(content=b"a,b\n5,x\n")


@pytest.mark.usefixtures("feeds")
def test_items_are_shown(crawlctl: Crawlctl) -> None:
    shown = crawlctl("items", "7")
    assert (
        shown.out == '{"a": "ä\\u001b", "n": 1}\n{"a": "=1+1", "n": null}\n{"a": "5", "b": "x"}\n'
    )
    assert shown.err == f"{NO_LINE}\n"
    assert crawlctl("items", "7", "-o", "json").json == {
        "run_id": 7,
        "items": ALL,
        "notes": [NO_LINE],
    }
    some = crawlctl(
        "items",
        "7",
        "--limit",
        "1",
        "--offset",
        "1",
        "--contains",
        "=1",
        "--fields",
        "a",
        "-o",
        "jsonl",
    )
    assert some.out == ""
    some = crawlctl("items", "7", "--limit", "1", "--field", "n", "--fields", "n")
    assert (some.out, "the first 1;" in some.err) == ('{"n": 1}\n', False)
    assert "the first 1;" in crawlctl("items", "7", "--limit", "1").err


@pytest.mark.usefixtures("feeds")
def test_items_name_the_code_of_their_task(
    crawlctl: Crawlctl, gateway: respx.MockRouter, tmp_path: Path
) -> None:
    digest = "sha256:" + "a" * 64
    code = {"digest": digest, "version": "v1", "folders": ["task-0"]}
    gateway.get("/v1/runs/7/codes").respond(json={"codes": [code]})
    coded = [{"_code": digest, "_version": "v1", **item} for item in ALL[:2]]
    coded.append({"_code": None, "_version": None, **ALL[2]})
    assert crawlctl("items", "7", "--code", "-o", "json").json["items"] == coded
    crawlctl("items", "7", "--code", "--fields", "a", "--write", str(tmp_path / "a.parquet"))
    rows = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [(row["_code"], row["_version"], row["a"]) for row in rows] == [
        (digest, "v1", "ä\x1b"),
        (digest, "v1", "=1+1"),
        (None, None, "5"),
    ]
    table = crawlctl("items", "7", "--code", "--format", "csv")
    assert table.out.splitlines()[0] == "_code,_version,a,n,b"


@pytest.mark.parametrize(
    "first", ["5 items were counted, 3 can be read", "2 files in 'out' are not kept: write them"]
)
@pytest.mark.usefixtures("feeds")
def test_the_note_of_the_run_is_shown(
    crawlctl: Crawlctl, gateway: respx.MockRouter, first: str
) -> None:
    gateway.get("/v1/runs/7").respond(json={"fields": {"note": f"{first}; {COUNTED}"}})
    assert crawlctl("items", "7", "-o", "json").json["notes"] == [first, NO_LINE]


@pytest.mark.usefixtures("feeds")
def test_items_are_written(crawlctl: Crawlctl, tmp_path: Path) -> None:
    assert [
        json.loads(line) for line in crawlctl("items", "7", "--format", "jsonl").out.splitlines()
    ] == ALL
    assert crawlctl("items", "7", "--format", "csv").out == "a,n,b\nä\x1b,1,\n'=1+1,,\n5,,x\n"
    written = crawlctl("items", "7", "--write", "some.parquet", "--contains", "ä", "-o", "json")
    assert (written.json["notes"], written.json["bytes"]) == (
        [NO_LINE],
        (tmp_path / "some.parquet").stat().st_size,
    )
    assert pyarrow.parquet.read_table(tmp_path / "some.parquet").to_pylist() == [
        ALL[0] | {LEFT_OUT: None}
    ]
    assert "already exists" in crawlctl("items", "7", "--write", "some.parquet").err


def test_a_column_of_parquet_has_the_type_of_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROWS", 300)
    items: list[Any] = [
        {"i": n, "f": n / 2 if n % 2 else n, "b": True, "m": n or "x", "l": [n]}
        for n in range(HEAD_ITEMS)
    ]
    items += [
        {"i": 2**70, "late": {"k": None}},
        7,
        {"f": "no", "m": "\ud800", "\ud800": 1},
        {LEFT_OUT: 1, "b": None},
    ]
    (tmp_path / "x").write_bytes(b"".join(parquet.as_parquet(items)))
    table = pyarrow.parquet.read_table(tmp_path / "x")
    assert [str(field.type) for field in table.schema] == [
        "int64",
        "double",
        "bool",
        "string",
        "string",
        "string",
    ]
    rows = table.to_pylist()
    assert rows[1] == {"i": 1, "f": 0.5, "b": True, "m": "1", "l": "[1]", LEFT_OUT: None}
    assert [row[LEFT_OUT] for row in rows[-4:]] == [
        '{"i": 1180591620717411303424, "late": {"k": null}}', '{"(value)": 7}', '{"f": "no", "?": 1}',
        '{"(left out)": 1}',
    ]  # fmt: skip
    assert rows[-2]["m"] == "?"
    (tmp_path / "y").write_bytes(b"".join(parquet.as_parquet(items, ["i", "none"])))
    assert pyarrow.parquet.read_table(tmp_path / "y").to_pylist()[-4:-2] == [
        {"i": None, "none": None, LEFT_OUT: '{"i": 1180591620717411303424}'}, {"i": None, "none": None, LEFT_OUT: None},
    ]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "said"), [
    (["--limit", "0"], 2, "--limit 0 is not allowed"),
    (["--offset", "-1"], 2, "--offset -1 is not allowed"),
    (["--write", "x.xml"], 2, "--format jsonl|csv|parquet"),
])  # fmt: skip
def test_what_can_never_work(words: list[str], code: int, said: str, crawlctl: Crawlctl) -> None:
    result = crawlctl("items", "7", *words)
    assert (result.code, said in result.err) == (code, True)


def test_without_pyarrow_the_fix_is_named(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.get("/v1/runs/7").respond(json={"fields": None})
    gateway.get("/v1/runs/7/files").respond(json=LIVE)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = crawlctl("items", "7", "--write", "a.parquet")
    assert (result.code, list(tmp_path.iterdir())) == (1, [])
    assert 'pip install "crawler-lifecycle[parquet]"' in result.err


def test_a_run_without_items_names_the_fix(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs/7").respond(json={"fields": None})
    gateway.get("/v1/runs/7/files").respond(json={**LIVE, "files": FILES[1:2]})
    shown = crawlctl("items", "7")
    assert (shown.code, shown.out) == (0, "")
    assert "CRAWL_FILES_DIR" in shown.err
    assert crawlctl("items", "7", "--format", "csv").code == 3


def test_statistics(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    row = {
        "name": "price",
        "filled": 19,
        "coverage": 0.95,
        "distinct": 12,
        "shortest": 1,
        "longest": 6,
    }
    answer = {"items": 20, "fields": [row], "fields_left_out": 0, "notes": [NO_LINE]}
    route = gateway.get("/v1/runs/7/items/stats").respond(json=answer)
    shown = crawlctl("items", "7", "--stats", "--field", "price")
    assert "95.0%" in shown.out
    assert shown.err == f"20 items\n{NO_LINE}\n"
    assert dict(route.calls.last.request.url.params) == {"field": "price"}
    assert crawlctl("items", "7", "--stats", "-o", "json").json == answer
