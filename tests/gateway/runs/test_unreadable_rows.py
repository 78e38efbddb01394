"""A request that another program damaged: this run reports it, and lists, audits and stops
continue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from crawler_lifecycle.domain.run import StopRequest
from tests.gateway.gateway_harness import Harness


def _start(client: TestClient) -> int:
    return int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])


def _spoil(harness: Harness, run_id: int) -> None:
    with harness.store.database.writing() as conn:
        odd = {"odd": '{"crawler": 7}', "run": run_id}
        assert conn.execute(
            text("UPDATE run_history SET request = :odd WHERE run_id = :run"), odd
        ).rowcount


def test_one_run_is_a_problem_of_its_own(
    harness: Harness, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    good, odd = _start(client), _start(client)
    _spoil(harness, odd)
    asks: list[Callable[[], Any]] = [
        lambda: client.get(f"/v1/runs/{odd}"),
        lambda: client.get(f"/v1/runs/{odd}/timeline"),
        lambda: client.post(f"/v1/runs/{odd}/poll"),
    ]
    for ask in asks:
        with caplog.at_level(logging.ERROR):
            answer = ask()
        assert answer.status_code == 500, answer.text
        problem = answer.json()
        assert problem["code"] == "row_unreadable"
        for part in ("run_history", f"run_id {odd}", "crawler of the request"):
            assert part in problem["detail"]
        assert problem["detail"] in caplog.text
    assert [run["run_id"] for run in client.get("/v1/runs").json()["runs"]] == [odd, good]
    assert client.get(f"/v1/runs/{good}").status_code == 200


@pytest.mark.parametrize("force", [False, True], ids=["stop", "kill"])
def test_a_stop_of_such_a_run_is_recorded_and_told(
    harness: Harness, client: TestClient, force: bool
) -> None:
    run = _start(client)
    harness.claim(run)
    owner = harness.run(run)
    _spoil(harness, run)
    for _ in range(2):
        answer = client.post(
            f"/v1/runs/{run}/stop", json={"request_id": "s", "force": force, "reason": "enough"}
        )
        assert answer.status_code == 202, answer.text
    assert (
        harness.workflows.signals
        == [(owner.owner_workflow_id, StopRequest("s", None, "enough", force))] * 2
    )
    assert [(one["request_id"], one["force"]) for one in harness.store.runs.cancellations(run)] == [
        ("s", force)
    ]
    asked = client.get(f"/v1/runs/{run}/stop").json()
    assert (asked["asked"], asked["force"]) == (True, force)
