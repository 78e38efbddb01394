"""Hostile requests over HTTP: undeclared fields, text that is code elsewhere, names that forge log
lines.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from tests.gateway.gateway_harness import Harness
from tests.gateway.gateway_process import environment, gateway
from tests.support.databases import make_tables

HOSTILE = [
    *(
        "' OR '1'='1",
        "'; DROP TABLE run_history; --",
        '" UNION SELECT * FROM task_history --',
        "1) OR (1=1",
    ),
    *(
        "%",
        "_lain",
        "plain\\",
        "\x00",
        "plain\u202e",
        "${jndi:ldap://x}",
        "{{7*7}}",
        "../../etc/passwd",
    ),
    *("<img src=x onerror=alert(1)>", "plain\r\nX-Injected: 1", "a" * 4000),
    "пл\u00e4in\U0001f577",
]

#: Fields that a caller might try to set, but never may.
UNDECLARED = {
    **{
        "status": "COMPLETED",
        "stage": "completion",
        "run_id": 1,
        "owner_run_id": "x",
        "tenant_id": "other",
    },
    **{
        "image": "evil:latest",
        "command": ["sh"],
        "namespace": "kube-system",
        "env": {"LD_PRELOAD": "x"},
    },
    **{"workflow_id": "x", "__class__": "x", "rerun ": True},
}


@pytest.fixture
def run_id(harness: Harness, client: TestClient) -> int:
    number = int(
        client.post("/v1/runs", json={"crawler": "plain", "tags": ["t"], "flow_id": "f"}).json()[
            "run_id"
        ]
    )
    harness.claim(number)
    return number


# --- undeclared fields ----------------------------------------------------------------------------


def test_what_is_not_declared_is_refused_by_name(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    for path, body in [
        ("/v1/runs", {"crawler": "plain"}),
        ("/v1/runs/{}/stop", {}),
        ("/v1/runs/{}/resume", {}),
        ("/v1/runs/{}/export", {}),
        ("/v1/runs/{}/tasks", {"tasks": [{"args": {}}]}),
    ]:
        before = harness.store.runs.get_run(run_id)
        for name, value in UNDECLARED.items():
            answer = client.post(path.format(run_id), json={**body, name: value})
            assert answer.status_code == 422, (path, name)
            assert [error["field"] for error in answer.json()["errors"]] == [name]
            resumed = path == "/v1/runs" and name == "run_id"
            assert ("/resume" if resumed else "unknown") in answer.json()["errors"][0]["message"]
        assert harness.store.runs.get_run(run_id) == before
        assert len(harness.store.runs.list_runs()) == 1


def test_undeclared_parameters_are_refused_on_every_list(client: TestClient, run_id: int) -> None:
    paths = ["/v1/runs", "/v1/corrections", "/v1/events"]
    paths += [
        f"/v1/runs/{run_id}/{name}"
        for name in ("tasks", "timeline", "corrections", "logs", "archive")
    ]
    for path in paths:
        answer = client.get(path, params={"tenant": "other"})
        assert answer.status_code == 422, path
        assert answer.json()["errors"][0]["field"] == "tenant"


# --- text that is code elsewhere ------------------------------------------------------------------


FILTERS = (
    "crawler",
    "outcome",
    "flow_id",
    "tag",
    "trigger",
    "status",
    "stage",
    "created_from",
    "pool",
    "parent",
)


def test_a_filter_finds_what_is_equal_and_runs_nothing(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    for name in FILTERS:
        for text in HOSTILE:
            answer = client.get("/v1/runs", params={name: text})
            assert answer.status_code in (200, 422), (text, answer.text)
            if answer.status_code == 200:
                assert answer.json()["runs"] == [], text
        assert [row.run_id for row in harness.store.runs.list_runs()] == [run_id]


def test_ids_and_tokens_of_pages_are_no_code_either(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    for path, name in [
        ("/v1/runs", "page_token"),
        ("/v1/runs/{}/tasks", "page_token"),
        ("/v1/runs/{}/timeline", "page_token"),
        ("/v1/corrections", "page_token"),
        ("/v1/corrections", "since"),
        ("/v1/runs/{}/logs", "task"),
        ("/v1/events", "after"),
    ]:
        for text in HOSTILE:
            answer = client.get(path.format(run_id), params={name: text})
            assert answer.status_code == 422, (text, answer.text)
            assert (
                client.get("/v1/events", headers={"Last-Event-ID": text.encode()}).status_code
                == 422
            )
        assert [row.run_id for row in harness.store.runs.list_runs()] == [run_id]


def test_stored_text_comes_back_as_it_was_and_as_json(client: TestClient) -> None:
    taken = 0
    for text in HOSTILE:
        body = {
            "crawler": "plain",
            "args": {"page": text},
            "requested_by": text[:64],
            "flow_id": text[:64],
        }
        started = client.post("/v1/runs", json=body)
        assert started.status_code in (202, 422), (text, started.text)
        if started.status_code == 202:
            taken += 1
            found = client.get(f"/v1/runs/{started.json()['run_id']}")
            assert found.headers["content-type"] == "application/json"
            assert found.json()["request"]["args"]["page"] == text
            assert found.json()["requested_by"] == text[:64]
    assert taken >= 8


# --- what steers logs -----------------------------------------------------------------------------


def test_no_request_breaks_a_line_of_the_log(tmp_path: Path) -> None:
    database = make_tables(f"sqlite:///{tmp_path}/runs.db")
    with gateway(environment(tmp_path, LIFECYCLE_DATABASE__URL=database), tmp_path) as running:
        with httpx.Client(base_url=running.url, timeout=60) as http:
            for text in HOSTILE:
                http.post("/v1/runs", json={"crawler": text, "requested_by": text})
                named = {"X-Request-Id": text[:99]} if text.isascii() and text.isprintable() else {}
                http.post("/v1/runs/1/stop", json={"reason": text}, headers=named)
                http.get("/v1/runs", params={"crawler": text, text: text})
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
        lines = running.log.read_text().split("\n")
    records = [json.loads(line) for line in lines if line and "listens on" not in line]
    assert sum(
        record.get("operation") == "stopRun" and "status" in record for record in records
    ) >= len(HOSTILE)
    assert not [line for line in lines if "\x1b" in line or "\u202e" in line or "\x00" in line]
