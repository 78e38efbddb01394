"""The search across everything, and the palette."""

from __future__ import annotations

import re

from fastapi.testclient import TestClient

from tests.gateway.gateway_harness import Harness
from tests.gateway.ui.fleet_scene import condition


def links(browser: TestClient, text: str) -> list[str]:
    page = browser.get("/search", params={"q": text})
    assert page.status_code == 200, page.text
    return re.findall(r'href="([^"]+)"', page.text.partition("<main")[2].partition("</main>")[0])


def test_what_has_the_text_is_linked(harness: Harness, browser: TestClient) -> None:
    browser.post("/v1/runs", json={"crawler": "plain", "args": {"site": "shop-437"}})
    browser.put("/v1/schedules/plainly", json={"run": {"crawler": "plain"}, "every_s": 3600})
    browser.post("/v1/graphs", json={"id": "plain-graph", "steps": [
        {"path": "a", "kind": "crawl", "job": {"crawler": "plain"}}
    ]})  # fmt: skip
    found = links(browser, "Plain")
    assert {"/crawlers/plain", "/schedules/plainly", "/graphs/plain-graph", "/runs/1"} <= {*found}
    full = condition(harness, "pool_full", "pools/batch")
    harness.store.incidents.record_conditions([full], lambda row: True)
    assert links(browser, "batch") == links(browser, "keyerror: price") == ["/incidents/1"]
    assert links(browser, "shop 43") == ["/runs/1"], "by an argument"
    browser.put("/v1/sites/shop.example", json={"tasks": 1})
    assert links(browser, "SHOP.ex") == ["/sites/shop.example"]
    assert links(browser, "nobody") == []
    assert "No run contains these words" in browser.get("/search?q=nobody").text


def test_commands_lead_to_their_pages(browser: TestClient) -> None:
    browser.post("/v1/runs", json={"crawler": "plain"})
    for text, place in (
        ("1", "/runs/1"),
        (" 1 ", "/runs/1"),
        ("start plain", "/runs/new?crawler=plain"),
        ("START  plain", "/runs/new?crawler=plain"),
    ):
        answer = browser.get("/search", params={"q": text}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, place), text
    assert "/runs/new?crawler=plain" in links(browser, "start pla")
    assert "/runs/new?crawler=plain" in links(browser, "start plian"), "the nearest one"
    assert links(browser, "plian") == ["/crawlers/plain"]
    assert links(browser, "999") == []
    assert browser.get("/search").status_code == 200
    assert browser.get("/search?q=" + "x" * 201).status_code == 422
