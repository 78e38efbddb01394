"""Tickets with which tasks in pods upload their supporting files to object storage."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

import crawler_lifecycle.runner
from crawler_lifecycle import task_tokens
from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.clusters.kubernetes.files.sources import task_files
from crawler_lifecycle.compose import open_bundles
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.ports.runs import TaskRef
from crawler_lifecycle.task_tokens import Purpose, TaskClaim
from tests.gateway.gateway_harness import Harness
from tests.gateway.served import served
from tests.support.run_refs import run_ref
from tests.support.s3 import rclone_s3, use_aws

KEY = b"k" * 32
MD5 = base64.b64encode(hashlib.md5(b"part", usedforsecurity=False).digest()).decode()


def _token(run: RunRef, index: int, attempt: int) -> str:
    return task_tokens.sign_task(KEY, TaskClaim(Purpose.FILES, run, index, attempt))


PART = {"part": 0, "bytes": 4, "md5": MD5}


@pytest.fixture
def client(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    use_aws(monkeypatch, "http://127.0.0.1:9")  # no signature is requested from anybody
    bundles = open_bundles("s3://crawls/files")
    with harness.client(
        harness.new_app(entrance=Entrance(task_key=KEY), bundles=bundles)
    ) as client:
        yield client


@pytest.fixture
def run_id(harness: Harness, client: TestClient) -> int:
    run_id = int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])
    harness.claim(run_id)
    harness.deploy(run_id)
    return run_id


def _ask(
    harness: Harness, client: TestClient, run_id: int, index: int = 0, attempt: int = 1, **more: Any
) -> Any:
    row = harness.store.runs.get_run(run_id)
    token = _token(run_ref(run_id) if row is None else row.ref, index, attempt)
    path = f"/v1/runs/{run_id}/tasks/{index}/attempts/{attempt}/files"
    return client.post(path, headers={"Authorization": f"Bearer {token}"}, json={**PART, **more})


def test_a_task_gets_an_address_for_exactly_one_part(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    answer = _ask(harness, client, run_id, part=7)
    assert answer.status_code == 200, answer.text
    ticket = answer.json()
    address = urlsplit(ticket["url"])
    signed = parse_qs(address.query)
    assert address.path == f"/crawls/files/{harness.ref(run_id)}/0/1/part-00007"
    # Size and digest are signed, so that the address accepts only these bytes.
    assert signed["X-Amz-SignedHeaders"] == ["content-length;content-md5;host"]
    assert signed["X-Amz-Expires"] == ["300"]
    assert ticket["headers"] == {"Content-Length": "4", "Content-MD5": MD5}
    left = datetime.fromisoformat(ticket["expires_at"]) - datetime.now(UTC)
    assert timedelta(0) < left <= timedelta(seconds=300)
    assert "canary-secret" not in answer.text
    assert (
        urlsplit(_ask(harness, client, run_id, part=None).json()["url"]).path
        == f"/crawls/files/{harness.ref(run_id)}/0/1/bundle.json"
    )


def test_the_token_of_another_run_of_the_number_opens_nothing(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    """The database was restored and assigned the number again, while a pod of the earlier run
    continues with its token.
    """
    before = RunRef(run_id, "f" * 32)
    path = f"/v1/runs/{run_id}/tasks/0/attempts/1/files"
    token = _token(before, 0, 1)
    refused = [client.post(path, headers={"Authorization": f"Bearer {token}"}, json=PART)]
    crawler = {"Authorization": f"Bearer {task_tokens.sign(KEY, before)}"}
    refused.append(client.post(f"/v1/runs/{run_id}/tasks", headers=crawler, json={"tasks": [{}]}))
    refused.append(client.get(f"/v1/runs/{run_id}/stop", headers=crawler))
    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert before.uid in answer.json()["detail"]
    assert len(harness.store.tasks.list_tasks(run_id)) == 1


def test_an_address_is_of_the_region_that_containers_on_aws_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_aws(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    ticket = open_bundles("s3://crawls/files").ticket(run_ref(7), 0, 1, 0, 4, MD5)
    (credential,) = parse_qs(urlsplit(ticket.url).query)["X-Amz-Credential"]
    assert "/eu-central-1/s3/" in credential


def test_the_token_of_one_task_opens_nothing_else(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    mine = {"Authorization": f"Bearer {_token(harness.ref(run_id), 0, 1)}"}
    for method, path in [
        ("POST", f"/v1/runs/{run_id}/tasks/1/attempts/1/files"),
        ("POST", f"/v1/runs/{run_id}/tasks/0/attempts/2/files"),
        ("POST", f"/v1/runs/{run_id + 1}/tasks/0/attempts/1/files"),
        ("POST", f"/v1/runs/{run_id}/tasks"),
        ("POST", f"/v1/runs/{run_id}/stop"),
        ("GET", f"/v1/runs/{run_id}"),
    ]:
        refused = client.request(
            method, path, headers=mine, json=PART if method == "POST" else None
        )
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
    run_token = {"Authorization": f"Bearer {task_tokens.sign(KEY, harness.ref(run_id))}"}
    answer = client.post(
        f"/v1/runs/{run_id}/tasks/0/attempts/1/files", headers=run_token, json=PART
    )
    assert answer.status_code == 403


def test_a_part_that_can_never_be_taken_is_refused_by_name(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    for field, value in [
        ("part", -1),
        ("part", 6400),
        ("bytes", 0),
        ("bytes", 8 * 2**20 + 1),
        ("md5", "x"),
        ("md5", "A" * 24),
    ]:
        answer = _ask(harness, client, run_id, **{field: value})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), field
        assert answer.json()["errors"][0]["field"] == field


def test_a_task_that_has_ended_gets_no_more(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    fence = harness.fence(run_id)
    harness.store.stops.mark_stopping(fence, [harness.store.tasks.list_tasks(run_id)[0].task_id])
    assert (
        _ask(harness, client, run_id).status_code == 200
    )  # files are uploaded while a task is stopping
    other = int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])
    harness.claim(other)
    harness.end(other, RunStatus.FAILED)
    answer = _ask(harness, client, other)
    assert (answer.status_code, answer.json()["code"]) == (409, "not_in_this_state")
    assert _ask(harness, client, run_id, index=5).json()["code"] == "task_not_found"
    assert _ask(harness, client, 4711).json()["code"] == "task_not_found"


def test_without_object_storage_the_answer_names_the_setting(harness: Harness) -> None:
    with harness.client(harness.new_app(entrance=Entrance(task_key=KEY))) as client:
        answer = _ask(harness, client, 1)
    assert answer.status_code == 409
    assert "LIFECYCLE_CLUSTER__FILES_URL" in answer.json()["detail"]


def test_without_credentials(
    harness: Harness, client: TestClient, run_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    answer = _ask(harness, client, run_id)
    assert (answer.status_code, answer.json()["code"]) == (503, "archive_unavailable")
    assert answer.headers["Retry-After"]
    assert "credentials" in answer.json()["detail"]


async def test_from_a_crawlers_folder_to_the_archive(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rclone_s3() as server, harness.client() as client:
        use_aws(monkeypatch, server.url)
        bundles = open_bundles(f"s3://{server.bucket().name}/files")
        run_id = int(
            client.post("/v1/runs", json={"crawler": "plain", "tasks": [{}, {}]}).json()["run_id"]
        )
        harness.claim(run_id)
        harness.deploy(run_id)
        async with served(
            harness.new_app(entrance=Entrance(task_key=KEY), bundles=bundles)
        ) as gateway:
            path = f"{gateway.url}/v1/runs/{run_id}/tasks/1/attempts/1/files"
            mine, foreign = (_token(harness.ref(run_id), index, 1) for index in (1, 0))
            told = [await _left(tmp_path, path, token) for token in (foreign, mine)]
        assert told[0]["uploaded"] is False
        assert "is for the files of that task only" in told[0]["why"]
        assert told[1] == {"uploaded": True, "files": 1, "bytes": 4}
        tasks = [
            TaskRef(row.task_id, row.task_index, 1, row.cluster_uid)
            for row in harness.store.tasks.list_tasks(run_id)
        ]
        archive = open_archive((tmp_path / "archive").as_uri())
        result = archive.store(
            "7/1/x.zip",
            task_files(None, None, bundles).files(harness.ref(run_id), tasks),
            {},
            lambda *_: None,
        )
    zipped = zipfile.ZipFile(io.BytesIO(b"".join(archive.open(result.url))))
    assert zipped.read("task-1/note") == b"left"
    assert result.note is not None
    assert "task-0: nothing was uploaded" in result.note


async def _left(folder: Path, url: str, token: str) -> Any:
    """Return what a runner's summary reports about a single file of its crawler."""
    files, summary = folder / "files", folder / "summary"
    files.mkdir(exist_ok=True)
    runner = Path(crawler_lifecycle.runner.__file__).parent
    write = "import os; open(os.environ['CRAWL_FILES_DIR'] + '/note', 'w').write('left')"
    environment = {
        "PATH": os.environ["PATH"],
        "CRAWL_FILES_DIR": str(files),
        "CRAWL_SUMMARY_FILE": str(summary),
        "CRAWL_UPLOAD_URL": url,
        "CRAWL_UPLOAD_TOKEN": token,
    }
    argv = [sys.executable, "-I", "-S", str(runner), "command", "--", sys.executable, "-c", write]
    done = await asyncio.to_thread(
        subprocess.run, argv, env=environment, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(summary.read_text())["files"]
