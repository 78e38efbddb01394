"""What a page says is true, and clear to somebody who sees it for the first time."""

from __future__ import annotations

import asyncio
import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.due_ids import due_request_id
from crawler_lifecycle.features.schedules.domain.decision import (
    Circumstances,
    decide,
    too_many_failures,
)
from crawler_lifecycle.features.schedules.domain.definition import Overlap
from crawler_lifecycle.gateway import health
from crawler_lifecycle.gateway.ui.parts.formats import step
from crawler_lifecycle.ports.polls import Correction
from crawler_lifecycle.store.base import search
from crawler_lifecycle.store.runs.tables import run_history
from tests.gateway.gateway_harness import Harness
from tests.gateway.ui.test_things import words


def test_what_nobody_knows_yet_is_no_alarm(
    harness: Harness, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Task queues take seconds to respond; until then, the page says that it is asking."""
    monkeypatch.setattr(health, "QUEUES_WAIT_S", 0.01)

    async def silent(*_: Any) -> list[Any]:
        await asyncio.sleep(3600)
        return []

    monkeypatch.setattr(harness.workflows, "task_queues", silent)
    page = words(browser.get("/parts"))
    assert "task queue workers are still being checked" in page
    assert "Some parts are still being checked; the others work" in page
    assert "A part needs attention" not in page


def test_a_rung_of_the_ladder_has_its_unit() -> None:
    for minutes, text in [
        (0.02, "1.2 s"),
        (0.1, "6 s"),
        (0.001, "0.06 s"),
        (1, "1 min"),
        (15, "15 min"),
        (1.5, "1.5 min"),
        (100, "100 min"),
    ]:
        assert step(minutes) == text, minutes


def test_the_ladder_of_a_run_is_its_own(harness: Harness, browser: TestClient) -> None:
    for asked in ({}, {"poll_minutes": [0.02, 1, 15]}):
        browser.post("/v1/runs", json={"crawler": "plain", **asked})
    assert "Time between checks 1 min 2 min 3 min 5 min 8 min 15 min " in words(
        browser.get("/runs/1")
    )
    assert "Time between checks 1.2 s 1 min 15 min " in words(browser.get("/runs/2"))


def test_a_graph_is_called_by_its_name(browser: TestClient) -> None:
    steps = [{"path": "walk", "kind": "crawl", "job": {"crawler": "plain"}}]
    browser.post("/v1/graphs", json={"id": "7f2c", "name": "prices", "steps": steps})
    browser.post("/v1/graphs", json={"id": "9a1b", "steps": steps})
    assert words(browser.get("/graphs/7f2c")).startswith("Graph prices 7f2c running")
    assert words(browser.get("/graphs/9a1b")).startswith("Graph 9a1b running")
    assert re.findall(r'href="/graphs/\w+">(\w+)<', browser.get("/graphs").text) == [
        "9a1b",
        "7f2c",
        "prices",
    ]


def test_each_filter_is_a_chip_that_leads_to_the_list_without_it(
    harness: Harness, browser: TestClient
) -> None:
    asked = "status=FAILED&status=COMPLETED&crawler=plain&tag=a&parent=graph/x&search=%3Cb%3E&sort=-took&attention=true"
    page = browser.get(f"/runs?{asked}").text
    chips = {
        " ".join(re.sub(r"<[^>]+>|×|remove", " ", text).split()): parse_qs(
            urlsplit(html.unescape(link)).query
        )
        for link, text in re.findall(r'<a class="chip" href="([^"]+)"[^>]*>(.*?)</a>', page)
    }
    whole = {name: values for name, values in parse_qs(asked).items() if name != "attention"} | {
        "attention": ["True"]
    }
    without = {
        "Status: failed": ("status", ["COMPLETED"]),
        "Status: done": ("status", ["FAILED"]),
    }
    without |= {
        "Crawler: plain": ("crawler", None),
        "Tag: a": ("tag", None),
        "Parent: graph/x": ("parent", None),
    }
    without |= {"Text: &lt;b&gt;": ("search", None), "Order: took, largest first": ("sort", None)}
    without |= {"Needs attention": ("attention", None)}
    assert chips == {
        word: {one: values for one, values in {**whole, name: left}.items() if values}
        for word, (name, left) in without.items()
    }
    assert '<a class="chip"' not in browser.get("/runs").text
    kept = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]+)"', page))
    assert {
        "crawler": "plain",
        "parent": "graph/x",
        "sort": "-took",
        "attention": "true",
    }.items() <= kept.items()


def test_a_filter_offers_the_values_that_exist(harness: Harness, browser: TestClient) -> None:
    for tag in ("<b>", "b c"):
        browser.post("/v1/runs", json={"crawler": "plain", "tags": [tag]})
    with harness.client(harness.new_app()) as other:  # it has cached no response
        page = other.get("/runs?tag=b+c&crawler=gone", headers={"Accept": "text/html"}).text
    menus = dict(
        re.findall(
            r'<summary(?: class="on")?>(\w+)</summary><div class="drop">(.*?)</ul>', page, re.DOTALL
        )
    )
    links = {
        word: re.findall(r'href="([^"]+)"[^>]*>([^<]+)<', menu) for word, menu in menus.items()
    }
    assert [text for _, text in links["Tag"]] == ["&lt;b&gt;", "b c"]
    assert [text for _, text in links["Crawler"]] == ["gone", "plain"], (
        "also what was chosen and is not there"
    )
    assert links["Tag"][0][0] == "/runs?crawler=gone&amp;tag=b+c&amp;tag=%3Cb%3E"
    assert links["Tag"][1][0] == "/runs?crawler=gone", "what is chosen leads to the list without it"


def test_ten_thousand_tags_of_200_characters_are_offered_a_hundred_at_a_time(
    harness: Harness, browser: TestClient, tmp_path: Path
) -> None:
    assert (
        browser.post("/v1/runs", json={"crawler": "plain", "tags": ["x"] * 10_000}).status_code
        == 422
    )
    browser.post("/v1/runs", json={"crawler": "plain"})
    with sqlite_files.connect(tmp_path / "runs.db") as database:
        tags = [(f"{n:05}\u202e\U0001f577{'<b>' * 64}"[:200], 1, "default") for n in range(10_000)]
        database.executemany("INSERT INTO run_tag (tag, run_id, project) VALUES (?, ?, ?)", tags)
    with harness.client(harness.new_app()) as other:  # it has cached no response
        page = other.get("/runs", headers={"Accept": "text/html"}).text
    menu = re.findall(r"<summary>Tag</summary><div class=\"drop\">(.*?)</ul>", page, re.DOTALL)
    assert menu[0].count("<li>") == 100
    assert "<b><b>" not in page


def test_the_beginning_of_a_word_finds_runs_in_any_case(
    harness: Harness, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        body = {
            "crawler": "plain",
            "args": {"site": f"http://Shop{n}.example"},
            "tags": ["Österreich"] if n else [],
        }
        browser.post("/v1/runs", json=body)

    def found(query: str) -> tuple[list[str], str]:
        page = browser.get(f"/runs?{query}")
        assert page.status_code == 200, page.text
        total = re.search(r'id="total">([^<]*)<', page.text)
        return re.findall(r'<tr id="run-(\d+)"', page.text), total[1] if total else ""

    assert found("search=shop1") == (["2"], "1 run")
    assert found("search=+%C3%B6STER+") == (["3", "2"], "2 runs")
    assert found("search=PLAI&sort=-started_at") == (["3", "2", "1"], "3 runs")
    assert found("search=%25") == ([], "0 runs")
    assert found("search=+") == (["3", "2", "1"], "3 runs")
    assert found("search=%00%F0%9F%98%80%22%5C%27") == ([], "0 runs")
    assert browser.get("/runs?search=" + "x" * 201).status_code == 422
    assert "choose from crawler" in browser.get("/runs?sort=request").text
    token = browser.get("/v1/runs?search=plain&page_size=1").json()["next_page_token"]
    assert found(f"search=plain&page_size=1&page_token={token}") == (["2"], "at least 2 runs")
    monkeypatch.setattr(search, "WINDOW", 2)
    assert [found(f"search=shop{n}") for n in (0, 1)] == [(["1"], "1 run"), (["2"], "1 run")]
    assert found("search=plain&page_size=1") == (["3"], "3 runs")
    assert found("sort=started_at&page_size=1") == (["3"], "3 runs"), (
        "without a value the newest is first"
    )
    assert (
        "Only the newest 2 runs that match the other filters were sorted."
        in browser.get("/runs?sort=took").text
    )
    page = browser.get("/v1/runs?search=ShOp2&page_size=1").json()
    assert ([run["run_id"] for run in page["runs"]], page["fits"], page["next_page_token"]) == (
        [3],
        1,
        None,
    )
    first = browser.get("/v1/runs?sort=-started_at&page_size=1").json()
    second = browser.get(
        f"/v1/runs?sort=-started_at&page_size=1&page_token={first['next_page_token']}"
    ).json()
    assert [run["run_id"] for run in (*first["runs"], *second["runs"])] == [3, 2]
    left = browser.get("/v1/runs?search=plain&page_size=1").json()
    none = browser.get("/v1/runs?search=shop9").json()
    totals = [(one["total"], one["total_exact"]) for one in (page, first, second, left, none)]
    assert totals == [(1, True), (3, True), (None, None), (3, True), (0, True)]
    lists = (browser.get(f"/v1/{plural}").json() for plural in ("managers", "graphs"))
    assert [(one["total"], one["total_exact"]) for one in lists] == [(0, True), (0, True)]


def test_what_a_button_does_is_called_as_the_button_first() -> None:
    late = decide(
        Circumstances(late_s=900.0, allowed_s=600.0, overlap=Overlap.SKIP, previous_live=False)
    )
    assert (late[1] or "").endswith("Backfill starts it (crawlctl schedule backfill)")
    assert (too_many_failures([True], 1) or "").endswith(
        "Resume starts it again (crawlctl schedule resume)"
    )


def test_the_list_says_why_tasks_wait_and_how_many_are_where(
    harness: Harness, browser: TestClient, tmp_path: Path
) -> None:
    browser.post("/v1/runs", json={"crawler": "plain", "tasks": [{"args": {}}] * 3})
    harness.claim(1)
    harness.deploy(1)
    with sqlite_files.connect(tmp_path / "runs.db") as database:
        database.execute(
            "UPDATE run_history SET status = 'PROCESSING', stage = 'reconciliation', waiting_for = NULL"
        )
        database.execute("UPDATE task_history SET status = 'RUNNING' WHERE task_index = 0")
        database.execute(
            "UPDATE task_history SET reason = 'waiting: 4 of 4 slots in use' WHERE task_index = 2"
        )
    row = words(browser.get("/runs"))
    assert "2 tasks PENDING: 4 of 4 slots in use" in row
    assert "2 pending 1 running" in row
    waiting = browser.get("/v1/runs").json()["runs"][0]["waiting"]
    assert waiting == browser.get("/v1/runs/1").json()["waiting"], "as on its own page"


def test_a_run_leads_to_what_began_it(harness: Harness, browser: TestClient) -> None:
    due = due_request_id("nightly", harness.clock())
    for more in ({"parent": "manager/walks/f 1"}, {"parent": "graph/a/b"}, {"parent": "else"}):
        browser.post("/v1/runs", json={"crawler": "plain", **more})
    browser.post("/v1/runs", json={"crawler": "plain"}, headers={"Idempotency-Key": due})
    pages = [browser.get(f"/runs/{n}").text for n in (1, 2, 3, 4)]
    assert 'href="/managers?name=walks&amp;flow_id=f+1"' in pages[0]
    assert 'href="/graphs/a%2Fb"' in pages[1]
    assert "<code>else</code>" in pages[2]
    assert 'href="/schedules/nightly"' in pages[3]


def test_a_run_leads_to_those_that_share_its_flow(browser: TestClient) -> None:
    """A flow may have the name of the default pool or project, which are not shown."""
    browser.post("/v1/runs", json={"crawler": "plain", "flow_id": "default"})
    page = browser.get("/runs/1").text
    assert '<dt>Flow</dt><dd><a href="/runs?flow_id=default">default</a></dd>' in page
    assert not {"<dt>Pool</dt>", "<dt>Project</dt>"} & set(re.findall("<dt>[^<]*</dt>", page))


@pytest.mark.parametrize(("fields", "told"), [
    ({"items": 12, "shares": {"<b>": 0.005, "title": 1}}, "&lt;b&gt; 0.5 %</span> of 12 items"),
    ({"items": "many", "shares": {"title": 1}}, None),
], ids=["told", "by another hand"])  # fmt: skip
def test_a_run_shows_the_fields_of_its_items(
    harness: Harness, browser: TestClient, fields: dict[str, Any], told: str | None
) -> None:
    browser.post("/v1/runs", json={"crawler": "plain"})
    with harness.store.database.writer.begin() as conn:
        conn.execute(run_history.update().values(fields=fields))
    assert browser.get("/v1/runs/1").json()["fields"] == (fields | {"note": None} if told else None)
    page = browser.get("/runs/1").text
    assert told is None or told in page
    assert ("<dt>Fields</dt>" in page) is (told is not None)


def test_corrections_have_the_newest_first(harness: Harness, browser: TestClient) -> None:
    browser.post("/v1/runs", json={"crawler": "plain"})
    for truth in ("A", "B", "C"):
        harness.store.corrections.record_corrections(
            1, [Correction(CorrectionKind.LATE, "LOST", truth)]
        )
        harness.clock.forward(86400 * 4)
    asked = "/corrections?page_size=1&since=2026-11-23T00:00:00Z"

    def truths(address: str) -> list[str]:
        return re.findall(r'data-title="True">(\w)</td>', browser.get(address).text)

    first = browser.get(asked).text
    [more] = re.findall(r'rel="next" href="([^"]*)"', first)
    assert (truths(asked), truths(html.unescape(more))) == (["C"], ["B"])
    assert 'rel="next"' not in browser.get(html.unescape(more)).text, (
        "what lies before the time that was asked for"
    )


def test_every_time_is_an_age_with_the_time_in_its_title(
    harness: Harness, browser: TestClient
) -> None:
    """A browser rewrites all of them each second, so another text in one would be lost."""
    browser.put("/v1/schedules/nightly", json={"run": {"crawler": "plain"}, "every_s": 3600})
    browser.post("/v1/schedules/nightly/trigger", json={})
    browser.post("/v1/runs", json={"crawler": "plain"})
    browser.post("/v1/runs/1/stop", json={"reason": "why"})
    for path in (
        "/",
        "/runs/1",
        "/schedules",
        "/schedules/nightly",
        "/corrections",
        "/audit",
        "/parts",
    ):
        times = re.findall(r"<time[^>]*>[^<]*</time>", browser.get(path).text)
        assert times, path
        for one in times:
            assert re.fullmatch(
                r'<time datetime="[^"]+Z" title="[-0-9]+ [:0-9]+ UTC">(\d.* ago|in \d.*)</time>',
                one,
            ), one
