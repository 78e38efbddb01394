"""Supporting files over HTTP: listed and served where they are, as files and never as pages."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from crawler_lifecycle.activities.run_files import CHUNK
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.domain.run import ChildTask, RunRequest
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.ports.runs import Fence, Owner
from tests.gateway.gateway_harness import Harness
from tests.support.fakes.services import FakeArchive


def _run(harness: Harness, state: Path) -> tuple[int, list[int], Path]:
    request = RunRequest(crawler="plain", tasks=[ChildTask({"page": str(n)}) for n in range(2)])
    handle = harness.store.initiation.create_run(request, "files", Owner("w", "chain"))
    home = state / "tasks" / f"{handle.run_id}-{handle.run_uid}"
    for index in range(2):
        (home / str(index) / "1" / "files").mkdir(parents=True)
    return (
        handle.run_id,
        [row.task_id for row in harness.store.tasks.list_tasks(handle.run_id)],
        home,
    )


def test_files_of_all_tasks_are_listed_and_read(harness: Harness, tmp_path: Path) -> None:
    run_id, (first, second), home = _run(harness, tmp_path)
    (home / "0" / "1" / "files" / "items.jsonl").write_bytes(b"{}\n" * CHUNK)
    (home / "1" / "1" / "files" / 'a"b.html').write_text("<script>")
    (home / "1" / "1" / "files" / "empty").touch()
    with harness.client(harness.new_app(live_files=LocalFiles(tmp_path))) as client:
        page = client.get(f"/v1/runs/{run_id}/files").json()
        assert [(row["task_id"], row["name"], row["bytes"]) for row in page["files"]] == [
            (first, "task-0/items.jsonl", 3 * CHUNK),
            (second, 'task-1/a"b.html', 8),
            (second, "task-1/empty", 0),
        ]
        one = client.get(f"/v1/runs/{run_id}/files", params={"task": second}).json()
        assert [row["path"] for row in one["files"]] == ['a"b.html', "empty"]
        whole = client.get(f"/v1/runs/{run_id}/file", params={"path": "items.jsonl"})
        assert whole.content == b"{}\n" * CHUNK
        script = client.get(f"/v1/runs/{run_id}/file", params={"path": 'a"b.html', "task": second})
        assert script.text == "<script>"
        assert script.headers["content-type"] == "application/octet-stream"
        assert script.headers["content-disposition"] == "attachment; filename*=UTF-8''a%22b.html"
        assert script.headers["x-content-type-options"] == "nosniff"
        assert (
            client.get(f"/v1/runs/{run_id}/file", params={"path": "empty", "task": second}).content
            == b""
        )


def test_what_cannot_be_read_here_is_said(harness: Harness, tmp_path: Path) -> None:
    run_id, (first, _), home = _run(harness, tmp_path)
    with harness.client(harness.new_app(live_files=LocalFiles(tmp_path))) as client:
        page = client.get(f"/v1/runs/{run_id}/files").json()
        assert (page["files"], page["readable"]) == ([], True)
        for path in ("items.jsonl", "../log", "\ud800x".encode("utf-8", "replace").decode()):
            answer = client.get(f"/v1/runs/{run_id}/file", params={"path": path, "task": first})
            assert (answer.status_code, answer.json()["code"]) == (404, "file_not_found")
        assert (
            client.get(f"/v1/runs/{run_id}/file", params={"path": "x", "task": 9999}).status_code
            == 404
        )
        assert client.get("/v1/runs/9999/files").json()["code"] == "run_not_found"
        home.rename(tmp_path / "away")
        assert client.get(f"/v1/runs/{run_id}/files").json()["readable"] is False
    with harness.client(harness.new_app()) as client:  # pods: nothing can be read from here
        answer = client.get(f"/v1/runs/{run_id}/files").json()
        assert answer["readable"] is False
        assert "they are in its archive" in answer["note"]
        assert (
            client.get(f"/v1/runs/{run_id}/file", params={"path": "x"}).json()["code"]
            == "file_not_found"
        )


FILES = {"items.jsonl": b'{"a": 1}\n' * 100_000, "a.png": b"\x89PNG"}


def _stored(
    harness: Harness, tmp_path: Path, run_id: int, archive: FakeArchive, data: bytes | None = None,
    files: Mapping[str, bytes] = FILES,
) -> str:  # fmt: skip
    """Store the run's files, or these bytes in their place, in an archive that is on record."""
    row = harness.run(run_id)
    folder = tmp_path / "packed"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    fence = Fence(run_id, 1, "chain", row.run_uid)
    result = archive.store(
        "x.zip", [FileSource("task-0", folder)], {"run_uid": row.run_uid}, lambda *_: None
    )
    if data is not None:
        archive.stored[result.url] = data
        result = replace(result, bytes=len(data))
    harness.store.exports.record_export(fence, "exported", result, None)
    return result.url


