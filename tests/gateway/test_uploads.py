"""Tickets by which tasks in pods put their supporting files into object storage."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from gateway_world import World

from crawler_lifecycle import task_tokens
from crawler_lifecycle.adapters.archive import open_bundles
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.auth import Entrance
from tests.support.s3 import use_aws

KEY = b"k" * 32
MD5 = base64.b64encode(hashlib.md5(b"part", usedforsecurity=False).digest()).decode()
PART = {"part": 0, "bytes": 4, "md5": MD5}


@pytest.fixture
def client(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    use_aws(monkeypatch, "http://127.0.0.1:9")  # nobody is asked for a signature
    bundles = open_bundles("s3://crawls/files")
    with world.client(world.new_app(entrance=Entrance(task_key=KEY), bundles=bundles)) as client:
        yield client


@pytest.fixture
def run_id(world: World, client: TestClient) -> int:
    run_id = int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])
    world.claim(run_id)
    world.deploy(run_id)
    return run_id


def _ask(client: TestClient, run_id: int, index: int = 0, attempt: int = 1, **more: Any) -> Any:
    token = task_tokens.sign_files(KEY, run_id, index, attempt)
    path = f"/v1/runs/{run_id}/tasks/{index}/attempts/{attempt}/files"
    return client.post(path, headers={"Authorization": f"Bearer {token}"}, json={**PART, **more})


def test_a_task_gets_an_address_for_exactly_one_part_below_its_own_place(client: TestClient, run_id: int) -> None:
    answer = _ask(client, run_id, part=7)
    assert answer.status_code == 200, answer.text
    ticket = answer.json()
    address = urlsplit(ticket["url"])
    signed = parse_qs(address.query)
    assert address.path == f"/crawls/files/{run_id}/0/1/part-00007"
    # Size and digest are signed, so that the address takes these bytes and no others.
    assert signed["X-Amz-SignedHeaders"] == ["content-length;content-md5;host"]
    assert signed["X-Amz-Expires"] == ["300"]
    assert ticket["headers"] == {"Content-Length": "4", "Content-MD5": MD5}
    left = datetime.fromisoformat(ticket["expires_at"]) - datetime.now(UTC)
    assert timedelta(0) < left <= timedelta(seconds=300)
    assert "canary-secret" not in answer.text
    assert urlsplit(_ask(client, run_id, part=None).json()["url"]).path == f"/crawls/files/{run_id}/0/1/bundle.json"


def test_the_token_of_one_task_opens_no_other_task_and_nothing_else(client: TestClient, run_id: int) -> None:
    mine = {"Authorization": f"Bearer {task_tokens.sign_files(KEY, run_id, 0, 1)}"}
    for method, path in [
        ("POST", f"/v1/runs/{run_id}/tasks/1/attempts/1/files"),
        ("POST", f"/v1/runs/{run_id}/tasks/0/attempts/2/files"),
        ("POST", f"/v1/runs/{run_id + 1}/tasks/0/attempts/1/files"),
        ("POST", f"/v1/runs/{run_id}/tasks"),
        ("POST", f"/v1/runs/{run_id}/stop"),
        ("GET", f"/v1/runs/{run_id}"),
    ]:
        refused = client.request(method, path, headers=mine, json=PART if method == "POST" else None)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
    run_token = {"Authorization": f"Bearer {task_tokens.sign(KEY, run_id)}"}
    answer = client.post(f"/v1/runs/{run_id}/tasks/0/attempts/1/files", headers=run_token, json=PART)
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("field", "value"),
    [("part", -1), ("part", 6400), ("bytes", 0), ("bytes", 8 * 2**20 + 1), ("md5", "x"), ("md5", "A" * 24)],
)
def test_a_part_that_can_never_be_taken_is_refused_by_name(
    client: TestClient, run_id: int, field: str, value: Any
) -> None:
    answer = _ask(client, run_id, **{field: value})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["errors"][0]["field"] == field


def test_a_task_that_has_ended_gets_no_more(world: World, client: TestClient, run_id: int) -> None:
    fence = world.fence(run_id)
    world.store.mark_stopping(fence, [world.store.list_tasks(run_id)[0].task_id])
    assert _ask(client, run_id).status_code == 200  # stopping is when files are uploaded
    other = int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])
    world.claim(other)
    world.end(other, RunStatus.FAILED)
    answer = _ask(client, other)
    assert (answer.status_code, answer.json()["code"]) == (409, "not_in_this_state")
    assert _ask(client, run_id, index=5).json()["code"] == "task_not_found"
    assert _ask(client, 4711).json()["code"] == "task_not_found"


def test_without_object_storage_the_answer_names_the_setting(world: World) -> None:
    with world.client(world.new_app(entrance=Entrance(task_key=KEY))) as client:
        answer = _ask(client, 1)
    assert answer.status_code == 409
    assert "LIFECYCLE_CLUSTER__FILES_URL" in answer.json()["detail"]


def test_without_credentials_it_is_asked_again(
    world: World, client: TestClient, run_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    answer = _ask(client, run_id)
    assert (answer.status_code, answer.json()["code"]) == (503, "archive_unavailable")
    assert answer.headers["Retry-After"]
    assert "credentials" in answer.json()["detail"]
