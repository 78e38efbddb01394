"""``crawlctl crawler set`` and the deletion of packages: what they send."""

from __future__ import annotations

import json

import respx

from tests.cli.cli_answers import PACKAGE
from tests.cli.cli_support import Crawlctl

ENTRY = {
    **{"name": "press", "number": 1, "package": None, "project": "default"},
    **{"document": {"name": "press", "image": "press:1"}, "changed": True},
    **{"changed_at": "2026-11-20T10:00:00Z", "changed_by": "ann"},
    "note": "10 % of the runs try the new version.",
}


def test_a_change_of_a_crawler_is_sent_with_its_canary(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.get("/v1/crawlers/press").respond(json=ENTRY)
    route = gateway.put("/v1/crawlers/press").respond(json=ENTRY)
    tried = ("--canary", "0.1", "--canary-runs", "5", "--judge", "items", "--judge", "errors")
    done = crawlctl("crawler", "set", "press", "--image", "press:2", "--by", "eve", *tried)
    assert (done.code, "10 % of the runs try" in done.err) == (0, True)
    assert json.loads(route.calls.last.request.content) == {
        "entry": {"name": "press", "image": "press:2"},
        "canary": 0.1,
        "canary_runs": 5,
        "judge": ["items", "errors"],
        "requested_by": "eve",
    }


def test_a_roll_back_skips_versions_that_only_a_canary_tried(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    canaries = [
        {"new_version": "5", "state": "rejected", "result": "press 5 went back to 4"},
        {"new_version": "4", "state": "cancelled", "result": "version 5 was set"},
        {"new_version": "3", "state": "cancelled", "result": "version 3 was chosen"},
        {"new_version": "2", "state": "accepted", "result": "press 2 replaced 1"},
    ]
    gateway.get("/v1/crawlers/press").respond(json=ENTRY | {"number": 6})
    listed = gateway.get("/v1/canaries").respond(json={"canaries": canaries})
    used = gateway.post("/v1/crawlers/press/use").respond(json=ENTRY)
    assert crawlctl("crawler", "rollback", "press").code == 0
    assert json.loads(used.calls.last.request.content)["number"] == 3
    assert dict(listed.calls.last.request.url.params) == {"crawler": "press"}
    gateway.get("/v1/crawlers/press").respond(json=ENTRY)
    assert "no version before version 1" in crawlctl("crawler", "rollback", "press").err


def test_a_version_that_something_names_is_deleted_with_force(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    answer = PACKAGE | {"told": "It is deleted."}
    one = gateway.delete("/v1/packages/shop/versions/v1").respond(json=answer)
    every = gateway.delete("/v1/packages/shop").respond(json={"package": "shop", "versions": 2})
    assert crawlctl("package", "delete", "shop", "v1").code == 0
    assert dict(one.calls.last.request.url.params) == {}
    assert crawlctl("package", "delete", "shop", "v1", "--force").code == 0
    assert dict(one.calls.last.request.url.params) == {"force": "true"}
    assert crawlctl("package", "delete", "shop", "--force").code == 0
    assert dict(every.calls.last.request.url.params) == {"force": "true"}
