"""POST …/export and GET …/archive: deliveries of the completion, once more."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.names import archive_key
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.ports.runs import Fence
from tests.gateway.gateway_harness import Harness
from tests.support.fakes.services import FakeArchive


@pytest.fixture
def ended(harness: Harness, client: TestClient) -> int:
    run_id = int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])
    harness.claim(run_id)
    harness.end(run_id)
    return run_id


def archived(
    harness: Harness, archive: FakeArchive, run_id: int, folder: Path, attempt: int = 1
) -> bytes:
    folder.mkdir(exist_ok=True)
    (folder / "items.jsonl").write_text(f'{{"attempt": {attempt}}}\n')
    row = harness.run(run_id)
    assert row.owner_run_id is not None
    key = archive_key(row.ref, attempt)
    result = archive.store(
        key, [FileSource("0", folder)], {"run_id": run_id}, lambda files, size: None
    )
    harness.store.exports.record_export(
        Fence(run_id, attempt, row.owner_run_id, row.run_uid), "exported", result, None
    )
    return archive.stored[result.url]


def test_deliveries_are_asked_for_again(harness: Harness, client: TestClient, ended: int) -> None:
    answer = client.post(f"/v1/runs/{ended}/export")
    assert answer.status_code == 202
    assert f"crawl-export/{harness.ref(ended)}/1" in answer.json()["note"]
    row = harness.run(ended)
    assert harness.workflows.exports == [
        (Fence(ended, 1, row.owner_run_id or "", row.run_uid), True, True)
    ]


def test_only_a_part_may_be_asked_for(harness: Harness, client: TestClient, ended: int) -> None:
    client.post(f"/v1/runs/{ended}/export", json={"event": False, "attempt": 1})
    client.post(f"/v1/runs/{ended}/export", json={"files": False})
    assert [what for _, *what in harness.workflows.exports] == [[False, True], [True, False]]
    nothing = client.post(f"/v1/runs/{ended}/export", json={"event": False, "files": False})
    assert (nothing.status_code, nothing.json()["code"]) == (422, "invalid_request")


def test_what_has_no_verdict_delivers_nothing(
    harness: Harness, client: TestClient, ended: int
) -> None:
    live = int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])
    for run_id, body in ((live, {}), (ended, {"attempt": 2})):
        answer = client.post(f"/v1/runs/{run_id}/export", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "not_in_this_state")
    assert client.post("/v1/runs/4711/export").status_code == 404
    assert harness.workflows.exports == []


def test_without_temporal_it_is_refused_and_may_be_repeated(
    harness: Harness, client: TestClient, ended: int
) -> None:
    harness.workflows.down = True
    answer = client.post(f"/v1/runs/{ended}/export")
    assert (answer.status_code, answer.json()["code"]) == (503, "temporal_unavailable")
    assert "Retry-After" in answer.headers


def test_the_archive_is_downloaded_whole(harness: Harness, ended: int, tmp_path: Path) -> None:
    archive = FakeArchive()
    content = archived(harness, archive, ended, tmp_path / "files")
    with harness.client(harness.new_app(archive=archive)) as client:
        answer = client.get(f"/v1/runs/{ended}/archive")
    assert answer.status_code == 200
    assert answer.content == content
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == f'attachment; filename="run-{ended}-1.zip"'
    assert answer.headers["content-length"] == str(len(content))
    assert answer.headers["etag"] == f'"{hashlib.sha256(content).hexdigest()}"'
    assert "0/items.jsonl" in zipfile.ZipFile(io.BytesIO(answer.content)).namelist()


def test_what_is_not_archived_is_404_and_what_cannot_be_read_503(
    harness: Harness, ended: int, tmp_path: Path
) -> None:
    archive = FakeArchive()
    with harness.client(harness.new_app(archive=archive)) as client:
        for path in (f"/v1/runs/{ended}/archive", "/v1/runs/4711/archive"):
            assert client.get(path).status_code == 404
        archived(harness, archive, ended, tmp_path / "files")
        none = client.get(f"/v1/runs/{ended}/archive", params={"attempt": 2})
        assert (none.status_code, none.json()["code"]) == (404, "archive_not_found")
        archive.faults.add(NotDelivered("the bucket does not answer"))
        down = client.get(f"/v1/runs/{ended}/archive")
        assert (down.status_code, down.json()["code"]) == (503, "archive_unavailable")
