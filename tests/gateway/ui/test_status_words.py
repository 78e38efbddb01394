"""The state of a run has the same word on every page."""

from __future__ import annotations

import re
from itertools import product

import sqlalchemy as sa
from fastapi.testclient import TestClient

from crawler_lifecycle.features.managers.store.tables import manager
from crawler_lifecycle.store.runs.tables import run_history
from tests.gateway.gateway_harness import Harness
from tests.gateway.test_list_words import edit
from tests.gateway.ui.test_things import words
from tests.support.filling import fill_runs

#: Statuses of runs, who ended them, how their results fell short, and the word of each.
STATES = {
    ("INITIALIZING", None, None): {"starting", "waiting"},
    ("PROCESSING", None, None): {"running"},
    ("COMPLETED", "crawler", None): {"done"},
    ("COMPLETED", "crawler", "unmet"): {"brings less"},
    ("FAILED", "crawler", None): {"failed"},
    ("FAILED", "person", None): {"stopped"},
    ("FAILED", "person", "empty"): {"stopped"},
}
WAITS = (None, "a slot in pool batch")


def test_each_page_has_the_same_word_for_a_run(harness: Harness, browser: TestClient) -> None:
    cases = list(product(STATES, WAITS))
    with harness.store.database.writer.begin() as connection:
        first = fill_runs(connection, len(cases))
        for run_id, ((status, ended_by, lacks), waits) in enumerate(cases, first):
            ended = harness.clock.now if status in ("COMPLETED", "FAILED") else None
            values = {"status": status, "ended_by": ended_by, "lacks": lacks, "ended_at": ended}
            live = {"waiting_for": waits, "crawler": "plain", "outcome": ended and "finished"}
            one = sa.update(run_history).where(run_history.c.run_id == run_id)
            connection.execute(one.values(**values, **live))
    listed = browser.get("/runs?page_size=100").text
    found = browser.get("/search?q=plain").text
    for run_id, (state, _) in enumerate(cases, first):
        row = listed.partition(f'id="run-{run_id}"')[2].partition("</tr>")[0]
        page = browser.get(f"/runs/{run_id}?compare={first}").text
        head = page.partition("<h1")[2].partition("</h1>")[0]
        (word,) = re.findall(r'class="pill [a-z-]+">([^<]+)<', head)
        assert word in STATES[state], (run_id, state)
        assert f'">{word}<' in row, (run_id, state, row)
        compared = re.search(r'<th scope="row">state</th><td>([^<]+)</td>', page)
        assert compared is not None
        assert compared[1] == word
        result = re.search(rf'/runs/{run_id}">{run_id}</a>(.*?)</li>', found, re.DOTALL)
        assert result is None or f">{word}<" in result[1]


def test_a_manager_has_the_same_word_in_the_list_and_on_its_page(browser: TestClient) -> None:
    browser.post("/v1/managers", json={"crawler": "plain", "flow_id": "f"})
    for act in ("pause", "resume", "stop"):
        browser.post(f"/v1/managers/1/{act}", json={}).raise_for_status()
        page = browser.get("/managers/1").text.partition("<h1")[2]
        (word,) = re.findall(r'class="pill [a-z-]+">([^<]+)<', page.partition("</h1>")[0])
        assert f'">{word}<' in browser.get("/managers").text, act
        assert "INITIALIZING" not in words(browser.get("/managers/1"))


def test_a_manager_whose_class_fails_repeatedly_is_stuck(
    harness: Harness, browser: TestClient
) -> None:
    browser.post("/v1/managers", json={"crawler": "plain", "flow_id": "f"})
    values = {"status": "PROCESSING", "error": "it <broke>"}
    for tries, word in (2, "running"), (3, "stuck"):
        edit(harness, manager, manager.c.manager_id == 1, tries=tries, **values)
        for path in ("/managers", "/managers/1"):
            assert re.search(rf'class="(pill|status) {word}">{word}<', browser.get(path).text), path
        assert browser.get("/v1/managers/1").json()["stuck"] is (word == "stuck")
