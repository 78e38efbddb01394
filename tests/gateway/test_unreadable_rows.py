"""A row that another program spoilt: one run says so, and lists, sweep and stream go on."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from gateway_world import World


def _start(client: TestClient) -> int:
    return int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])


def _write(world: World, statement: str, *values: Any) -> None:
    database = world.store._db.engine.url.database
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
        lambda: client.post(f"/v1/runs/{odd}/stop", json={}),
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
