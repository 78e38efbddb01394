"""The page with the versions of a crawler, and the way back to an older one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.features.canaries.domain.canary import CanarySettings
from crawler_lifecycle.ports.polls import Poll
from tests.gateway.gateway_harness import Harness
from tests.gateway.packages.test_packages import ok, put, zipped
from tests.gateway.ui.test_things import words

CRAWLER = {"name": "shop", "kind": "command", "command": ["true"]}


def executed(harness: Harness, client: TestClient, version: dict[str, Any]) -> None:
    run_id = ok(client.post("/v1/runs", json={"crawler": "shop"}), 202)["run_id"]
    harness.claim(run_id)
    harness.deploy(run_id)
    now = harness.clock()
    code = Code(version["digest"], version["version"])
    seen = Observation(0, 1, Phase.EXECUTING, now, started_at=now, code=code)
    harness.store.polls.record_poll(harness.fence(run_id), Poll(now, 0.1, [seen]), [], now)


def use(browser: TestClient, version: str) -> Any:
    path = "/crawlers/shop/versions"
    return browser.post(path, data={"version": version}, follow_redirects=True)


def test_a_person_goes_back_to_the_version_before_the_change(
    harness: Harness, client: TestClient, browser: TestClient, tmp_path: Path
) -> None:
    harness.store.entries.set_entry("shop", {**CRAWLER, "package": "shop"}, "ada")
    for version in ("v1", "v2"):
        executed(
            harness, client, ok(put(client, version, zipped(tmp_path / version, version)), 201)
        )
    moved = browser.get("/packages/shop", follow_redirects=False)
    assert moved.headers["location"] == "/crawlers/shop/versions"
    assert "no crawler executes a package &#39;shpo&#39;" in browser.get("/packages/shpo").text
    page = browser.get("/crawlers/shop")
    assert "Go back to version v1" in words(page)
    assert "Versions 2" in words(page)
    pressed = use(browser, "v1")
    assert "version v1: New runs execute it." in words(pressed)
    assert "Go back" not in words(browser.get("/crawlers/shop"))
    listed = words(browser.get("/crawlers/shop/versions"))
    assert "versions of package shop" in listed
    assert "v1 yes" in listed
    executed(harness, client, ok(client.get("/v1/packages/shop/versions/v1")))
    assert "Go back" not in words(browser.get("/crawlers/shop")), "v2 is no step back"
    ok(put(client, "v3", zipped(tmp_path / "v3", "3"), params={"canary": 0.1}), 201)
    listed = words(browser.get("/crawlers/shop/versions"))
    assert "canary: 0 of 0 new runs execute it (share 10%)" in listed
    refused = words(use(browser, "v4"))
    assert "package 'shop' has no version 'v4'" in refused


def test_versions_of_an_entry_without_package_are_its_own(
    harness: Harness, browser: TestClient
) -> None:
    entries = harness.store.entries
    for image in ("shop:1", "shop:2"):
        entries.set_entry("shop", {**CRAWLER, "image": image}, "ada", f"try {image}")
    assert "2 yes – 0 s ago ada try shop:2 1 – – 0 s ago ada try shop:1" in words(
        browser.get("/crawlers/shop/versions")
    )
    use(browser, "1")
    found = entries.get_entry("shop")
    assert found is not None
    assert (found.number, found.document["image"]) == (1, "shop:1")
    assert use(browser, "x").status_code == 422
    entries.set_entry("shop", {**CRAWLER, "image": "shop:3"}, "ada", canary=CanarySettings(0.25))
    listed = words(browser.get("/crawlers/shop/versions"))
    assert "3 – – 0 s ago ada canary: 0 of 0 new runs execute it (share 25%)" in listed
    assert "1 yes" in listed
    assert "its entry is in the catalogue's file" in words(browser.get("/crawlers/plain/versions"))
