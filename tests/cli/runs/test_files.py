"""Files and items of a run, read where they are and from the archive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import respx

from tests.cli.cli_support import Crawlctl

ROWS = [
    {"task_id": 70, "path": "items.jsonl", "name": "task-0/items.jsonl", "bytes": 9},
    {"task_id": 70, "path": "skipped.jsonl", "name": "task-0/skipped.jsonl", "bytes": 9},
    {"task_id": 71, "path": "x.html", "name": "task-1/x.html", "bytes": 5},
]
LIVE = {"run_id": 7, "readable": True, "files": ROWS, "left_out": 2, "note": None}
NOT_HERE = {
    "run_id": 7,
    "readable": False,
    "files": [],
    "left_out": 0,
    "note": "they lie elsewhere",
}


def test_files_are_listed_shown_and_fetched(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    gateway.get("/v1/runs/7/files").respond(json=LIVE)
    route = gateway.get("/v1/runs/7/file").respond(content=b"<a>\x1b[2J\xff\n")
    listed = crawlctl("files", "7")
    assert "task-1/x.html" in listed.out
    assert "2 more are left out: links, pipes" in listed.err
    assert crawlctl("files", "7", "task-1/x.html").out == "<a>\\x1b[2J\ufffd\n"
    assert dict(route.calls.last.request.url.params) == {"name": "task-1/x.html"}
    assert crawlctl("files", "7", "task-1/x.html", "--download", str(tmp_path)).code == 0
    assert (tmp_path / "x.html").read_bytes() == b"<a>\x1b[2J\xff\n"
    assert (
        "already exists" in crawlctl("files", "7", "task-1/x.html", "--download", str(tmp_path)).err
    )
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
    assert crawlctl("files", "7", "task-1/x.html", "--download", str(tmp_path)).code not in (
        0,
        None,
    )
    assert list(tmp_path.iterdir()) == []
    route.mock(return_value=httpx.Response(200, content=b"whole"))
    assert crawlctl("files", "7", "task-1/x.html", "--download", str(tmp_path)).code == 0
    assert (tmp_path / "x.html").read_bytes() == b"whole"


def test_a_download_that_is_cut_goes_on(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 4
    begins: list[int] = []

    class Cut(httpx.SyncByteStream):
        def __init__(self, first: int) -> None:
            self.first = first

        def __iter__(self) -> Iterator[bytes]:
            yield data[self.first : self.first + 400]
            if self.first + 400 < len(data):
                raise httpx.ReadError("reset")

    def part(request: httpx.Request) -> httpx.Response:
        begins.append(int(request.headers.get("Range", "bytes=0-")[6:-1]))
        if len(begins) == 2:
            raise httpx.ConnectError("a gateway that begins anew")
        return httpx.Response(206 if begins[-1] else 200, stream=Cut(begins[-1]))

    monkeypatch.setattr(time, "sleep", lambda _: None)
    gateway.get("/v1/runs/7/files").respond(json=LIVE)
    gateway.get("/v1/runs/7/file").mock(side_effect=part)
    assert crawlctl("files", "7", "task-1/x.html", "--download", str(tmp_path)).code == 0
    assert ((tmp_path / "x.html").read_bytes(), begins) == (data, [0, 400, 400, 800])


def test_a_file_whose_name_is_as_long_as_names_can_be_is_fetched(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    name = "x" * 255
    row = {"task_id": 70, "path": name, "name": f"task-0/{name}", "bytes": 1}
    gateway.get("/v1/runs/7/files").respond(json=LIVE | {"files": [row]})
    gateway.get("/v1/runs/7/file").respond(content=b"x")
    assert crawlctl("files", "7", f"task-0/{name}", "--download", str(tmp_path)).code == 0
    assert (tmp_path / name).read_bytes() == b"x"


def test_where_files_come_from_and_why_there_are_none(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    archived = [{"task_id": None, "path": None, "name": "task-0/items.jsonl", "bytes": 9}]
    note = "from the archive of attempt 1"
    listed = gateway.get("/v1/runs/7/files").respond(
        json={**LIVE, "files": archived, "left_out": 0, "note": note}
    )
    gateway.get("/v1/runs/7/file", params={"name": "task-0/items.jsonl"}).respond(
        content=b'{"a": 1}\n'
    )
    assert note in crawlctl("files", "7").err
    assert crawlctl("files", "7", "task-0/items.jsonl").out == '{"a": 1}\n'
    listed.respond(json=NOT_HERE)
    result = crawlctl("files", "7")
    assert (result.code, "run 7 has no supporting files" in result.out + result.err) == (0, True)
    assert "they lie elsewhere" in result.err
