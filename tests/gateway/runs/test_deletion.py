"""``DELETE /v1/runs/{id}``: required role, responses, and what a deleted run refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.activities.run_files import CHUNK, RunFiles
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import FilePart
from crawler_lifecycle.ports.runs import TaskRef
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys


@pytest.fixture
def client(harness: Harness) -> Iterator[TestClient]:
    with harness.client() as client:
        yield client


def ended(harness: Harness, client: TestClient) -> None:
    client.post("/v1/runs", json={"crawler": "plain", "tags": ["t"]})
    harness.claim(1)
    harness.end(1)


def test_only_admins_delete(harness: Harness, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    with harness.client(harness.new_app(entrance=keys.entrance())) as api:
        api.headers.update(keys.headers("operate"))
        ended(harness, api)
        for role, status in (("read", 403), ("operate", 403), ("admin", 202)):
            assert api.delete("/v1/runs/1", headers=keys.headers(role)).status_code == status
        assert api.get("/v1/runs/1").json()["deleted"]["requested_by"] == "the-admin"


def test_the_report_can_be_asked_again(harness: Harness, client: TestClient) -> None:
    ended(harness, client)
    first = client.delete("/v1/runs/1", params={"requested_by": "ada"})
    again = client.delete("/v1/runs/1", params={"requested_by": "eve"})
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["deleted"] == again.json()["deleted"] == {
        "requested_at": "2026-11-20T12:00:00Z", "requested_by": "ada", "ended_at": None, "gone": {}, "left": {},
    }  # fmt: skip
    run = harness.ref(1)
    assert harness.workflows.deletions == [run, run], "found open the second time"
    harness.store.deletion.note_deletion(
        run, {"archives": None}, {"files in /x": "EACCES"}, ended=True
    )
    told = client.get("/v1/runs/1").json()["deleted"]
    assert (told["gone"], told["left"], bool(told["ended_at"])) == (
        {"archives": None},
        {"files in /x": "EACCES"},
        True,
    )
    client.delete("/v1/runs/1")
    assert len(harness.workflows.deletions) == 2, "it has ended"
    assert [row["run_id"] for row in client.get("/v1/runs").json()["runs"]] == [1]


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/resume"), ("POST", "/export"), ("GET", "/archive"), ("GET", "/logs"), ("GET", "/files"),
    ("GET", "/items?name=items.jsonl"), ("GET", "/file?name=task-0/a"),
])  # fmt: skip
def test_nothing_of_a_deleted_run_is_read_or_done(
    harness: Harness, client: TestClient, method: str, path: str
) -> None:
    ended(harness, client)
    client.delete("/v1/runs/1")
    answer = client.request(
        method, f"/v1/runs/1{path}", json={"rerun": True} if path == "/resume" else None
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "run_deleted")
    for page in ("", "/tasks", "/timeline", "/corrections"):
        assert client.get(f"/v1/runs/1{page}").status_code == 200


def test_what_executes_is_stopped_first(harness: Harness, client: TestClient) -> None:
    client.post("/v1/runs", json={"crawler": "plain"})
    answer = client.delete("/v1/runs/1").json()
    assert (answer["code"], "stop it first (crawlctl stop 1)" in answer["detail"]) == (
        "not_in_this_state",
        True,
    )
    assert client.delete("/v1/runs/9").json()["code"] == "run_not_found"
    assert client.delete("/v1/runs/1", params={"requested_by": "x" * 256}).status_code == 422


def test_the_sweep_brings_it_to_temporal(harness: Harness, client: TestClient) -> None:
    ended(harness, client)
    harness.workflows.down = True
    assert "as soon as Temporal can be reached" in client.delete("/v1/runs/1").json()["note"]
    harness.workflows.down = False
    harness.clock.forward(60)
    assert asyncio.run(harness.sweep().once()) == 1
    assert harness.workflows.deletions == [harness.ref(1)]
    harness.store.deletion.note_deletion(harness.ref(1), {}, {}, ended=True)
    assert asyncio.run(harness.sweep().once()) == 0


def test_a_file_that_goes_while_it_is_read_is_no_short_file() -> None:
    class Going:
        def read(
            self, run: RunRef, task: TaskRef, path: str, place: int, limit: int
        ) -> FilePart | None:
            return FilePart(b"x" * CHUNK, 3 * CHUNK) if place < 2 * CHUNK else None

    nothing: Any = None
    files = RunFiles(nothing, nothing, Going(), None, "")  # type: ignore[arg-type]
    opened = files.of_task(RunRef(1, "a" * 32), TaskRef(1, 0, 1, "u"), "items.jsonl")
    assert opened is not None
    with pytest.raises(NotDelivered, match="was removed while it was being read"):
        list(opened.part(0, 3 * CHUNK))
