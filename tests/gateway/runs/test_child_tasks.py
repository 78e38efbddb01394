"""POST …/tasks: tasks that a run, or its crawler, adds to itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle import task_tokens
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.access.operations import Entrance
from tests.gateway.gateway_harness import Harness

KEY = b"k" * 32
PAGES = {"tasks": [{"args": {"page": "1"}}, {"args": {"page": "2"}}]}


@pytest.fixture
def run_id(harness: Harness, client: TestClient) -> int:
    run_id = int(
        client.post("/v1/runs", json={"crawler": "plain"}, headers={"Idempotency-Key": "k"}).json()[
            "run_id"
        ]
    )
    harness.claim(run_id)
    return run_id


def test_tasks_are_recorded_and_the_workflow_polls(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    answer = client.post(f"/v1/runs/{run_id}/tasks", json=PAGES)
    assert answer.status_code == 202
    body = answer.json()
    assert (body["run_id"], [t["index"] for t in body["tasks"]], body["note"]) == (
        run_id,
        [1, 2],
        None,
    )
    assert [(t.task_index, t.args) for t in harness.store.tasks.list_tasks(run_id)][1:] == [
        (1, {"page": "1"}),
        (2, {"page": "2"}),
    ]
    assert harness.workflows.signals == [("crawl/plain/k", None)]
    assert client.get(f"/v1/runs/{run_id}").json()["multi"] is True


@pytest.mark.parametrize("how", ["header", "body", "both"])
def test_a_key_adds_once_and_takes_no_other_body(
    harness: Harness, client: TestClient, run_id: int, how: str
) -> None:
    headers = {} if how == "body" else {"Idempotency-Key": "more"}
    body = PAGES if how == "header" else {**PAGES, "request_id": "more"}
    first = client.post(f"/v1/runs/{run_id}/tasks", json=body, headers=headers).json()
    again = client.post(f"/v1/runs/{run_id}/tasks", json=body, headers=headers).json()
    assert again["tasks"] == first["tasks"]
    other = client.post(f"/v1/runs/{run_id}/tasks", json={**body, "tasks": [{}]}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert len(harness.store.tasks.list_tasks(run_id)) == 3


def test_many_at_once_under_one_key_add_once(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    def send(_: int) -> str:
        answer = client.post(
            f"/v1/runs/{run_id}/tasks", json=PAGES, headers={"Idempotency-Key": "more"}
        )
        assert answer.status_code == 202
        return str(answer.json()["tasks"])

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(send, range(16)))) == 1
    assert len(harness.store.tasks.list_tasks(run_id)) == 3


def test_wrong_tasks_are_named_and_nothing_is_added(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    for body, words in [
        ({"tasks": []}, "tasks"),
        ({}, "tasks"),
        ({"tasks": [{"args": {"colour": "red"}}]}, "tasks[0].args.colour: unknown argument"),
        ({"tasks": [{}, {"args": {"page": 7}}]}, "tasks"),
        ({"tasks": [{}, {"args": {"page": "x" * 65_600}}]}, "tasks[1].args: 656"),
        ({"tasks": [{}], "image": "mine"}, "image"),
        ({"tasks": [{}] * 10_001}, "tasks"),
    ]:
        answer = client.post(f"/v1/runs/{run_id}/tasks", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), body
        assert words in answer.text
    for key in ("", " ", "a" * 121):
        answer = client.post(
            f"/v1/runs/{run_id}/tasks", json=PAGES, headers={"Idempotency-Key": key}
        )
        assert answer.status_code == 422, key
    assert len(harness.store.tasks.list_tasks(run_id)) == 1


def test_a_run_that_ends_or_ended_takes_none(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    client.post(f"/v1/runs/{run_id}/stop")
    answer = client.post(f"/v1/runs/{run_id}/tasks", json=PAGES)
    assert (answer.status_code, answer.json()["code"]) == (409, "not_in_this_state")
    harness.end(run_id, RunStatus.FAILED)
    assert client.post(f"/v1/runs/{run_id}/tasks", json=PAGES).status_code == 409
    assert client.post("/v1/runs/4711/tasks", json=PAGES).status_code == 404
    assert len(harness.store.tasks.list_tasks(run_id)) == 1


def test_without_temporal_they_are_recorded_and_the_note_says_so(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    harness.workflows.down = True
    answer = client.post(f"/v1/runs/{run_id}/tasks", json=PAGES)
    assert answer.status_code == 202
    assert "recorded" in answer.json()["note"]
    assert len(harness.store.tasks.list_tasks(run_id)) == 3


def test_a_crawlers_token_is_good_for_its_own_run(harness: Harness, run_id: int) -> None:
    with harness.client(harness.new_app(entrance=Entrance(task_key=KEY))) as client:
        other = int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])
        mine = {"Authorization": f"Bearer {task_tokens.sign(KEY, harness.ref(run_id))}"}
        assert client.post(f"/v1/runs/{run_id}/tasks", json=PAGES, headers=mine).status_code == 202
        assert client.get(f"/v1/runs/{run_id}/stop", headers=mine).json()["asked"] is False
        for method, path in (("POST", "tasks"), ("GET", "stop")):
            body = PAGES if method == "POST" else None
            refused = client.request(method, f"/v1/runs/{other}/{path}", headers=mine, json=body)
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
    assert len(harness.store.tasks.list_tasks(other)) == 1
