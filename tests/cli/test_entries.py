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


def test_a_roll_back_shows_what_the_gateway_chose(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    answer = ENTRY | {"number": 3, "note": "version 3 is in use"}
    route = gateway.post("/v1/crawlers/press/rollback").respond(json=answer)
    done = crawlctl("crawler", "rollback", "press", "--by", "eve")
    assert (done.code, "version 3 is in use" in done.err) == (0, True)
    assert json.loads(route.calls.last.request.content) == {"requested_by": "eve"}


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
