"""Supporting files over HTTP: listed and handed out where they lie, as files and never as pages."""

from __future__ import annotations

import json
from pathlib import Path

from crawler_lifecycle.adapters.local.task_files import LocalFiles
from crawler_lifecycle.domain.run import ChildTask, RunRequest
from crawler_lifecycle.gateway.streams.logs import CHUNK
from crawler_lifecycle.ports import Owner
from tests.gateway.gateway_world import World


def _run(world: World, state: Path) -> tuple[int, list[int], Path]:
    request = RunRequest(crawler="plain", tasks=[ChildTask({"page": str(n)}) for n in range(2)])
    handle = world.store.initiation.create_run(request, "files", Owner("w", "chain"))
    home = state / "tasks" / str(handle.run_id)
    for index in range(2):
        (home / str(index) / "1" / "files").mkdir(parents=True)
    (home / "run.json").write_text(json.dumps({"run_uid": handle.run_uid}))
    return handle.run_id, [row.task_id for row in world.store.tasks.list_tasks(handle.run_id)], home


def test_files_of_all_tasks_are_listed_and_read(world: World, tmp_path: Path) -> None:
    run_id, (first, second), home = _run(world, tmp_path)
    (home / "0" / "1" / "files" / "items.jsonl").write_bytes(b"{}\n" * CHUNK)
    (home / "1" / "1" / "files" / 'a"b.html').write_text("<script>")
    (home / "1" / "1" / "files" / "empty").touch()
    with world.client(world.new_app(files=LocalFiles(tmp_path))) as client:
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
        assert client.get(f"/v1/runs/{run_id}/file", params={"path": "empty", "task": second}).content == b""


def test_what_cannot_be_read_here_is_said(world: World, tmp_path: Path) -> None:
    run_id, (first, _), home = _run(world, tmp_path)
    with world.client(world.new_app(files=LocalFiles(tmp_path))) as client:
        page = client.get(f"/v1/runs/{run_id}/files").json()
        assert (page["files"], page["readable"]) == ([], True)
        for path in ("items.jsonl", "../log", "\ud800x".encode("utf-8", "replace").decode()):
            answer = client.get(f"/v1/runs/{run_id}/file", params={"path": path, "task": first})
            assert (answer.status_code, answer.json()["code"]) == (404, "file_not_found")
        assert client.get(f"/v1/runs/{run_id}/file", params={"path": "x", "task": 9999}).status_code == 404
        assert client.get("/v1/runs/9999/files").json()["code"] == "run_not_found"
        home.rename(tmp_path / "away")
        assert client.get(f"/v1/runs/{run_id}/files").json()["readable"] is False
    with world.client(world.new_app()) as client:  # pods: nothing can be read from here
        answer = client.get(f"/v1/runs/{run_id}/files").json()
        assert answer["readable"] is False
        assert "come with the archive" in answer["note"]
        assert client.get(f"/v1/runs/{run_id}/file", params={"path": "x"}).json()["code"] == "file_not_found"
