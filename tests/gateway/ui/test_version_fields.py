"""The field of the forms that names the version of a crawler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.features.managers.domain.manager import BUILT_IN
from crawler_lifecycle.features.managers.ports import UserCodeRow
from crawler_lifecycle.features.user_code import loading
from tests.gateway.gateway_harness import Harness
from tests.gateway.packages.test_packages import ok, put, zipped
from tests.gateway.ui.test_crawler_versions import CRAWLER
from tests.gateway.ui.test_put_forms import definition, filled
from tests.gateway.ui.test_start_forms import wrong
from tests.gateway.ui.test_things import words

#: The address of each form -> the fields that choose the crawler, and the field of the version.
FORMS: dict[str, tuple[dict[str, str], str]] = {
    "/runs/new": ({"crawler": "shop"}, "version"),
    "/start/manager": ({"plan": BUILT_IN, "opt-spider": "shop"}, "opt---version"),
    "/schedules/new": (
        {"name": "nightly", "kind": "run", "crawler": "shop", "cron": "30 2 * * *"},
        "version",
    ),
}


@pytest.fixture(autouse=True)
def versions(harness: Harness, client: TestClient, tmp_path: Path) -> None:
    """Two versions of a package, of which ``v2`` is current, and a built-in manager."""
    harness.store.entries.set_entry("shop", {**CRAWLER, "package": "shop"}, "ada")
    for version in ("v1", "v2"):
        ok(put(client, version, zipped(tmp_path / version, version)), 201)
    options = loading.options(loading.load(BUILT_IN))
    each = UserCodeRow(BUILT_IN, "manager", "each", "", "f", options)
    harness.store.user_code.register_user_code("w", [each])


def form(browser: TestClient, address: str, **more: str) -> Any:
    """Show the form with these values."""
    return browser.post(address, data={**FORMS[address][0], "show": "yes", **more})


@pytest.mark.parametrize("address", FORMS)
def test_a_form_offers_the_versions_of_its_crawler(browser: TestClient, address: str) -> None:
    name = FORMS[address][1]
    page = form(browser, address)
    assert filled(page)[name] == ""
    assert "Version default: v2 v2 v1 the code to execute" in words(page)
    kept = form(browser, address, **{name: "v1"})
    assert filled(kept)[name] == "v1"
    gone = form(browser, address, **{name: "v9"})
    assert "v9 (not a choice)" in words(gone)


@pytest.mark.parametrize("address", FORMS)
def test_a_crawler_without_versions_has_no_such_field(browser: TestClient, address: str) -> None:
    chosen = {name: "plain" for name, text in FORMS[address][0].items() if text == "shop"}
    assert FORMS[address][1] not in filled(form(browser, address, **chosen))


@pytest.mark.parametrize("address", FORMS)
def test_an_unknown_version_is_refused_at_its_field(browser: TestClient, address: str) -> None:
    name = FORMS[address][1]
    sent = filled(form(browser, address)) | {name: "v9"}
    refused = browser.post(address, data=sent)
    assert (refused.status_code, [*wrong(refused)]) == (422, [name])
    assert "package 'shop' has v2, v1" in wrong(refused)[name]
    assert filled(refused)[name] == "v9"


def test_the_chosen_version_executes(harness: Harness, browser: TestClient) -> None:
    sent = filled(form(browser, "/runs/new")) | {"version": "v1"}
    assert browser.post("/runs/new", data=sent).status_code == 303
    [run] = harness.store.runs.list_runs()
    assert run.request["version"] == "v1"
    again = browser.get(f"/runs/new?like={run.run_id}")
    assert filled(again)["version"] == "", "it may have been the current one, without a choice"
    assert "the earlier run executed v1" in words(again)
    browser.post("/schedules/new", data=filled(form(browser, "/schedules/new")) | {"version": "v1"})
    assert definition(harness)["run"]["version"] == "v1"
    shown = filled(browser.get("/schedules/new?name=nightly"))
    assert (shown["version"], shown.get("request", "")) == ("v1", "")


def test_versions_of_an_entry_can_be_chosen(harness: Harness, browser: TestClient) -> None:
    for image in ("news:1", "news:2"):
        harness.store.entries.set_entry("news", {**CRAWLER, "name": "news", "image": image}, "ada")
    page = form(browser, "/runs/new", crawler="news")
    assert "Version default: 2 2 1 the code to execute" in words(page)
