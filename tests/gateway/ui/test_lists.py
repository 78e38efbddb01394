"""Every list can be searched, sorted, paged and saved as CSV, and keeps its position."""

from __future__ import annotations

import csv
import html
import io
import re
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.gateway.ui.parts import lists

LISTS = (
    "/",
    "/runs",
    "/managers",
    "/graphs",
    "/schedules",
    "/webhooks",
    "/pools",
    "/corrections",
    "/audit",
    "/access",
    "/runs/1/tasks",
    "/runs/1/files",
)


@pytest.fixture
def nightly(browser: TestClient) -> None:
    """Three schedules, and a run whose tag looks like a formula."""
    for n, name in enumerate(("b", "a", "c")):
        body = {"run": {"crawler": "plain"}, "every_s": 3600 + n}
        browser.put(f"/v1/schedules/{name}", json=body).raise_for_status()
    run = {"crawler": "plain", "tags": ["=HYPERLINK(1)"]}
    browser.post("/v1/runs", json=run).raise_for_status()


def table(browser: TestClient, path: str) -> list[dict[str, str]]:
    answer = browser.get(path)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8", path
    return list(csv.DictReader(io.StringIO(answer.text)))


def heads(page: str) -> list[str]:
    found = re.findall(r'<th scope="col" role="columnheader"[^>]*>(.*?)</th>', page)
    return [re.sub("<[^>]*>", "", head) for head in found if "checkbox" not in head]


def names(page: str) -> list[str]:
    return re.findall(r'href="/schedules/[^"/]+">([^<]+)</a></th>', page)


@pytest.mark.usefixtures("nightly")
def test_each_list_is_saved_as_csv_with_the_columns_of_its_page(browser: TestClient) -> None:
    for path in LISTS:
        page = browser.get(path)
        assert page.status_code == 200, path
        rows = table(browser, f"{path}?format=csv")
        if rows:
            assert f'href="{path}?format=csv"' in page.text
            assert list(rows[0]) == heads(page.text), path
    refused = browser.get("/runs?format=xml")
    assert (refused.status_code, "only csv exists" in refused.text) == (422, True)


@pytest.mark.usefixtures("nightly")
def test_a_spreadsheet_executes_no_text_of_a_csv_file(browser: TestClient) -> None:
    [run] = table(browser, "/runs?format=csv&search=hyper")
    assert run["Crawler"] == "plain =HYPERLINK(1)"
    assert re.fullmatch(r"2026-.*\+00:00", run["Requested"])
    assert run["Started"] == "not started"
    step = {"path": "walk", "kind": "crawl", "job": {"crawler": "plain"}}
    for name in ("=1+1", "@sum", "-5", "a"):
        body = {"id": f"id {name}", "name": name, "steps": [step]}
        browser.post("/v1/graphs", json=body).raise_for_status()
    found = {row["Name"] for row in table(browser, "/graphs?format=csv")}
    assert found == {"'=1+1", "'@sum", "-5", "a"}


def test_a_csv_file_has_all_pages_up_to_a_limit(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        browser.post("/v1/runs", json={"crawler": "plain"}).raise_for_status()
    monkeypatch.setattr(lists, "PAGE_MAX", 2)
    numbers = [row["Run"] for row in table(browser, "/runs?page_size=1&format=csv")]
    assert numbers == ["5", "4", "3", "2", "1"]
    monkeypatch.setattr(lists, "CSV_MAX", 3)
    assert len(table(browser, "/runs?format=csv")) == 3


@pytest.mark.usefixtures("nightly")
def test_rows_in_memory_are_searched_sorted_and_divided_into_pages(browser: TestClient) -> None:
    page = browser.get("/schedules?sort=schedule").text
    assert names(page) == ["a", "b", "c"]
    assert 'aria-sort="ascending"><a href="/schedules?sort=-schedule">Schedule</a>' in page
    assert names(browser.get("/schedules?search=3602").text) == ["c"], "any shown text is found"
    first = browser.get("/schedules?sort=-schedule&page_size=2").text
    assert (names(first), ">3 schedules<" in first) == (["c", "b"], True)
    [more] = re.findall(r'rel="next" href="([^"]+)"', first)
    assert names(browser.get(html.unescape(more)).text) == ["a"]
    wrong = browser.get("/schedules?sort=color")
    assert (wrong.status_code, "choose from schedule" in wrong.text) == (422, True)


def test_a_list_stays_in_place_after_an_action(browser: TestClient) -> None:
    for _ in range(2):
        browser.post("/v1/runs", json={"crawler": "plain"}).raise_for_status()
    path = "/runs?crawler=plain&page_size=1"
    form: dict[str, Any] = {"key": uuid.uuid4().hex, "stay": "true", "do": "stop"}
    page = browser.post(path, data={**form, "run": ["1.1", "2.7"]}).text
    assert '<form method="post" action="/runs?crawler=plain&amp;page_size=1"' in page
    note = page.partition('role="status" aria-label="Result"')[2].partition("</section>")[0]
    text = " ".join(re.sub("<[^>]*>", " ", note).split())
    assert "Stop: 1 of 2 carried out." in text
    assert "run 1 : The stop is recorded." in text
    assert "attempt 7" in text
    assert re.findall(r'<tr id="run-(\d+)"', page) == ["2"]
    assert "data-stream" in page, "it is live again"
    forced = browser.post(path, data={**form, "do": "force", "run": "2.1"}).text
    assert 'action="/runs?crawler=plain&amp;page_size=1" class="form"' in forced
    assert 'name="stay" value="true"' in forced


def test_a_filter_with_many_values_has_a_field_for_one(browser: TestClient) -> None:
    page = browser.get("/access?kind=run").text
    assert '<input name="caller" maxlength="200" required list="known-caller"' in page
    assert '<input type="hidden" name="kind" value="run">' in page
    assert "No action matches." in browser.get("/access?caller=nobody").text
