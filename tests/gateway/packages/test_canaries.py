"""Canaries through the API."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

from crawler_lifecycle.features.packages.gateway.canaries import conditions
from tests.gateway.gateway_harness import Harness
from tests.gateway.packages.test_packages import ok, put, zipped

TENTH = {"canary": 0.1, "canary_runs": 5, "judge": ["items", "errors"]}


def test_a_canary_is_deployed_listed_and_ended(
    harness: Harness, client: TestClient, tmp_path: Path
) -> None:
    ok(put(client, "v1", zipped(tmp_path / "a", "1")), 201)
    tried = ok(put(client, "v2", zipped(tmp_path / "a", "2"), params=TENTH), 201)
    assert (tried["current"], tried["told"]) == (False, "10 % of the runs try it.")
    [row] = ok(client.get("/v1/canaries"))["canaries"]
    assert (row["old_version"], row["new_version"], row["state"]) == ("v1", "v2", "open")
    assert (row["share"], row["runs"], row["judge"]) == (0.1, 5, ["items", "errors"])
    path = f"/v1/canaries/{row['canary_id']}"
    ended = ok(client.post(f"{path}/accept", json={"requested_by": "ann"}))
    assert (ended["state"], ended["ended_by"], ended["result"]) == (
        "accepted",
        "ann",
        "ann accepted it",
    )
    assert ok(client.get("/v1/packages/shop/versions/v2"))["current"]
    assert "has already ended: accepted" in ok(client.post(f"{path}/reject"), 409)["detail"]
    assert ok(client.get("/v1/canaries", params={"state": "open"}))["canaries"] == []
    assert ok(client.post("/v1/canaries/4711/accept"), 404)["code"] == "canary_not_found"
    assert list(conditions(harness.store, harness.clock.now)) == []


def test_settings_out_of_bounds_are_refused(client: TestClient, tmp_path: Path) -> None:
    content = zipped(tmp_path / "a", "1")
    for wrong in ({"canary": 0.6}, {"canary": 0.1, "canary_runs": 0}, {"judge": ["luck"]}):
        answer = ok(put(client, "v1", content, params=wrong), 422)
        assert [*wrong][-1] in answer["errors"][0]["field"]
