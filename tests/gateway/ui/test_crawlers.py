"""The page of a crawler: its statements are true, and each number agrees with its list."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.ui.crawlers import fields
from crawler_lifecycle.ports.runs import BriefRun
from tests.gateway.gateway_harness import Clock, Harness
from tests.gateway.keys import Keys
from tests.gateway.ui.conftest import as_browser, results
from tests.gateway.ui.test_things import words

ANN = {"Accept": "text/html"}


def rows_of(browser: TestClient, link: str) -> int:
    """Return the length of the list at this address: all its pages."""
    text = browser.get(html.unescape(link), headers=ANN).text
    if link.startswith("/schedules"):
        return text.count('<th scope="row">')
    if link.startswith("/corrections"):
        return text.count('<th scope="row"><a href="/runs/')
    more = re.search(r'rel="next" href="([^"]+)"', text)
    return text.count('<tr id="run-') + (rows_of(browser, more[1]) if more else 0)


def start(
    browser: TestClient, harness: Harness, status: RunStatus | None = None, **more: Any
) -> int:
    run_id = int(browser.post("/v1/runs", json={"crawler": "plain", **more}).json()["run_id"])
    if status is not None:
        harness.claim(run_id)
        harness.end(run_id, status)
    return run_id


def test_each_number_of_a_crawler_is_that_of_its_list(
    harness: Harness, browser: TestClient, tmp_path: Path
) -> None:
    first = harness.clock.now
    ends = [(-29, "FAILED"), (-20, "COMPLETED"), (-3, "COMPLETED"), (-2, "FAILED")]
    for n, (days, status) in enumerate(sorted(ends * 2)):
        harness.clock.now = first + timedelta(days=days)
        start(browser, harness, RunStatus(status), args={"page": str(n)})
    start(browser, harness)
    with sqlite_files.connect(tmp_path / "runs.db") as database:
        database.execute(
            "UPDATE run_history SET outcome = 'cancelled', ended_by = 'person' WHERE run_id = 8"
        )
        database.execute(
            "UPDATE run_history SET outcome = 'oom', cause = 'Out of <memory>' WHERE run_id IN (1, 7)"
        )
    harness.clock.now = first
    page = browser.get("/crawlers/plain")
    said = words(page)
    assert "Last 9 runs" in said
    assert "7 days 2 2 1 30 days 4 4 1 Good, 7 d: 67 %" in said
    failures = browser.get("/crawlers/plain/failures")
    assert "oom by crawler 2 7 2 d ago Out of <memory>" in words(failures)
    why = words(failures).partition("Why runs failed")[2]
    assert "cancelled" not in why, "a person wanted that"
    counted = re.findall(r'<td class="n"><a href="([^"]+)">(\d+)</a>', page.text + failures.text)
    assert len(counted) == 6
    tabs = page.text.partition('aria-label="Tabs"')[2].partition("</nav>")[0]
    counts = dict(re.findall(r'href="/crawlers/plain/(\w+)">\w+ <span class="small">(\d+)<', tabs))
    own = {"runs": "9", "failures": "3", "schedules": "0", "arguments": "1"}
    assert counts.items() >= (own | {"arguments": counts["arguments"]}).items()
    assert rows_of(browser, "/crawlers/plain/runs") == 9
    assert rows_of(browser, "/crawlers/strict/runs") == 0
    assert browser.get("/crawlers/plain/runs?crawler=strict").status_code == 422
    assert browser.get("/crawlers/plain/odd").status_code == 422
    stop = {"do": "stop", "run": "9.1", "stay": "true", "key": "0" * 32}
    stayed = browser.post("/crawlers/plain/runs?status=PROCESSING", data=stop)
    assert results(stayed) == [("run 9", True, "The stop is recorded.")]
    assert 'aria-current="page">Runs' in stayed.text, "the list stays"
    for link, many in counted:
        assert rows_of(browser, link) == int(many), link
    assert page.text.count('<a href="/runs/') >= 9, "each bar of the chart"
    assert 'href="/runs/new?like=9">Start with the last arguments</a>' in page.text


def test_a_crawler_that_left_the_catalogue_has_a_page_and_one_that_never_was_has_none(
    harness: Harness, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.gateway.runs.crawlers.FRESH_S", 0.0)
    start(browser, harness, args={"page": "7"})
    assert "This crawler has no runs yet." in words(browser.get("/crawlers/strict"))
    del harness.scheduler.catalogue.crawlers["plain"]
    with harness.client(harness.new_app()) as later:
        left = as_browser(later).get("/crawlers/plain")
        assert "The catalogue no longer has a crawler with this name" in words(left)
        assert "Start" not in words(left).partition("Overview")[0].partition("be started")[2]
        arguments = words(later.get("/crawlers/plain/arguments"))
        assert "page – 7 not in the catalogue" in arguments
        for name, fix in (
            ("strickt", "did you mean strict?"),
            ("x" * 63, "lists all"),
            ("%00%E2%80%AE", "lists all"),
        ):
            gone = later.get(f"/crawlers/{name}")
            assert (gone.status_code, fix in gone.text) == (404, True)
        assert later.get(f"/crawlers/{'x' * 201}").status_code == 422


def test_a_token_of_one_project_sees_its_own_runs_of_a_crawler(
    harness: Harness, tmp_path: Path
) -> None:
    keys = Keys(tmp_path, "a", "b")
    with harness.client(harness.new_app(entrance=keys.entrance(quota=None))) as client:
        asked = {"crawler": "plain", "args": {"page": "zebra"}, "tags": ["zebra"]}
        assert (
            client.post("/v1/runs", json=asked, headers=keys.headers("a-operate")).status_code
            == 202
        )
        client.put(
            "/v1/schedules/zebra",
            json={"run": asked, "every_s": 60},
            headers=keys.headers("a-operate"),
        )
        pages = {
            who: client.get("/crawlers/plain", headers={**ANN, **keys.headers(f"{who}-read")})
            for who in "ab"
        }
        for tab in ("runs", "schedules", "arguments"):
            shown = [
                client.get(f"/crawlers/plain/{tab}", headers={**ANN, **keys.headers(f"{who}-read")})
                for who in "ab"
            ]
            assert ["zebra" in one.text for one in shown] == [True, False], tab
        assert "This crawler has no runs yet." in words(pages["b"])
        del harness.scheduler.catalogue.crawlers["plain"]
    with harness.client(harness.new_app(entrance=keys.entrance(quota=None))) as client:
        found = [
            client.get("/crawlers/plain", headers={**ANN, **keys.headers(f"{who}-read")})
            for who in "ab"
        ]
        assert [one.status_code for one in found] == [200, 404]


def run(number: int, items: int, price: float | None = None) -> BriefRun:
    now = Clock().now
    shares = None if price is None else Coverage(items, {"price": price, "title": 1.0})
    return BriefRun(
        run_id=number,
        crawler="x",
        status="COMPLETED",
        outcome="finished",
        items=items,
        ended_by=None,
        lacks=None,
        created_at=now,
        work_hash="same",
        started_at=now,
        ended_at=now + timedelta(seconds=items),
        pages=3 * items,
        errors=0,
        fields=shares,
    )


def test_a_field_that_lacks_is_seen_beside_what_is_usual() -> None:
    crawler = CrawlerDefinition(
        "x", CrawlerKind.COMMAND, command=["true"], expect={"price": 0.5, "gone": 1.0}
    )
    price, gone, title = fields(
        [run(9, 5, 0.25), *(run(8 - n, 5, 0.75) for n in range(4)), run(1, 5)], crawler
    )
    points = price.pop("points")
    assert price == {"name": "price", "share": 0.25, "usual": 0.75, "least": 0.375}
    assert (gone["share"], gone["usual"], title["name"]) == (0.0, 0.0, "title")
    assert points.split() == ["92,4.5", "94,4.5", "96,4.5", "98,4.5", "100,11.5"]
