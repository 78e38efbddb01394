"""The page of one run: the same head on each tab, errors next to their form, and a comparison."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.store.runs.tables import run_history, task_history
from crawler_lifecycle.store.runs.tasks import TaskReader
from tests.gateway.gateway_harness import Harness
from tests.gateway.ui.conftest import as_browser
from tests.gateway.ui.test_things import words
from tests.support.fakes.logs import FakeLogs

TABS = ("", "/log", "/items", "/files", "/tasks", "/timeline", "/request")


def test_each_tab_has_an_address_and_the_same_head(harness: Harness) -> None:
    logs = FakeLogs()
    with harness.client(harness.new_app(logs=logs)) as client:
        browser = as_browser(client)
        browser.post("/v1/runs", json={"crawler": "plain", "args": {"page": "a"}})
        harness.claim(1)
        harness.deploy(1)
        logs.write(b"one line\n", 1)
        heads = set()
        for tab in TABS:
            page = browser.get(f"/runs/1{tab}")
            assert page.status_code == 200, tab
            [head] = re.findall(r"<h1>(.*?)</h1>", page.text)
            heads.add(head)
            tabs = page.text.partition('class="tabs"')[2].partition("</nav>")[0]
            [current] = re.findall(r'<a href="([^"]+)" aria-current="page">', tabs)
            assert current == f"/runs/1{tab}"
        assert len(heads) == 1


@pytest.mark.parametrize("error", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_a_failed_run_shows_its_error_in_place(harness: Harness, kept: bool, error: bool) -> None:
    logs = FakeLogs()
    with harness.client(harness.new_app(logs=logs)) as client:
        browser = as_browser(client)
        browser.post("/v1/runs", json={"crawler": "plain"})
        harness.claim(1)
        harness.deploy(1)
        if kept:
            lines = [f"page {n}" for n in range(30)]
            if error:
                lines[20] = "ERROR: <b>no price</b>"
            logs.write("\n".join(lines).encode() + b"\n", 1)
        failed = {"status": "FAILED", "ended_at": harness.clock()}
        with harness.store.database.writer.begin() as conn:
            conn.execute(task_history.update().values(failed))
            conn.execute(run_history.update().values(failed))
        page = browser.get("/runs/1").text
        opened = browser.get("/runs/1/log", follow_redirects=True)
        log = opened.text
        end = browser.get("/runs/1/log?task=1").text
    excerpt = page.partition('class="excerpt"')[2].partition("</pre>")[0]
    if not kept:
        assert excerpt == ""
        assert "has no log here" in page
        assert "has no log here" in log
        return
    place = "&around=error#found" if error else ""
    [redirect] = opened.history
    assert redirect.headers["location"] == f"/runs/1/log?task=1{place}"
    assert ('id="found"' in log, 'id="found"' in end) == (error, False)
    assert "page 29\n" in end
    if not error:
        assert "page 29\n" in log
        assert excerpt.endswith("page 28\npage 29")
        assert "no line in it looks like an error" in page
        return
    assert "/log?task=1&amp;around=error#found" in page
    assert '<span class="found">ERROR: &lt;b&gt;no price&lt;/b&gt;' in excerpt
    assert len(re.findall("<span", excerpt)) == 15
    assert 'href="/runs/1/tasks?failed=true"' not in page


def test_the_log_of_a_failed_run_is_that_of_the_task_that_failed(harness: Harness) -> None:
    logs = FakeLogs()
    with harness.client(harness.new_app(logs=logs)) as client:
        browser = as_browser(client)
        tasks = [{"args": {"page": page}} for page in "abc"]
        browser.post("/v1/runs", json={"crawler": "plain", "tasks": tasks})
        harness.claim(1)
        harness.deploy(1)
        logs.write(b"ERROR: no price\n", 1)
        with harness.store.database.writer.begin() as conn:
            t = task_history
            conn.execute(t.update().values(status="SUCCEEDED", ended_at=harness.clock()))
            conn.execute(t.update().where(t.c.task_index > 0).values(status="FAILED"))
            ended = {"status": "FAILED", "ended_at": harness.clock()}
            conn.execute(run_history.update().values(ended))
        assert "Why task 1 failed" in browser.get("/runs/1").text
        log = browser.get("/runs/1/log", follow_redirects=True).text
        assert 'Task 1 <span class="status failed">' in log
        assert 'Task 0 <span class="status succeeded">' in browser.get("/runs/1/log?task=1").text


def test_an_unreadable_task_does_not_take_the_overview_away(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object, **__: object) -> None:
        raise RowUnreadable("task_history task_id 1: status is 'ODD'")

    with harness.client(harness.new_app(logs=FakeLogs())) as client:
        browser = as_browser(client)
        browser.post("/v1/runs", json={"crawler": "plain"})
        harness.claim(1)
        harness.deploy(1)
        with harness.store.database.writer.begin() as conn:
            conn.execute(run_history.update().values(status="FAILED", ended_at=harness.clock()))
        monkeypatch.setattr(TaskReader, "list_tasks", unreadable)
        monkeypatch.setattr(TaskReader, "task_page", unreadable)
        assert "row_unreadable" in browser.get("/runs/1/tasks").text
        assert browser.get("/runs/1").status_code == 200


def test_two_runs_show_what_differs(harness: Harness, browser: TestClient) -> None:
    for shop, priority in (("a", 1), ("b", 2)):
        body = {"crawler": "plain", "args": {"page": shop}, "priority": priority}
        assert browser.post("/v1/runs", json=body).status_code == 202
    found = words(browser.get("/runs/2?compare=1"))
    assert "Run 2 compared with run 1 of plain" in found
    assert "args.page b a" in found
    assert "priority 2 1" in found
    assert "crawler" not in found.partition("Run 2 next to")[2].partition("Of what")[0]
    assert browser.get("/runs/2?compare=9").status_code == 404
    assert browser.get("/runs/2?compare=x").status_code == 422
    assert "Compared with the last run of plain with other arguments or settings" in found


def test_the_chart_has_only_earlier_runs_of_the_same_project(browser: TestClient) -> None:
    for project in ("shops", "news", "shops"):
        answer = browser.post("/v1/runs", json={"crawler": "plain", "project": project})
        assert answer.status_code == 202, answer.text
    bars = re.findall(r'aria-label="run (\d+):', browser.get("/runs/3").text)
    assert bars == ["1", "3"]
