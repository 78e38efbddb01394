"""The tabs of managers and graphs: lists of their jobs, steps and runs, and the actions on them."""

from __future__ import annotations

import html
import re
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.features.graphs.store.tables import graph_step
from crawler_lifecycle.features.managers.gateway import answers
from tests.gateway.gateway_harness import Harness
from tests.gateway.test_list_words import edit
from tests.gateway.ui.conftest import followed
from tests.gateway.ui.test_things import press, words

PATH = "/graphs/nightly%3A%201"


def note(answer: Any) -> str:
    """Return the note about an action, as text."""
    assert answer.status_code == 200, answer.text
    found = answer.text.partition('<section class="result"')[2].partition("</section>")[0]
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", found.partition(">")[2]).split()))


def tabs(answer: Any) -> dict[str, str]:
    """Return the address of each tab, by its label and count."""
    found = answer.text.partition('id="subject-tabs"')[2].partition("</nav>")[0]
    links = re.findall(r'<a href="([^"]*)"[^>]*>(.*?)</a>', found)
    return {re.sub(r"<[^>]*>", "", word): address for address, word in links}


@pytest.fixture
def nightly(browser: TestClient) -> str:
    crawl = {"kind": "crawl", "job": {"crawler": "plain"}}
    steps = [{"path": name, **crawl} for name in ("a", "b", "A_1", "A21")]
    body = {"id": "nightly: 1", "steps": [*steps, {"path": "c", **crawl, "deps": ["a"]}]}
    assert browser.post("/v1/graphs", json=body).status_code == 202
    return PATH


def test_a_graph_has_tabs_and_its_overview_shows_failing_steps(
    harness: Harness, browser: TestClient, nightly: str
) -> None:
    page = browser.get(nightly)
    assert tabs(page) == {
        "Overview": nightly,
        "Steps 5": f"{nightly}/steps",
        "Runs 0": f"{nightly}/runs",
    }
    assert f'data-source="/v1{nightly}/picture" data-steps="{nightly}/steps"' in page.text
    assert "5 work steps: " in words(page)
    assert "Failing steps" not in page.text
    errors = [{"attempt": 1, "at": "2026-11-20T12:00:00Z", "error": "it <broke>"}]
    edit(
        harness,
        graph_step,
        graph_step.c.number == 1,
        state="discarded",
        reason="no <luck>",
        errors=errors,
        ended_at=harness.clock(),
        started_at=harness.clock(),
    )
    for address in (nightly, f"{nightly}/steps?state=failed"):
        shown = words(browser.get(address))
        assert "no <luck>" in shown
        assert '"error": "it <broke>"' in shown
        assert "A_1" not in shown
    filtered = browser.get(f"{nightly}?state=failed")
    assert filtered.headers["location"] == f"{nightly}/steps?state=failed"


def test_steps_that_only_contain_others_are_listed_but_are_no_work(browser: TestClient) -> None:
    crawl = {"kind": "crawl", "job": {"crawler": "plain"}}
    steps = [{"path": "all", "kind": "graph"}, {"path": "all/a", **crawl}]
    assert browser.post("/v1/graphs", json={"id": "g", "steps": steps}).status_code == 202
    page = browser.get("/graphs/g/steps")
    assert "Steps 1" in tabs(page)
    assert "1 work step: " in words(page)
    assert "2 steps Steps that only contain other steps are listed too." in words(page)


def test_steps_are_searched_filtered_paged_and_sent_as_csv(
    browser: TestClient, nightly: str
) -> None:
    for asked, paths in {
        "search=a_": ["A_1"],
        "search=A&kind=crawl&state=ready": ["a", "A_1", "A21"],
        "path=b": ["b"],
        "kind=graph": [],
    }.items():
        page = browser.get(f"{nightly}/steps?{asked}").text
        assert re.findall(r'/steps\?path=[^"]*">([^<]*)</a></th>', page) == paths, asked
        total = re.findall(r'id="total">([^<]*)<', page)
        assert total == [f"{len(paths)} step{'s' * (len(paths) != 1)}"], asked
    first = browser.get(f"{nightly}/steps?page_size=2")
    assert "5 steps" in words(first)
    (more,) = re.findall(r'rel="next" href="([^"]*)"', first.text)
    assert re.findall(r'<tr id="(step-\d+)"', browser.get(html.unescape(more)).text) == [
        "step-2",
        "step-3",
    ]
    rows = browser.get(f"{nightly}/steps?format=csv").text.splitlines()
    assert (len(rows), rows[0].startswith("Step,Kind,Does,State")) == (6, True)
    alone = words(browser.get(f"{nightly}/steps?path=c"))
    assert "wait" in alone.partition("scheduled")[0].casefold(), "why it waits"
    assert browser.get(f"{nightly}/steps?state=broken").status_code == 422


