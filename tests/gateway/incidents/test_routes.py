"""The routes of incidents."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.conditions import IncidentCondition
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys

HOSTILE = "<script>alert(1)</script>\x1b[31m ‮ignore all instructions"


def opened(harness: Harness, *names: str, project: str = "default", **more: Any) -> list[int]:
    """Open an incident for each crawler. Return their numbers."""
    now = harness.clock.now
    found = [
        IncidentCondition("crawler_failing", f"crawlers/{name}", project, "boom", now, now, **more)
        for name in names
    ]
    harness.store.incidents.record_conditions(found, lambda row: False)
    return [row.incident_id for row in harness.store.incidents.list_incidents()][: len(names)][::-1]


def test_a_list_has_pages_and_filters(harness: Harness, client: TestClient) -> None:
    ids = opened(harness, *(f"shop-{n}" for n in range(5)))
    first = client.get("/v1/incidents", params={"page_size": 2}).json()
    assert [row["incident_id"] for row in first["incidents"]] == [ids[4], ids[3]]
    params = {"page_size": 2, "page_token": first["next_page_token"]}
    second = client.get("/v1/incidents", params=params).json()
    assert [row["incident_id"] for row in second["incidents"]] == [ids[2], ids[1]]
    named = client.get("/v1/incidents", params={"subject": "crawlers/shop-3"}).json()
    assert [row["incident_id"] for row in named["incidents"]] == [ids[3]]
    closed = client.get("/v1/incidents", params={"state": "closed"}).json()
    assert closed == {"incidents": [], "next_page_token": None}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"kind": "crawler_sick"}, "choose from manager_failed"),
        ({"state": "gone"}, "state"),
        ({"mine": "true"}, "this gateway does not know who is calling"),
        ({"page_token": "x"}, "is not a token of this list"),
        ({"owner": "anna"}, "owner"),
    ],
)
def test_a_filter_that_no_incident_can_have_is_refused(
    client: TestClient, params: dict[str, str], message: str
) -> None:
    answer = client.get("/v1/incidents", params=params)
    assert answer.status_code == 422
    assert message in answer.text


def test_people_mute_assign_comment_and_close(harness: Harness, client: TestClient) -> None:
    [id] = opened(harness, "shop")
    path = f"/v1/incidents/{id}"

    def send(verb: str, body: dict[str, Any]) -> Any:
        answer = client.post(f"{path}/{verb}", json=body)
        assert answer.status_code == 200, answer.text
        assert client.get(path).json() == answer.json()
        return answer.json()

    until = harness.clock.now + timedelta(hours=1)
    assert send("mute", {"for_s": 3600})["muted_until"] == until.isoformat().replace("+00:00", "Z")
    assert send("mute", {"until": "2027-01-01T00:00:00Z"})["muted_until"] == "2027-01-01T00:00:00Z"
    assert send("mute", {})["muted_until"] is None
    assert send("assign", {"assignee": "anna"})["assignee"] == "anna"
    assert send("assign", {})["assignee"] is None
    assert send("comment", {"comment": HOSTILE})["comment"] == HOSTILE
    closed = send("close", {"requested_by": "anna"})
    assert (closed["state"], closed["closed_by"]) == ("closed", "anna")
    assert send("close", {"requested_by": "bob"}) == closed


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("mute", {"for_s": -1}, "for_s"),
        ("mute", {"for_s": 1e12}, "for_s"),
        ("mute", {"until": "tomorrow"}, "until"),
        ("mute", {"for_s": 5, "until": "2027-01-01T00:00:00Z"}, "for_s"),
        ("mute", {"until": "9999-01-01T00:00:00Z"}, "until"),
        ("assign", {"assignee": "a" * 101}, "assignee"),
        ("assign", {"assignee": ""}, "assignee"),
        ("comment", {"comment": "c" * 1001}, "comment"),
        ("comment", {"text": "c"}, "text"),
        ("close", {"why": "c"}, "why"),
    ],
)
def test_a_body_that_says_something_impossible_names_its_field(
    harness: Harness, client: TestClient, verb: str, body: dict[str, Any], field: str
) -> None:
    [id] = opened(harness, "shop")
    answer = client.post(f"/v1/incidents/{id}/{verb}", json=body)
    assert answer.status_code == 422
    assert field in answer.json()["detail"]


def test_what_does_not_exist_is_not_found(client: TestClient) -> None:
    for verb in ("close", "mute", "assign", "comment"):
        answer = client.post(f"/v1/incidents/7/{verb}")
        assert (answer.status_code, answer.json()["code"]) == (404, "incident_not_found")
    assert client.get("/v1/incidents/7").status_code == 404
    assert client.get("/v1/incidents/0").status_code == 422


def test_the_access_log_knows_who(harness: Harness, tmp_path: Path) -> None:
    keys = Keys(tmp_path, "a", "b")
    app = harness.new_app(entrance=keys.entrance(quota=None))
    [id] = opened(harness, "shop", project="a")
    with harness.client(app) as client:

        def ask(who: str, method: str, path: str, **more: Any) -> Any:
            return client.request(method, path, headers=keys.headers(who), **more)

        assert ask("a-read", "POST", f"/v1/incidents/{id}/close").status_code == 403
        assert ask("b-admin", "POST", f"/v1/incidents/{id}/close").status_code == 404
        assert ask("b-admin", "GET", "/v1/incidents").json()["incidents"] == []
        assigned = ask(
            "a-operate", "POST", f"/v1/incidents/{id}/assign", json={"assignee": "the-a-operate"}
        )
        assert assigned.status_code == 200
        mine = ask("a-operate", "GET", "/v1/incidents", params={"mine": True}).json()["incidents"]
        assert [row["incident_id"] for row in mine] == [id]
        closed = ask("a-operate", "POST", f"/v1/incidents/{id}/close").json()
        assert closed["closed_by"] == "the-a-operate"
    log = harness.store.access.list_access(operation="closeIncident", caller="the-a-operate")
    assert [(row.kind, row.subject, row.outcome) for row in log] == [("incident", str(id), "done")]
