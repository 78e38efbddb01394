"""Files and items of a run: from where they lie, and from the archive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import respx

from crawler_lifecycle.cli.runs import files
from tests.cli.cli_support import Crawlctl

ROWS = [
    {"task_id": 70, "path": "items.jsonl", "name": "task-0/items.jsonl", "bytes": 9},
    {"task_id": 70, "path": "skipped.jsonl", "name": "task-0/skipped.jsonl", "bytes": 9},
    {"task_id": 71, "path": "x.html", "name": "task-1/x.html", "bytes": 5},
]
LIVE = {"run_id": 7, "readable": True, "files": ROWS, "left_out": 2, "note": None}
ITEMS = b'{"a": "\xc3\xa4"}\nno \x07JSON\n{}'
NOT_HERE = {"run_id": 7, "readable": False, "files": [], "left_out": 0, "note": "they lie elsewhere"}


def test_files_are_listed_shown_and_fetched(gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path) -> None:
    gateway.get("/v1/runs/7/files").respond(json=LIVE)
    route = gateway.get("/v1/runs/7/file").respond(content=b"<a>\x1b[2J\xff\n")
    listed = crawlctl("files", "7")
    assert "task-1/x.html" in listed.out
    assert "2 more are left out" in listed.err
    assert crawlctl("files", "7", "task-1/x.html").out == "<a>\\x1b[2J\ufffd\n"
    assert dict(route.calls.last.request.url.params) == {"name": "task-1/x.html"}
    assert crawlctl("files", "7", "task-1/x.html", "--download", str(tmp_path)).code == 0
    assert (tmp_path / "x.html").read_bytes() == b"<a>\x1b[2J\xff\n"
    assert "exists already" in crawlctl("files", "7", "task-1/x.html", "--download", str(tmp_path)).err
    assert crawlctl("files", "7", "nothing").code == 3
    assert crawlctl("files", "7", "--download", str(tmp_path)).code == 2


def test_a_file_that_breaks_off_is_not_there_and_can_be_fetched_again(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    class Cut(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"half"
            raise httpx.RemoteProtocolError("peer closed connection")

    gateway.get("/v1/runs/7/files").respond(json=LIVE)
    route = gateway.get("/v1/runs/7/file").mock(return_value=httpx.Response(200, stream=Cut()))
    assert crawlctl("files", "7", "task-1/x.html", "--download", str(tmp_path)).code not in (0, None)
    assert list(tmp_path.iterdir()) == []
    route.mock(return_value=httpx.Response(200, content=b"whole"))
    assert crawlctl("files", "7", "task-1/x.html", "--download", str(tmp_path)).code == 0
    assert (tmp_path / "x.html").read_bytes() == b"whole"


def test_a_file_whose_name_is_as_long_as_names_can_be_is_fetched(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    name = "x" * 255
    row = {"task_id": 70, "path": name, "name": f"task-0/{name}", "bytes": 1}
    gateway.get("/v1/runs/7/files").respond(json=LIVE | {"files": [row]})
    gateway.get("/v1/runs/7/file").respond(content=b"x")
    assert crawlctl("files", "7", f"task-0/{name}", "--download", str(tmp_path)).code == 0
    assert (tmp_path / name).read_bytes() == b"x"


def test_items_line_by_line(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs/7/files").respond(json=LIVE)
    gateway.get("/v1/runs/7/file", params={"name": "task-0/items.jsonl"}).respond(
        content=b'{"a": "\xc3\xa4"}\nno \x07JSON\n{}'
    )
    assert crawlctl("items", "7").out == '{"a": "ä"}\nno \\x07JSON\n{}\n'
    answer = json.loads(crawlctl("items", "7", "-o", "json").out)
    assert [row["item"] for row in answer["items"]] == [{"a": "ä"}, "no \x07JSON", {}]
    first = crawlctl("items", "7", "--limit", "1")
    assert first.out == '{"a": "ä"}\n'
    assert "the first 1 lines" in first.err
    assert crawlctl("items", "7", "--limit", "0").code == 2


def test_a_run_without_items_says_so(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs/7/files").respond(json={**LIVE, "files": ROWS[2:], "left_out": 0})
    result = crawlctl("items", "7")
    assert (result.code, result.out) == (0, "")
    assert "no items yet" in result.err


def test_where_files_come_from_and_why_there_are_none(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    archived = [{"task_id": None, "path": None, "name": "task-0/items.jsonl", "bytes": 9}]
    note = "from the archive of attempt 1"
    listed = gateway.get("/v1/runs/7/files").respond(json={**LIVE, "files": archived, "left_out": 0, "note": note})
    gateway.get("/v1/runs/7/file", params={"name": "task-0/items.jsonl"}).respond(content=b'{"a": 1}\n')
    assert crawlctl("items", "7").out == '{"a": 1}\n'
    assert note in crawlctl("files", "7").err
    assert crawlctl("files", "7", "task-0/items.jsonl").out == '{"a": 1}\n'
    listed.respond(json=NOT_HERE)
    result = crawlctl("files", "7")
    assert (result.code, "run 7 has no supporting files" in result.out + result.err) == (0, True)
    assert "they lie elsewhere" in result.err


@pytest.mark.parametrize(
    ("names", "feeds"),
    [
        (["task-0/items.jsonl", "task-0/other.csv"], ["task-0/items.jsonl"]),
        (["task-0/shop.csv", "task-0/skipped.jsonl", "task-0/log.txt"], ["task-0/shop.csv"]),
        (["task-0/Items-de.JSON", "task-1/items/page.html"], ["task-0/Items-de.JSON"]),
        (["task-0/pages/a.xml"], []),
    ],
)
def test_which_files_hold_items(names: list[str], feeds: list[str]) -> None:
    assert [row["name"] for row in files.feeds_of([{"name": name} for name in names])] == feeds