def test_files_of_pods_come_one_by_one_out_of_the_archive(harness: Harness, tmp_path: Path) -> None:
    run_id, (first, second), home = _run(harness, tmp_path)
    archive = FakeArchive()
    with harness.client(
        harness.new_app(archive=archive, elsewhere="they lie in a bucket")
    ) as client:
        assert "they lie in a bucket" in client.get(f"/v1/runs/{run_id}/files").json()["note"]
        url = _stored(harness, tmp_path, run_id, archive)
        page = client.get(f"/v1/runs/{run_id}/files").json()
        assert [(row["name"], row["bytes"], row["task_id"]) for row in page["files"]] == [
            ("task-0/a.png", 4, None),
            ("task-0/items.jsonl", 900_000, None),
        ]
        assert (page["readable"], page["archive"], page["left_out"]) == (True, 1, 0)
        assert client.get(f"/v1/runs/{run_id}/files", params={"task": second}).json()["files"] == []
        whole = client.get(f"/v1/runs/{run_id}/file", params={"name": "task-0/items.jsonl"})
        assert whole.content == b'{"a": 1}\n' * 100_000
        table = client.get(f"/v1/runs/{run_id}/items", params={"name": "task-0/items.jsonl"}).json()
        assert (table["columns"], table["next"], len(table["rows"])) == (
            [{"name": "a", "filled": 200}],
            200,
            200,
        )
        for name in ("task-1/x", "manifest.json", "../x"):
            answer = client.get(f"/v1/runs/{run_id}/items", params={"name": name})
            assert (answer.status_code, answer.json()["code"]) == (404, "file_not_found")
        for odd in ({}, {"name": "a", "path": "a"}, {"name": "a", "task": first}):
            assert client.get(f"/v1/runs/{run_id}/file", params=odd).status_code == 422
        archive.stored[url] += b"x"  # different from what was recorded
        assert client.get(f"/v1/runs/{run_id}/files").json()["code"] == "archive_unavailable"
    with harness.client(
        harness.new_app(archive=archive, live_files=LocalFiles(tmp_path))
    ) as client:  # as long as they exist
        (home / "0" / "1" / "files" / "items.jsonl").write_bytes(b'{"b": 2}\n{"b"')
        assert [
            row["task_id"] for row in client.get(f"/v1/runs/{run_id}/files").json()["files"]
        ] == [first]
        table = client.get(f"/v1/runs/{run_id}/items", params={"name": "task-0/items.jsonl"}).json()
        assert (table["rows"], table["total"]) == ([["2"]], 1)
        assert "being written" in table["notes"][0]


def _zip(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return packed.getvalue()


def _far_directory() -> bytes:
    """Return a zip whose directory is larger than what is read."""
    return _zip(**{f"{n:0240}": b"" for n in range(8_000)})


def _lying(data: bytes, at: int, value: int) -> bytes:
    """Return the same zip with another number in the end record."""
    place = data.rfind(b"PK\x05\x06") + at
    return data[:place] + value.to_bytes(4, "little") + data[place + 4 :]


@pytest.mark.parametrize("data", [
    bytes, lambda: b"no zip", lambda: _zip(a=b"b")[:-30], lambda: _lying(_zip(a=b"b"), 12, 2**31), _far_directory,
], ids=range(5))  # fmt: skip
def test_an_archive_that_is_none_is_said_to_be_none(
    harness: Harness, data: Callable[[], bytes], tmp_path: Path
) -> None:
    run_id, _, _ = _run(harness, tmp_path)
    archive = FakeArchive()
    _stored(harness, tmp_path, run_id, archive, data())
    with harness.client(harness.new_app(archive=archive)) as client:
        answer = client.get(f"/v1/runs/{run_id}/files")
        assert (answer.status_code, answer.json()["code"]) == (503, "archive_unavailable")


def test_a_member_of_nothing_but_zeros_costs_no_more_than_is_shown(
    harness: Harness, tmp_path: Path
) -> None:
    run_id, _, _ = _run(harness, tmp_path)
    archive = FakeArchive()
    _stored(harness, tmp_path, run_id, archive, _zip(**{"task-0/bomb.jsonl": bytes(2**26)}))
    read = archive.part
    asked: list[int] = []
    archive.part = lambda url, place, limit: asked.append(limit) or read(url, place, limit)  # type: ignore
    with harness.client(harness.new_app(archive=archive)) as client:
        tracemalloc.start()
        table = client.get(f"/v1/runs/{run_id}/items", params={"name": "task-0/bomb.jsonl"}).json()
        assert table["notes"] == [
            "1 lines were not JSON (task-0/bomb.jsonl: line 1: Expecting value)"
        ]
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
        tracemalloc.stop()
    assert sum(asked) < 2**20
