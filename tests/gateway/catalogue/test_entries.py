"""Entries of the catalogue through the API: set, used, deleted, started, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.features.packages.store.packages import NewVersion
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys

SHOP = {"image": "registry/shop:1", "args": {"n": {"type": "integer", "default": 3}}}


def ok(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def put(client: TestClient, entry: Any, name: str = "bookshop", **more: Any) -> Any:
    return client.put(f"/v1/crawlers/{name}", json={"entry": entry, **more})


def listed(client: TestClient) -> dict[str, Any]:
    crawlers = ok(client.get("/v1/crawlers"))["crawlers"]
    return {crawler["name"]: crawler for crawler in crawlers}


def version_started(client: TestClient, harness: Harness, **more: Any) -> Any:
    run = ok(client.post("/v1/runs", json={"crawler": "bookshop", **more}), 202)
    return harness.store.runs.request_of(run["run_id"]).version


def test_a_changed_entry_holds_for_the_next_run(client: TestClient, harness: Harness) -> None:
    first = ok(put(client, SHOP, note="new"))
    assert (first["number"], first["changed"], first["document"]["name"]) == (1, True, "bookshop")
    assert not ok(put(client, SHOP))["changed"]
    assert listed(client)["bookshop"]["args"]["n"]["default"] == "3"
    assert version_started(client, harness) == "1"
    assert ok(put(client, {**SHOP, "image": "registry/shop:2"}))["number"] == 2
    assert listed(client)["bookshop"]["number"] == 2
    assert version_started(client, harness) == "2"
    assert version_started(client, harness, version="1") == "1"
    assert version_started(client, harness, version="newest") == "2"
    refused = client.post("/v1/runs", json={"crawler": "bookshop", "version": "7"})
    assert "crawler 'bookshop' has 2, 1" in ok(refused, 422)["detail"]
    used = ok(client.post("/v1/crawlers/bookshop/use", json={"number": 1}))
    assert (used["number"], used["note"]) == (1, "version 1 is in use")
    assert version_started(client, harness) == "1"
    ok(client.post("/v1/crawlers/bookshop/use", json={"number": 2}))
    back = ok(client.post("/v1/crawlers/bookshop/rollback"))
    assert (back["number"], back["note"]) == (1, "version 1 is in use")
    refused = ok(client.post("/v1/crawlers/bookshop/rollback"), 409)
    assert "no version before version 1 that was in use" in refused["detail"]
    ok(client.post("/v1/crawlers/plain/rollback"), 409)
    ok(client.post("/v1/crawlers/unknown/rollback"), 404)
    history = ok(client.get("/v1/crawlers/bookshop/history"))
    assert history["current"] == 1
    assert [(row["number"], row["note"]) for row in history["versions"]] == [(2, None), (1, "new")]
    older = ok(client.get("/v1/crawlers/bookshop/history?before=2"))["versions"]
    assert [row["number"] for row in older] == [1]
    ok(client.delete("/v1/crawlers/bookshop"))
    assert "bookshop" not in listed(client)
    assert ok(client.get("/v1/crawlers/bookshop/history"))["current"] is None
    for answer in (client.get("/v1/crawlers/bookshop"), client.delete("/v1/crawlers/bookshop")):
        assert ok(answer, 404)["code"] == "crawler_not_found"


def test_a_changed_entry_is_tried_by_a_share_of_its_runs(
    client: TestClient, harness: Harness
) -> None:
    ok(put(client, SHOP))
    changed = {**SHOP, "image": "registry/shop:2"}
    tried = ok(put(client, changed, canary=0.5, canary_runs=2, judge=["items"]))
    assert (tried["number"], tried["changed"]) == (1, True)
    assert tried["note"] == "50 % of the runs try the new version."
    again = ok(put(client, changed, canary=0.5))
    assert (again["changed"], again["note"]) == (False, "Nothing changed.")
    assert [version_started(client, harness) for _ in range(4)] == ["2", "1", "2", "1"]
    assert version_started(client, harness, version="newest") == "1"
    [row] = ok(client.get("/v1/canaries", params={"crawler": "bookshop"}))["canaries"]
    assert (row["package"], row["crawler"], row["given"], row["asked"]) == (None, "bookshop", 2, 4)
    assert (row["runs"], row["judge"]) == (2, ["items"])
    assert ok(client.get("/v1/canaries", params={"package": "bookshop"}))["canaries"] == []
    ended = ok(client.post(f"/v1/canaries/{row['canary_id']}/accept"))
    assert ended["state"] == "accepted"
    assert ok(client.get("/v1/crawlers/bookshop"))["number"] == 2
    assert version_started(client, harness) == "2"
    first = ok(put(client, SHOP, "toys", canary=0.5))
    assert (first["number"], first["note"]) == (1, "version 1"), "there is no other version"
    for wrong in ({"canary": 0.6}, {"canary": 0.1, "canary_runs": 0}, {"judge": ["luck"]}):
        assert [*wrong][-1] in ok(put(client, SHOP, **wrong), 422)["errors"][0]["field"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"image": 7}, "image: 7 is not a string"),
        ({"imag": "x"}, "imag: unknown key; known: name, kind"),
        ({"image": "x", "number": 4}, "number: the database counts it"),
        ({"image": "x", "name": "other"}, "entry.name: 'other'"),
        ({}, "project: missing; name the folder"),
        ({"image": "x", "kubernetes": {"volumes": 7}}, "kubernetes.volumes: 7 is not allowed"),
        ({"image": "x", "secrets": {"KEY": "env:PATH"}}, "secrets.KEY:"),
        ({"image": "x", "settings": {"A": "x" * 70_000}}, "document: larger than 65536 characters"),
    ],
)
def test_an_entry_that_a_file_could_not_have_is_refused(
    client: TestClient, entry: Any, words: str
) -> None:
    assert words in ok(put(client, entry), 422)["detail"]
    assert ok(client.get("/v1/entries"))["entries"] == []


def test_entries_of_the_file_are_read_only(client: TestClient) -> None:
    for answer in (
        put(client, SHOP, "plain"),
        client.get("/v1/crawlers/plain"),
        client.post("/v1/crawlers/plain/use", json={"number": 1}),
    ):
        assert "LIFECYCLE_CATALOGUE" in ok(answer, 409)["detail"]


def test_entries_of_a_package_are_started_and_not_changed(
    client: TestClient, harness: Harness
) -> None:
    new = NewVersion("shop", "v1", spiders=[{"name": "bookshop", "args": {}}])
    harness.store.packages.add_version(new)
    assert listed(client)["bookshop"]["package"] == "shop"
    assert "comes from package 'shop'" in ok(put(client, SHOP), 409)["detail"]


def test_an_entry_of_a_package_goes_back_with_its_package(
    client: TestClient, harness: Harness
) -> None:
    def roll_back() -> Any:
        return client.post("/v1/crawlers/bookshop/rollback")

    for version in ("v1", "v2"):
        spiders = [{"name": "bookshop", "args": {version: {}}}]
        harness.store.packages.add_version(NewVersion("shop", version, spiders=spiders))
        if version == "v1":
            assert "no version before the current one" in ok(roll_back(), 409)["detail"]
    assert [*listed(client)["bookshop"]["args"]] == ["v2"]
    back = ok(roll_back())
    assert (back["package"], back["note"]) == ("shop", "version v1 of package shop is in use")
    assert [*listed(client)["bookshop"]["args"]] == ["v1"]
    assert [*back["document"]["args"]] == ["v1"]
    assert harness.store.packages.find_version("shop").version == "v1"  # type: ignore[union-attr]


def test_an_entry_that_this_build_cannot_read_is_left_out(
    client: TestClient, harness: Harness
) -> None:
    ok(put(client, SHOP))
    harness.store.entries.set_entry("later", {"name": "later", "unheard": 1}, None)
    assert "bookshop" in listed(client)
    assert "later" not in listed(client)
    assert "keys that this build does not know" in ok(client.get("/v1/crawlers"))["note"]


def test_an_entry_belongs_to_the_project_that_made_it(harness: Harness, tmp_path: Path) -> None:
    keys = Keys(tmp_path, "a", "b")
    app = harness.new_app(entrance=keys.entrance(quota=None))
    with harness.client(app) as client:

        def ask(who: str, method: str, path: str, body: Any = None) -> Any:
            return client.request(method, path, headers=keys.headers(who), json=body)

        entry = {"entry": {**SHOP, "env": {"LOGIN": "secret"}}}
        ok(ask("a-operate", "PUT", "/v1/crawlers/bookshop", entry), 403)
        ok(ask("a-admin", "PUT", "/v1/crawlers/bookshop", entry))
        seen = ok(ask("a-operate", "GET", "/v1/crawlers/bookshop"))["document"]["env"]
        assert seen == {"LOGIN": "…"}
        seen = ok(ask("a-admin", "GET", "/v1/crawlers/bookshop"))["document"]["env"]
        assert seen == {"LOGIN": "secret"}
        listed = ok(ask("a-operate", "GET", "/v1/crawlers"))["crawlers"]
        assert listed[-1]["env"] == {"LOGIN": "…"}
        for who, status in (("a-operate", 202), ("b-operate", 422), ("operate", 202)):
            body = {"crawler": "bookshop", "project": None if "-" in who else "a"}
            ok(ask(who, "POST", "/v1/runs", body), status)
        for method, path, body, status in (
            ("GET", "", None, 404),
            ("GET", "/history", None, 404),
            ("PUT", "", entry, 409),
            ("POST", "/use", {"number": 1}, 404),
            ("DELETE", "", None, 404),
        ):
            ok(ask("b-admin", method, f"/v1/crawlers/bookshop{path}", body), status)
        assert ok(ask("b-operate", "GET", "/v1/entries"))["entries"] == []
        shared = {"entry": {**SHOP, "secrets": {"KEY": "env:CRAWL_KEY"}}}
        refused = ok(ask("a-admin", "PUT", "/v1/crawlers/other", shared), 422)
        assert "an entry of one project may not have it" in refused["detail"]
