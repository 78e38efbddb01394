"""Impossible numbers are refused by the gateway's API and by Temporal's, before anything is
written.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter, ValidationError
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.domain.bounds import ID_MAX, LIMITS
from crawler_lifecycle.domain.run import AddTasks, RunRequest
from crawler_lifecycle.workflows.exports import ExportOrder
from crawler_lifecycle.workflows.requests import read_input, read_update
from tests.gateway.gateway_harness import Harness

#: test_openapi.py checks that it is the one that is served.
DOCUMENT = Path(__file__).parents[3] / "docs/openapi.json"
ABSURD = (1e308, 2**63, -1, -0.5, True, "5", math.nan, math.inf, 10**40)
FIELDS = [name for name in LIMITS if name not in ("attempt", "run_id")]


def body_with(name: str, value: object) -> dict[str, Any]:
    if name.startswith("limits."):
        return {"crawler": "plain", "limits": {name.removeprefix("limits."): value}}
    return {"crawler": "plain", name: [value] if name == "poll_minutes" else value}


#: Foreign dates at the edges of the calendar, some of which cannot be expressed in UTC.
EDGES = (
    *(
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59.999999-14:00",
        "9999-12-31T23:59:59Z",
    ),
    *(
        "1969-12-31T23:59:59Z",
        "2101-01-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-01-01T00:00:00+24:00",
    ),
)


def test_every_date_of_the_api_is_refused_at_the_edges_of_the_calendar(client: TestClient) -> None:
    paths = json.loads(DOCUMENT.read_text())["paths"]
    apis = [
        (path, parameter["name"])
        for path, methods in paths.items()
        for parameter in methods.get("get", {}).get("parameters", ())
        if "date-time" in json.dumps(parameter["schema"])
    ]
    assert {name for _, name in apis} == {"created_from", "created_until", "since", "until"}
    for value in EDGES:
        answers = [(name, client.get(path, params={name: value})) for path, name in apis]
        answers.append(
            ("due_at", client.post("/v1/runs", json={"crawler": "plain", "due_at": value}))
        )
        for name, answer in answers:
            assert answer.status_code == 422, (name, value, answer.text)
            [error] = answer.json()["errors"]
            assert error["field"] == name
            assert value[:10] in answer.text, (name, error)
            assert error["message"]


def test_the_gateway_names_field_value_and_fix_and_writes_nothing(
    harness: Harness, client: TestClient
) -> None:
    for name in [*FIELDS, "due_at"]:
        values: tuple[object, ...] = (
            ABSURD if name != "due_at" else (5, True, "2026-03-01T12:00:00", "9999-12-31T23:59:59Z")
        )
        for value in values:
            sent = json.dumps(body_with(name, value))
            answer = client.post(
                "/v1/runs", content=sent, headers={"content-type": "application/json"}
            )
            if isinstance(value, float) and not math.isfinite(value):
                assert (answer.status_code, answer.json()["code"]) == (400, "invalid_json"), name
                continue
            assert answer.status_code == 422, (name, value, answer.text)
            told = answer.json()
            assert told["detail"].startswith(name), told
            assert "give" in told["detail"] or "should" in told["detail"], told
        assert harness.store.runs.list_runs(limit=5) == []


def test_a_start_through_temporal_is_refused_for_good() -> None:
    for name in [*FIELDS, "run_id", "due_at"]:
        values: tuple[object, ...] = (
            ABSURD if name != "due_at" else (5, True, "2026-03-01T12:00:00", "9999-12-31T23:59:59Z")
        )
        for value in values:
            if (name, value) == ("run_id", "5"):
                continue  # digits as a text: tests/workflows/test_requests.py
            with pytest.raises(ApplicationError) as caught:
                read_input(RunRequest, body_with(name, value))
            assert (caught.value.type, caught.value.non_retryable) == ("InvalidRequest", True), name
            assert caught.value.message.startswith(name), caught.value.message


def test_so_are_added_tasks_and_an_export() -> None:
    for odd in (
        {"tasks": [{"args": {"a": 1}}]},
        {"tasks": 5},
        {"tasks": [{}], "request_id": 7},
        {"tasks": True},
    ):
        with pytest.raises(ApplicationError) as caught:
            read_update(AddTasks, odd)
        assert caught.value.type == "InvalidRequest"
    fence = {"run_id": 2**63, "attempt": 1, "owner_run_id": "x", "run_uid": "0" * 32}
    for odd in (fence, {**fence, "run_id": 1, "attempt": 2**31}, {**fence, "run_id": 0}):
        with pytest.raises(ValidationError, match=r"fence\.(run_id|attempt): "):
            TypeAdapter(ExportOrder).validate_python({"fence": odd})


def test_an_id_that_no_run_has_is_refused_on_every_path(client: TestClient) -> None:
    for run_id in [
        "99999999999999999999",
        str(ID_MAX + 1),
        "0",
        "-1",
        "1e3",
        "%F0%9F%95%B7",
        "1" * 5000,
    ]:
        for path in ("", "/tasks", "/timeline", "/corrections", "/stop", "/logs"):
            answer = client.get(f"/v1/runs/{run_id}{path}")
            assert answer.status_code in (404, 405, 414, 422), (path, answer.text)
        assert client.get(f"/v1/runs/{ID_MAX}").status_code == 404
        assert client.post(f"/v1/runs/{ID_MAX}/stop").status_code == 404


def test_the_ladder_of_a_resume_has_the_same_bounds(harness: Harness, client: TestClient) -> None:
    run_id = client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"]
    harness.claim(run_id)
    harness.end(run_id)
    for minutes in ([1e308], [0], [1441], [True]):
        answer = client.post(f"/v1/runs/{run_id}/resume", json={"poll_minutes": minutes})
        assert (answer.status_code, answer.json()["detail"][:12]) == (422, "poll_minutes")
