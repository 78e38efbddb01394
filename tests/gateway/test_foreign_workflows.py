"""A restored database forgot a run; its request comes again, and the workflow of before is still open under its id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from gateway_world import World

from crawler_lifecycle.domain.run import RunRef

BODY = {"crawler": "plain", "request_id": "nightly"}
NAME = "crawl/plain/nightly"
BEFORE = RunRef(1, "f" * 32)


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    world.workflows.open[NAME] = "chain-of-before"
    world.workflows.runs[NAME] = BEFORE
    with world.client() as client:
        yield client


def test_a_start_says_that_the_open_workflow_is_another_runs(world: World, client: TestClient) -> None:
    answer = client.post("/v1/runs", json=BODY)
    assert (answer.status_code, answer.json()["code"]) == (409, "not_in_this_state")
    assert BEFORE.uid in answer.json()["detail"]
    assert "restored" in answer.json()["detail"]
    run = client.get("/v1/runs/1").json()
    assert run["status"] == "INITIALIZING"
    assert BEFORE.uid in run["blocked"], "whoever looks at the run reads why it waits"


def test_a_stop_of_the_new_run_reaches_no_workflow_of_another(world: World, client: TestClient) -> None:
    client.post("/v1/runs", json=BODY)
    answer = client.post("/v1/runs/1/stop", json={})
    assert answer.status_code in (200, 202), answer.text
    assert BEFORE.uid in answer.json()["note"]
    assert client.post("/v1/runs/1/look").status_code == 409
    assert client.post("/v1/runs/1/tasks", json={"tasks": [{}]}).status_code in (202, 409)
    assert world.workflows.signals == []


def test_it_starts_when_the_other_one_has_closed(world: World, client: TestClient) -> None:
    client.post("/v1/runs", json=BODY)
    del world.workflows.open[NAME]
    assert client.post("/v1/runs", json=BODY).status_code in (200, 202)
    assert [name for name, _ in world.workflows.started] == [NAME]


def test_a_repeat_that_finds_its_own_workflow_is_no_stranger(world: World) -> None:
    with world.client() as client:
        client.post("/v1/runs", json=BODY)
        for known in (None, world.ref(1)):
            if known is not None:
                world.workflows.runs[NAME] = known
            assert client.post("/v1/runs", json=BODY).status_code in (200, 202)
