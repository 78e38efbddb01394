"""A row that another program spoilt: one run says so, and lists, sweep and stream go on."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.run import StopIntent, StopRequest
from tests.gateway.gateway_world import World


def _start(client: TestClient) -> int:
    return int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])


def _write(world: World, statement: str, *values: Any) -> None:
    database = world.store.database.engine.url.database
    with sqlite3.connect(str(database), timeout=10) as connection:
        assert connection.execute(statement, values).rowcount
    connection.close()


@pytest.mark.parametrize(("column", "value", "words"), [
    ("status", "BANANA", "set one of INITIALIZING"), ("request", "{oops", "set a JSON object"),
    ("created_at", "yesterday", "a time such as"), ("attempt", -1, "at least 1"),
])  # fmt: skip
def test_one_run_is_a_problem_and_the_list_goes_on(
    world: World, client: TestClient, caplog: pytest.LogCaptureFixture, column: str, value: object, words: str
) -> None:
    good, odd = _start(client), _start(client)
    _write(world, f"UPDATE run_history SET {column} = ? WHERE run_id = ?", value, odd)
    asks: list[Callable[[], Any]] = [
        lambda: client.get(f"/v1/runs/{odd}"),
        lambda: client.get(f"/v1/runs/{odd}/timeline"),
        lambda: client.post(f"/v1/runs/{odd}/look"),
    ]
    for ask in asks:
        with caplog.at_level(logging.ERROR):
            answer = ask()
        assert answer.status_code == 500, answer.text
        problem = answer.json()
        assert problem["code"] == "row_unreadable"
        for part in ("run_history", f"run_id {odd}", column, words):
            assert part in problem["detail"]
        assert problem["detail"] in caplog.text
    runs = {run["run_id"]: run for run in client.get("/v1/runs").json()["runs"]}
    assert (runs[good]["unreadable"], runs[good]["status"]) == (None, "INITIALIZING")
    assert words in runs[odd]["unreadable"]
    assert runs[odd]["status"] == ("BANANA" if column == "status" else "INITIALIZING")
    assert client.get(f"/v1/runs/{good}").status_code == 200


def test_a_counter_below_zero_is_marked_and_stands_in_no_way(world: World, client: TestClient) -> None:
    run = _start(client)
    _write(world, "UPDATE run_history SET pages = -5")
    assert "pages is -5" in client.get(f"/v1/runs/{run}").json()["unreadable"]
    assert client.post(f"/v1/runs/{run}/stop", json={}).status_code == 202


def test_a_task_is_listed_with_what_stands_there(world: World, client: TestClient) -> None:
    run = _start(client)
    _write(world, "UPDATE task_history SET status = 'BANANA'")
    [task] = client.get(f"/v1/runs/{run}/tasks").json()["tasks"]
    assert task["status"] == "BANANA"
    assert "set one of QUEUED" in task["unreadable"]
    assert client.get(f"/v1/runs/{run}").json()["tasks"] == {"BANANA": 1}


SPOILT = {"status": "BANANA", "request": "{oops", "created_at": "yesterday", "attempt": -1, "crawler": b"\x00\xff"}


@pytest.mark.parametrize("force", [False, True], ids=["stop", "kill"])
@pytest.mark.parametrize("column", SPOILT)
def test_a_stop_of_a_run_whose_row_cannot_be_read_is_told(
    world: World, client: TestClient, column: str, force: bool
) -> None:
    run = _start(client)
    world.claim(run)
    owner = world.store.runs.get_run(run)
    before = getattr(owner, column)
    _write(world, f"UPDATE run_history SET {column} = ?", SPOILT[column])
    body = {"request_id": "s", "force": force, "reason": "enough"}
    for _ in range(2):
        answer = client.post(f"/v1/runs/{run}/stop", json=body)
        assert answer.status_code == 202, answer.text
        told = answer.json()
        for part in ("killed" if force else "asked to end", "run_history", column, "set "):
            assert part in told["note"]
        assert column in told["unreadable"]
    assert owner is not None
    assert world.workflows.signals == [(owner.owner_workflow_id, StopRequest("s", None, "enough", force))] * 2
    logged = [(one["request_id"], one["force"]) for one in world.store.runs.cancellations(run)]
    assert logged == ([] if column == "attempt" else [("s", force)])
    asked = client.get(f"/v1/runs/{run}/stop").json()
    assert (asked["asked"], asked["force"]) == ((False, False) if column == "attempt" else (True, force))
    if column != "attempt":
        return
    _write(world, "UPDATE run_history SET attempt = ?", before)
    world.store.stops.record_stop(run, StopIntent(world.clock(), force), "s", world.fence(run))
    assert len(world.store.runs.cancellations(run)) == 1


def test_an_unrecorded_stop_that_nobody_can_hear_is_no_success(world: World, client: TestClient) -> None:
    run = _start(client)
    world.claim(run)
    _write(world, "UPDATE run_history SET status = 'BANANA'")
    world.workflows.down = True
    answer = client.post(f"/v1/runs/{run}/stop", json={"request_id": "s"})
    assert (answer.status_code, answer.json()["code"]) == (503, "temporal_unavailable")
    assert "send this again" in answer.json()["detail"]
    assert "set one of INITIALIZING" in answer.json()["detail"]
    world.workflows.down = False
    world.workflows.open.clear()
    answer = client.post(f"/v1/runs/{run}/stop", json={"request_id": "s"})
    assert (answer.status_code, answer.json()["code"]) == (500, "row_unreadable")
    _write(world, "UPDATE run_history SET status = 'PROCESSING'")
    assert client.post(f"/v1/runs/{run}/stop", json={"request_id": "s"}).status_code == 202
    assert [one["request_id"] for one in world.store.runs.cancellations(run)] == ["s"], "one wish, one row"