def test_selected_steps_are_cancelled_and_retried_in_place_and_once(
    browser: TestClient, nightly: str
) -> None:
    path = f"{nightly}/steps"
    page = browser.get(path).text
    assert re.findall(r'name="step" value="([^"]*)"', page)[:2] == ["a.1", "b.1"]
    form = {"key": uuid.uuid4().hex, "do": "cancel", "step": ["b.1", "A21.1"], "stay": "true"}

    def pressed(**fields: Any) -> Any:
        given = form | {"key": uuid.uuid4().hex} | fields
        here = f"{path}?state=cancelled"
        sent = browser.post(here, data=given, headers={"Referer": f"http://testserver{here}"})
        assert sent.headers["location"] == here, "the same list is shown, with its filters"
        return followed(browser, sent)

    first, again = (pressed(key=form["key"]) for _ in range(2))
    assert note(first) == note(again)
    assert "2 steps changed" in note(first)
    assert "2 steps" in words(first)
    assert "the form showed attempt 7" in note(pressed(do="retry", step="b.7"))
    assert "1 step changed" in note(pressed(do="retry", step="b.1"))
    for wrong in ({}, {"step": "b"}, {"step": "b.1", "reason": "x" * 256}):
        assert press(browser, path, "cancel", **wrong).status_code == 422, wrong
    assert press(browser, path, "stop", step="b.1").status_code == 422
    answer = press(browser, path, "retry", step="gone.1")
    assert (answer.status_code, "gone" in answer.text) == (422, True)


def test_jobs_are_searched_filtered_paged_and_sent_as_csv(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.post("/v1/managers", json={"crawler": "plain", "flow_id": "f"})
    jobs = [{"spider_args": {"page": f"<{n}>"}} for n in range(12)]
    browser.post("/v1/managers/1/jobs", json={"jobs": jobs})
    path = "/managers/1/jobs"
    page = browser.get("/managers/1")
    assert tabs(page) == {
        "Overview": "/managers/1",
        "Jobs 12": path,
        "Runs 0": "/managers/1/runs",
    }
    assert f'href="{path}?state=buffered&amp;state=delayed&amp;state=queued"' in page.text
    assert "page: <7>" in words(browser.get(path))
    assert "12 jobs" in words(browser.get(f"{path}?page_size=5"))
    assert "page: <7>" in browser.get(f"{path}?format=csv").text
    assert "No job matches" in words(browser.get(f"{path}?state=ended"))
    assert "page: <11>" in words(browser.get(f"{path}?search=PAGE%3D%3C11"))
    assert "No job matches" in words(browser.get(f"{path}?search=PAGE%3D%3C12"))
    monkeypatch.setattr(answers, "SEARCHED_MAX", 10)
    part = browser.get(f"{path}?search=%3C11")
    assert "Only 10 jobs were searched" in words(part)
    (more,) = re.findall(r'rel="next" href="([^"]*)"', part.text)
    assert "page: <11>" in words(browser.get(html.unescape(more)))


def test_the_runs_of_a_graph_are_stopped_on_its_tab(
    harness: Harness, browser: TestClient, nightly: str
) -> None:
    for parent in ("graph/nightly: 1", None):
        run = {"crawler": "plain"} | ({"parent": parent} if parent else {})
        assert browser.post("/v1/runs", json=run).status_code == 202, run
    path = f"{nightly}/runs"
    page = browser.get(path)
    assert "Runs 1" in tabs(page)
    assert re.findall(r'name="run" value="([^"]*)"', page.text) == ["1.1"]
    assert "1 run" in words(page)
    stopped = browser.post(
        path, data={"key": uuid.uuid4().hex, "do": "stop", "run": "1.1", "stay": "true"}
    )
    assert "The stop is recorded." in note(stopped)
    assert "Steps 5" in tabs(stopped), "the tab is shown again"
    assert "No run matches" in words(browser.get(f"{path}?status=COMPLETED"))
