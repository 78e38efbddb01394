"""Items and parts of files over HTTP: everything that was written, whatever is requested and
happens meanwhile.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.activities.run_files import CHUNK, OpenedFile
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.gateway.access import slots
from crawler_lifecycle.runner.item_files import NO_FEEDS
from tests.gateway.api.test_files import _run, _stored
from tests.gateway.gateway_harness import Harness
from tests.support.fakes.services import FakeArchive

NO_LINE = "1 lines were not JSON (task-0/items.jsonl: line 1,501: Expecting value)"
FILE = b"".join(b"%07d\n" % n for n in range(40_000))


@pytest.fixture(params=["live", "archive"])
def file(request: pytest.FixtureRequest, harness: Harness, tmp_path: Path) -> Any:
    """A client, and the address of a file in the folder of a task, or in an archive."""
    run_id, _, home = _run(harness, tmp_path)
    if request.param == "live":
        (home / "0" / "1" / "files" / "items.jsonl").write_bytes(FILE)
        app = harness.new_app(live_files=LocalFiles(tmp_path))
    else:
        archive = FakeArchive()
        _stored(harness, tmp_path, run_id, archive, files={"items.jsonl": FILE})
        app = harness.new_app(archive=archive)
    with harness.client(app) as client:
        yield client, f"/v1/runs/{run_id}/file?name=task-0/items.jsonl"


@pytest.mark.parametrize(("asked", "first", "end"), [
    ("bytes=0-0", 0, 1),
    ("bytes=5-9", 5, 10),
    (f"bytes={CHUNK - 1}-{3 * CHUNK + 4}", CHUNK - 1, 3 * CHUNK + 5),
    (f"bytes={len(FILE) - 1}-", len(FILE) - 1, len(FILE)),
    ("bytes=0-99999999999999999", 0, len(FILE)),
])  # fmt: skip
def test_a_part_of_a_file(file: tuple[TestClient, str], asked: str, first: int, end: int) -> None:
    client, address = file
    answer = client.get(address, headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, FILE[first:end])
    assert answer.headers["content-range"] == f"bytes {first}-{end - 1}/{len(FILE)}"
    assert int(answer.headers["content-length"]) == end - first


def test_what_is_no_part_of_a_file(file: tuple[TestClient, str]) -> None:
    client, address = file
    for odd in (
        "bytes=-5",
        "bytes=9-5",
        "bytes=0-1,3-4",
        "items=0-1",
        "bytes=\u0661-",
        "bytes=" + "9" * 30 + "-",
    ):
        answer = client.get(address, headers={"Range": odd.encode()})
        assert (answer.status_code, answer.content, answer.headers["accept-ranges"]) == (
            200,
            FILE,
            "bytes",
        ), odd
    kept = client.get(address, headers={"Range": "bytes=5-", "If-Range": '"x"'})
    assert (kept.status_code, kept.content) == (200, FILE)
    behind = client.get(address, headers={"Range": f"bytes={len(FILE)}-"})
    assert (behind.status_code, behind.json()["code"]) == (416, "range_not_satisfiable")
    assert behind.headers["content-range"] == f"bytes */{len(FILE)}"


def test_an_archive_is_read_on_and_not_anew(harness: Harness, tmp_path: Path) -> None:
    run_id, _, _ = _run(harness, tmp_path)
    archive = FakeArchive()
    _stored(harness, tmp_path, run_id, archive, files={"items.jsonl": FILE})
    asked: list[int] = []
    part = archive.part
    archive.part = lambda url, place, limit: asked.append(limit) or part(url, place, limit)  # type: ignore
    with harness.client(harness.new_app(archive=archive)) as client:
        read, of_first = b"", 0
        while len(read) < len(FILE):
            headers = {"Range": f"bytes={len(read)}-{len(read) + 9_999}"}
            read += client.get(
                f"/v1/runs/{run_id}/file?name=task-0/items.jsonl", headers=headers
            ).content
            of_first = of_first or len(asked)
        assert read == FILE
        assert len(asked) <= of_first + 1


def test_a_damaged_archive_is_told_and_not_cut(harness: Harness, tmp_path: Path) -> None:
    run_id, _, _ = _run(harness, tmp_path)
    archive = FakeArchive()
    url = _stored(harness, tmp_path, run_id, archive, files={"items.jsonl": FILE})
    archive.stored[url] = archive.stored[url].replace(b"task-0/items", b"task-0/other", 1)
    with harness.client(harness.new_app(archive=archive)) as client:
        for path in ("items", "items/feed", "file?name=task-0/items.jsonl"):
            answer = client.get(f"/v1/runs/{run_id}/{path}")
            assert (answer.status_code, answer.json()["code"]) == (503, "archive_unavailable"), path


def test_parts_of_a_file_add_nothing_to_what_is_kept_of_it() -> None:
    """Each part once wrapped an iterator around the previous one: enough of them crash a process."""
    opened = OpenedFile(10**9, iter([b"x" * 10**6]))
    assert all(list(opened.part(n, n + 1)) == [b"x"] for n in range(1_000))
    assert type(opened.pieces) is type(iter([]))


def lines(*items: object) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


@pytest.fixture
def left(harness: Harness, tmp_path: Path) -> Any:
    """A client, the address of the items of a run with two tasks, and the folders of their files."""
    run_id, tasks, home = _run(harness, tmp_path)
    folders = [home / str(index) / "1" / "files" for index in range(2)]
    with harness.client(harness.new_app(live_files=LocalFiles(tmp_path))) as client:
        yield client, f"/v1/runs/{run_id}/items", folders, tasks


def test_all_feeds_of_a_run_are_one(left: Any) -> None:
    client, address, folders, tasks = left
    (folders[0] / "items.jsonl").write_text(
        lines(*({"n": n, "kind": "Tee"} for n in range(1_500))) + "no\n"
    )
    (folders[0] / "log.json").write_text("{}")
    (folders[1] / "items.csv").write_text("n,kind\n-1,=1+1\n")
    page = client.get(address, params={"offset": 1_400, "limit": 1_000}).json()
    assert (len(page["rows"]), page["offset"], page["next"], page["total"]) == (
        101,
        1_400,
        None,
        1_501,
    )
    assert page["notes"] == [NO_LINE]
    few = client.get(
        address, params={"contains": "tee", "field": "kind", "offset": 10, "limit": 2}
    ).json()
    assert (few["rows"], few["next"], few["total"]) == ([["10", "Tee"], ["11", "Tee"]], 12, 1_500)
    assert client.get(address, params={"task": tasks[1]}).json()["total"] == 1
    assert client.get(address, params={"name": "task-0/log.json"}).json()["total"] == 1
    feed = client.get(f"{address}/feed", params={"field": "n", "contains": "99", "fields": "n"})
    assert feed.text == lines(*({"n": n} for n in range(1_500) if "99" in str(n)))
    assert feed.headers["content-type"] == "application/jsonl"
    csv = client.get(f"{address}/feed", params={"format": "csv", "offset": 1_500})
    assert (csv.text, csv.headers["content-type"]) == (
        "n,kind\n-1,'=1+1\n",
        "text/csv; charset=utf-8",
    )
    stats = client.get(f"{address}/stats").json()
    assert (stats["items"], stats["notes"]) == (1_501, [NO_LINE])
    assert [(one["name"], one["filled"], one["longest"]) for one in stats["fields"]] == [
        ("n", 1501, 4),
        ("kind", 1501, 4),
    ]
    for odd in (
        "?limit=1001",
        "?limit=0",
        "?offset=-1",
        "?name=a&task=1",
        "/feed?format=xml",
        "/stats?limit=1",
    ):
        assert client.get(address + odd).status_code == 422, odd


def test_a_run_without_items_names_the_fix(left: Any) -> None:
    client, address, _, _ = left
    assert client.get(address).json()["notes"] == [NO_FEEDS]
    assert client.get(f"{address}/stats").json() == {
        "items": 0,
        "fields": [],
        "fields_left_out": 0,
        "notes": [NO_FEEDS],
    }
    answer = client.get(f"{address}/feed")
    assert (answer.status_code, "CRAWL_FILES_DIR" in answer.json()["detail"]) == (404, True)


def test_what_a_crawler_may_write(left: Any) -> None:
    client, address, folders, _ = left
    with (folders[0] / "items.jsonl").open("w") as file:
        file.write('{"a": "' + "x" * 9 * 2**20 + '"}\n')
        file.write(lines(dict.fromkeys(map(str, range(100_000)), 1), {"a": float("nan")}, [1]))
        file.write("[" * 900 + "]" * 900 + "\n")
    (folders[1] / "items.jsonl").symlink_to("/etc/passwd")
    page = client.get(address).json()
    assert (len(page["rows"]), page["total"], len(page["columns"])) == (1, 4, 50)
    assert page["columns_left_out"] == 99_950
    assert page["notes"] == [
        "1 files were not read: they are links or pipes, or exceed the limit",
        "1 items were longer than 8,388,608 characters (task-0/items.jsonl: line 1)",
    ]  # fmt: skip
    feed = client.get(f"{address}/feed").text.splitlines()
    assert [json.loads(line) for line in feed[1:3]] == [{"a": None}, [1]]
    assert client.get(f"{address}/stats").json()["fields_left_out"] == 99_802
    assert client.get(f"{address}/feed", params={"format": "csv", "offset": 1}).status_code == 200


def test_reading_ends_in_time(left: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, address, folders, _ = left
    (folders[0] / "items.jsonl").write_text(lines({"n": 1}) * 100_000)
    monkeypatch.setattr(slots, "WORK_S", 0.0)
    assert (
        "reading ended after 0 s"
        in client.get(address, params={"contains": "x"}).json()["notes"][0]
    )
    assert "reading ended" in client.get(f"{address}/stats").json()["notes"][0]
    for format in ("jsonl", "csv"):
        answer = client.get(f"{address}/feed", params={"format": format})
        told = "name: 'task-0/items.jsonl', which yielded no item within 0 s, is not a file that can be read here"
        assert (answer.status_code, told in answer.json()["detail"]) == (404, True)


def test_a_run_that_is_deleted_while_it_is_read(left: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, address, folders, _ = left
    (folders[0] / "items.jsonl").write_text(lines({"n": 1}) * 100_000)
    read = LocalFiles.read
    parts: list[int] = []

    def deleted(self: Any, run: Any, task: Any, path: str, place: int, limit: int) -> Any:
        parts.append(place)
        return read(self, run, task, path, place, limit) if len(parts) < 4 else None

    monkeypatch.setattr(LocalFiles, "read", deleted)
    answer = client.get(address)
    assert (answer.status_code, answer.json()["code"]) == (503, "archive_unavailable")
    assert "was removed while it was being read, or cut at byte 196,608" in answer.json()["detail"]
    for path in (
        "items/feed",
        "file?name=task-0/items.jsonl",
    ):  # truncated, and not considered complete
        parts.clear()
        with pytest.raises(RuntimeError, match="response already started"):
            client.get(address.removesuffix("items") + path)
