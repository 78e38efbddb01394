"""The codes of tasks and runs, for programs and for people."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.output import written
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.polls import Poll
from crawler_lifecycle.subjects import code_of_task, codes_of_run
from tests.gateway.gateway_harness import Harness
from tests.gateway.ui.test_things import words

DIGITS = "3f9a1c" + "0" * 58
CODE = {
    "digest": f"sha256:{DIGITS}",
    "version": "2026-11-28",
    "commit": "abcdef0123456789",
    "note": None,
}


def executed(harness: Harness, client: TestClient, code: Code) -> int:
    """Start a run whose first task executes this code."""
    run_id = int(
        client.post("/v1/runs", json={"crawler": "plain", "tasks": [{}, {}]}).json()["run_id"]
    )
    harness.claim(run_id)
    harness.deploy(run_id)
    now = harness.clock()
    seen = Observation(0, 1, Phase.EXECUTING, now, started_at=now, code=code)
    harness.store.polls.record_poll(harness.fence(run_id), Poll(now, 0.1, [seen]), [], now)
    return run_id


def test_tasks_runs_and_lists_name_their_code(harness: Harness, client: TestClient) -> None:
    run_id = executed(harness, client, Code(**CODE))
    executed(harness, client, Code("sha256:" + "4" * 64))
    first, second = client.get(f"/v1/runs/{run_id}/tasks").json()["tasks"]
    assert (first["code"], second["code"]) == (CODE, None)
    run = client.get(f"/v1/runs/{run_id}").json()
    assert run["codes"] == [CODE]
    [listed] = client.get("/v1/runs", params={"code": "3f9a1c"}).json()["runs"]
    assert (listed["run_id"], listed["codes"]) == (run_id, [CODE])
    assert client.get("/v1/runs", params={"code": "ffffff"}).json()["runs"] == []
    text = "2026-11-28 3f9a1c000000 commit abcdef012345"
    assert written(code_of_task(first)) == written(codes_of_run(run)) == text


def test_a_code_that_is_none_is_refused(client: TestClient) -> None:
    for text in ("main", "3f9a1", "sha256:", "%"):
        answer = client.get("/v1/runs", params={"code": text})
        assert answer.status_code == 422, text
        assert answer.json()["errors"][0]["field"] == "code"


def test_several_codes_with_one_beginning_are_named(harness: Harness, client: TestClient) -> None:
    for last in "12":
        executed(harness, client, Code(f"sha256:{DIGITS[:-1]}{last}"))
    answer = client.get("/v1/runs", params={"code": "3f9a1c"})
    assert answer.status_code == 422
    assert "several digests" in answer.json()["errors"][0]["message"]


def test_pages_link_a_code_to_its_runs(harness: Harness, browser: TestClient) -> None:
    run_id = executed(harness, browser, Code(**CODE))
    for path in (f"/runs/{run_id}", f"/runs/{run_id}/tasks", "/runs?code=3f9a1c"):
        page = browser.get(path)
        assert "2026-11-28 3f9a1c000000 commit abcdef012345" in words(page), path
        assert f'href="/runs?code={DIGITS}"' in page.text, path
    assert browser.get("/runs?code=main").status_code == 422


def test_the_chart_of_a_crawler_marks_changes_of_its_code(
    harness: Harness, client: TestClient, browser: TestClient, tmp_path: Path
) -> None:
    old = Code(f"sha256:{DIGITS}", "2026-11-21")
    for n, code in enumerate([old, old, Code(**CODE | {"digest": "sha256:" + "4" * 64})], 1):
        assert executed(harness, client, code) == n
    with sqlite_files.connect(tmp_path / "runs.db") as database:
        database.execute(
            "UPDATE run_history SET status = 'COMPLETED', outcome = 'finished', "
            "ended_by = 'crawler', ended_at = created_at, cause = 'It is over'"
        )
    page = browser.get("/crawlers/plain")
    mark = "run 3: version 2026-11-28, before it version 2026-11-21"
    assert page.text.count('<line class="change"') == page.text.count(mark) == 1
    assert "A vertical line is a change of code." in words(page)
    assert "Since version 2026-11-28 (run 3): nothing unusual." in words(page)
